"""A reload: the configuration is read again, and what it changes is changed, one stream after the other.

Streams that their trainers would see no difference in go on as if nothing had happened. A mistake in the configuration,
or in the data that it names, changes nothing at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamd.config import Config, locate_errors
from streamd.core import log
from streamd.core.spec import PixelId
from streamd.daemon.descriptor_allowance import AMPLE, Allowance
from streamd.daemon.dispatcher import Service
from streamd.daemon.engine.absences import require_data
from streamd.daemon.engine.engine import LocalEngine
from streamd.daemon.reload_plan import Changes, compare, needing_restart
from streamd.daemon.streams.served_stream import ServedStream, measure_shuffles
from streamd.errors import ConfigError, StreamdError
from streamd.scheduler.admission import SchedulerLimits, least_bytes

Read = Callable[[], Awaitable[tuple[Config, list[ServedStream]]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Version:
    """A stream that is to be served, new or in the place of one whose trainers are told `why` that ends."""

    stream: ServedStream
    why: str

    @property
    def name(self) -> str:
        return self.stream.spec.name


class Reloader:
    """Reloads a daemon that runs on `config`. `read` reads the configuration and lists its samples as at a start.

    One reload at a time: whoever calls `reload` waits for it before the next. `allowance` is what the daemon promised.
    """

    def __init__(
        self, config: Config, read: Read, service: Service, engine: LocalEngine, allowance: Allowance = AMPLE
    ) -> None:
        self._config = config
        self._read = read
        self._service = service
        self._engine = engine
        self._allowance = allowance

    async def reload(self) -> bool:
        """Whether it serves all that the configuration says now. What is wrong is logged, and changes nothing.

        Cancelling it is for the daemon's end.
        """
        log.notice("reload.began", "reading the configuration again")
        try:
            config, streams = await self._read()
            fresh = {each.spec.name: each for each in streams}
            if refusal := self._allowance.refusal_of(len(fresh)):
                raise ConfigError(refusal)
            changes = self._compare(fresh)
            with locate_errors(config):
                for name in (*changes.changed, *changes.added):
                    await require_data(fresh[name])
            self._take_verdicts_along(changes, fresh)
        except (StreamdError, OSError) as error:
            refuse_reload(error)
            return False
        config = keep_settings(self._config, config)
        failed = await self._apply(changes, fresh, config)
        parts = {"kept": changes.kept, "changed": changes.changed, "added": changes.added, "removed": changes.removed}
        told = {word: ",".join(name for name in names if name not in failed) for word, names in parts.items()}
        log.notice("reload.done", f"serving what it says{', but for what failed' if failed else ''}", **told)
        return not failed

    def _compare(self, fresh: dict[str, ServedStream]) -> Changes:
        running = self._service.streams
        relisted = {name for name in fresh if name in running and not _is_same_list(running[name], fresh[name])}
        return compare(
            {name: stream.spec for name, stream in running.items()},
            {name: stream.spec for name, stream in fresh.items()},
            relisted,
            {name for name in fresh if name in running and running[name].transform != fresh[name].transform},
        )

    def _take_verdicts_along(self, changes: Changes, fresh: dict[str, ServedStream]) -> None:
        """A list may have a new place, since what it shares classes with changed; its verdicts count there too.

        The stream goes on with the old list, and has the lock of each place: nobody takes either away.
        """
        for name in changes.kept:
            was, now = self._service.streams[name], fresh[name]
            if was.quarantine.path != now.quarantine.path:
                was.quarantine.move_file(now.quarantine.path)
                if now.list_lock is not was.verdicts_lock:
                    self._service.renew(replace(was, verdicts_lock=now.list_lock))

    async def _apply(self, changes: Changes, fresh: dict[str, ServedStream], config: Config) -> set[str]:
        """The names of streams that no worker could open: they are as they were."""
        for name, why in changes.removed.items():
            self._service.change(name, None, why)
            self._engine.close(name)
        versions = [
            *(
                _Version(_sharing_verdicts(self._service.streams[name], fresh[name]), why)
                for name, why in changes.changed.items()
            ),
            *(_Version(fresh[name], "") for name in changes.added),
        ]
        together, alone = self._parted(versions)
        ways: list[tuple[set[str], Coroutine[Any, Any, None]]] = []
        if together:
            ways.append(({each.name for each in together}, self._serve_from_new_workers(together)))
        ways += [({name}, self._keep(self._service.streams[name], fresh[name])) for name in changes.kept]
        ways += [({each.name}, self._serve(each)) for each in alone]
        return {name for names, way in ways if not await self._goes(names, way, config) for name in names}

    def _parted(self, versions: Sequence[_Version]) -> tuple[list[_Version], list[_Version]]:
        """Those that need new workers, which all get at a time; and those that do not."""
        transformed = [each for each in versions if each.stream.transform is not None]
        if not self._engine.needs_new_workers(each.stream for each in transformed):
            return [], [*versions]
        return transformed, [each for each in versions if each not in transformed]

    async def _goes(self, names: Collection[str], way: Coroutine[Any, Any, None], config: Config) -> bool:
        """Whether streams are served as they should be; a folder may have gone since its files were listed."""
        try:
            with locate_errors(config):
                await way
        except StreamdError as error:
            log.error("reload.failed", f"{error}; it goes on as it was, if it was", stream=",".join(names))
            return False
        return True

    async def _keep(self, was: ServedStream, now: ServedStream) -> None:
        """Its sessions go on; how many bad samples they bear may be another number, and the cache another one."""
        if (was.max_bad_fraction, was.cache) != (now.max_bad_fraction, now.cache):
            renewed = replace(was, max_bad_fraction=now.max_bad_fraction, cache=now.cache)
            await require_data(renewed)
            await self._engine.open(renewed)
            self._service.renew(renewed)

    async def _serve(self, version: _Version) -> None:
        await measure_shuffles([version.stream])
        pixel_id = await self._engine.open(version.stream)
        # From here to the change nothing else may run: what is begun now shows the new version.
        self._change(version, pixel_id)

    async def _serve_from_new_workers(self, versions: Sequence[_Version]) -> None:
        """All of them or none: workers import a module once."""
        await measure_shuffles(each.stream for each in versions)
        pixel_ids = await self._engine.open_in_new_workers([each.stream for each in versions])
        for each in versions:  # as above
            self._change(each, pixel_ids[each.name])

    def _change(self, version: _Version, pixel_id: PixelId) -> None:
        stream = version.stream
        self._service.change(version.name, replace(stream, spec=replace(stream.spec, pixel_id=pixel_id)), version.why)
        introduce([stream], self._config)


def keep_settings(running: Config, written: Config) -> Config:
    """The streams as they are written, with the settings of the daemon that runs; warns of those that differ."""
    settings = _settings(running)
    if names := needing_restart(settings, _settings(written)):
        log.warning("reload.restart_needed", f"{', '.join(names)}: as before, until the daemon is started anew")
    return written.model_copy(update=settings)


def refuse_reload(error: Exception) -> None:
    """Says why a reload changes nothing."""
    for line in str(error).splitlines():
        log.error("reload.failed", line)
    log.error("reload.failed", "nothing is changed; mend it and send SIGHUP again")


def introduce(streams: Iterable[ServedStream], config: Config) -> None:
    """Says what is served from now on, and warns of poor mixing and of what subscription would refuse."""
    for each in streams:
        spec, shape = each.spec, each.shape
        log.info(
            "stream.served",
            "ready",
            stream=spec.name,
            samples=spec.samples,
            batches=spec.batches,
            batch_size=spec.batch_size,
            bad=len(each.quarantine.reasons),
        )
        if each.mixing_advice is not None:
            log.warning("stream.poorly_mixed", each.mixing_advice, stream=spec.name)
        needed = least_bytes(shape, SchedulerLimits(config.memory, config.worker_count))
        if needed > config.memory:
            log.warning(
                "stream.too_large",
                "nobody can subscribe: memory is less than needed; set more, or make batch_size or image.size smaller",
                stream=spec.name,
                batch_bytes=shape.slot_bytes,
                needed_bytes=needed,
                memory_bytes=config.memory,
            )


def _is_same_list(was: ServedStream, now: ServedStream) -> bool:
    """Whether two lists name the very same files, none of them written since."""
    if was.manifest.content_id != now.manifest.content_id:
        return False
    return np.array_equal(was.manifest.mtimes_ns, now.manifest.mtimes_ns)


def _sharing_verdicts(was: ServedStream, now: ServedStream) -> ServedStream:
    """Batches of the old version may still be under way: what they find bad is known to the new one at once."""
    same_place = was.quarantine.path == now.quarantine.path
    if not (same_place and _is_same_list(was, now)):
        return now
    return replace(now, quarantine=was.quarantine.follow_list(lambda: now.manifest.list_id))


def _settings(config: Config) -> dict[str, object]:
    """All but the streams."""
    return {name: getattr(config, name) for name in Config.model_fields if name != "streams"}
