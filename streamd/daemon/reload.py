"""Reloads the configuration: reads it again, and applies its changes to one stream after the other.

A stream is left undisturbed if its trainers would see no difference. A mistake in the configuration, or in the data
that it names, changes nothing at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamd.config.load import add_error_locations
from streamd.config.schema import Config
from streamd.core import log
from streamd.daemon.data_watch import check_data_present
from streamd.daemon.descriptor_allowance import AMPLE_ALLOWANCE, DescriptorAllowance
from streamd.daemon.dispatcher import Dispatcher
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.reload_plan import StreamChanges, plan_stream_changes
from streamd.daemon.streams.served_stream import ServedStream, explain_other_pixels, measure_shuffles_in_thread
from streamd.errors import ConfigError, StreamdError
from streamd.scheduler.admission import SchedulerLimits, compute_least_stream_bytes

ReadStreams = Callable[[], Awaitable[tuple[Config, list[ServedStream]]]]


class Reloader:
    """Reloads a daemon that runs on `config`.

    `read_streams` reads the configuration and lists its samples as at a start. A caller must await `reload_streams`
    before it calls it again. `allowance` is how many descriptors the daemon has promised to trainers.
    """

    def __init__(
        self,
        config: Config,
        read_streams: ReadStreams,
        dispatcher: Dispatcher,
        engine: BatchEngine,
        allowance: DescriptorAllowance = AMPLE_ALLOWANCE,
    ) -> None:
        self._config = config
        self._read_streams = read_streams
        self._dispatcher = dispatcher
        self._engine = engine
        self._allowance = allowance

    async def reload_streams(self) -> bool:
        """Reloads; returns whether the whole configuration is served now. Mistakes are logged and change nothing.

        It may only be cancelled when the daemon ends, since a cancelled reload may be half applied.
        """
        # Every check that can refuse the reload as a whole comes before the first change that trainers can see.
        log.notice("reload.began", "reading the configuration again")
        try:
            config, streams = await self._read_streams()
            fresh = {each.spec.name: each for each in streams}
            if refusal := self._allowance.explain_too_many_streams(len(fresh)):
                raise ConfigError(refusal)
            running = self._dispatcher.streams
            pairs = {name: (running[name], new) for name, new in fresh.items() if name in running}
            changes = plan_stream_changes(
                {name: stream.spec for name, stream in running.items()},
                {name: stream.spec for name, stream in fresh.items()},
                {name for name, (old, new) in pairs.items() if not _have_same_files(old, new)},
                {name for name, (old, new) in pairs.items() if old.transform != new.transform},
            )
            with add_error_locations(config):
                # `expect` may ask for other pixels than a kept stream has. Orders are checked already.
                for name in changes.kept:
                    expected, pixel_id = fresh[name].expected, self._dispatcher.streams[name].spec.pixel_id
                    if refusal := explain_other_pixels(expected, name, pixel_id):
                        raise ConfigError(refusal)
                for name in (*changes.changed, *changes.added):
                    await check_data_present(fresh[name])
            # The verdicts of kept streams move where their manifest has another path, as streams that share classes
            # changed. Such a stream keeps the old manifest and holds the locks of both paths, so that no process
            # replaces either.
            for name in changes.kept:
                was, now = self._dispatcher.streams[name], fresh[name]
                if was.quarantine.path != now.quarantine.path:
                    was.quarantine.copy_and_switch_file(now.quarantine.path)
                    if now.manifest_lock is not was.quarantine_lock:
                        self._dispatcher.replace_stream_keeping_sessions(
                            replace(was, quarantine_lock=now.manifest_lock)
                        )
        except (StreamdError, OSError) as error:
            log_reload_refusal(error)
            return False
        config = keep_daemon_settings(self._config, config)
        failed = await self._apply_stream_changes(changes, fresh, config)
        parts = {"kept": changes.kept, "changed": changes.changed, "added": changes.added, "removed": changes.removed}
        served = {word: ",".join(name for name in names if name not in failed) for word, names in parts.items()}
        log.notice(
            "reload.done",
            f"serving the configuration as it was read{', except for what failed' if failed else ''}",
            **served,
        )
        return not failed

    async def _apply_stream_changes(
        self, changes: StreamChanges, new_streams: dict[str, ServedStream], config: Config
    ) -> set[str]:
        """Applies the changes; returns the names of streams that no worker could open, which are as before."""
        for name, why in changes.removed.items():
            self._dispatcher.replace_stream_ending_sessions(name, None, why)
            self._engine.close_stream(name)
        versions = {name: new_streams[name] for name in (*changes.changed, *changes.added)}
        for name in changes.changed:
            # Batches of the old version may still be under way. Where the files are the same, what they find bad is
            # known to the new version at once: both have one quarantine. The manifest of the old one may be closed.
            running, written = self._dispatcher.streams[name], versions[name]
            if running.quarantine.path == written.quarantine.path and _have_same_files(running, written):
                running.quarantine.get_list_id = written.quarantine.get_list_id
                versions[name] = replace(written, quarantine=running.quarantine)
        # Versions whose transforms the workers have not imported get new workers together. The others need none.
        together = {name: each for name, each in versions.items() if each.transform is not None}
        if not self._engine.needs_new_workers(together.values()):
            together = {}
        tasks: list[tuple[set[str], Coroutine[Any, Any, None]]] = []
        if together:
            serving = self._serve_versions([*together.values()], changes.changed, in_new_workers=True)
            tasks.append(({*together}, serving))
        tasks += [
            ({name}, self._renew_kept_stream(self._dispatcher.streams[name], new_streams[name]))
            for name in changes.kept
        ]
        tasks += [
            ({name}, self._serve_versions([each], changes.changed, in_new_workers=False))
            for name, each in versions.items()
            if name not in together
        ]
        failed: set[str] = set()
        for names, task in tasks:
            # It fails, say, if data are gone since they were listed.
            try:
                with add_error_locations(config):
                    await task
            except StreamdError as error:
                why = f"{error}; if the stream was served before, it is still served as it was"
                log.error("reload.failed", why, stream=",".join(names))
                failed |= names
        return failed

    async def _renew_kept_stream(self, running: ServedStream, written: ServedStream) -> None:
        """Applies another limit of bad samples, cache or `expect` to a stream whose sessions continue."""
        wanted = {
            name: getattr(written, name) for name in ("max_bad_fraction", "has_default_fraction", "cache", "expected")
        }
        if any(getattr(running, name) != value for name, value in wanted.items()):
            renewed = replace(running, **wanted)
            await check_data_present(renewed)
            await self._engine.open_stream(renewed)
            self._dispatcher.replace_stream_keeping_sessions(renewed)

    async def _serve_versions(
        self, streams: Sequence[ServedStream], reasons: Mapping[str, str], *, in_new_workers: bool
    ) -> None:
        """Serves one version in running workers; or all in new ones or none, since a worker imports a module once.

        Each is new, or replaces one whose trainers get the reason for its end.
        """
        await measure_shuffles_in_thread(streams)
        if in_new_workers:
            pixel_ids = await self._engine.open_streams_in_new_workers(streams)
        else:
            pixel_ids = {each.spec.name: await self._engine.open_stream(each) for each in streams}
        # Nothing may be awaited before the replacements: batches that begin now are already of the new versions.
        for each in streams:
            name = each.spec.name
            served = replace(each, spec=replace(each.spec, pixel_id=pixel_ids[name]))
            self._dispatcher.replace_stream_ending_sessions(name, served, reasons.get(name, ""))
            log_served_streams([each], self._config)


def keep_daemon_settings(running: Config, written: Config) -> Config:
    """Returns the written streams with the settings of the running daemon. Warns of settings that differ."""
    # All settings are the daemon's but the streams, and the identities that they must have.
    settings = {name: getattr(running, name) for name in Config.model_fields if name not in {"streams", "expect"}}
    if names := [name for name, value in settings.items() if getattr(written, name) != value]:
        log.warning("reload.restart_needed", f"{', '.join(names)}: unchanged until the daemon is restarted")
    return written.model_copy(update=settings)


def log_reload_refusal(error: Exception) -> None:
    """Logs why a reload changes nothing."""
    for line in str(error).splitlines():
        log.error("reload.failed", line)
    log.error("reload.failed", "nothing was changed; fix the configuration and send SIGHUP again")


def log_served_streams(streams: Iterable[ServedStream], config: Config) -> None:
    """Logs what is served from now on; warns of poor mixing, and of streams that do not fit into memory."""
    for each in streams:
        spec, shape = each.spec, each.stream_shape
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
        needed = compute_least_stream_bytes(shape, SchedulerLimits(config.memory, config.worker_count))
        if needed > config.memory:
            log.warning(
                "stream.too_large",
                "nobody can subscribe: memory is less than needed; set more, or make batch_size or image.size smaller",
                stream=spec.name,
                batch_bytes=shape.slot_bytes,
                needed_bytes=needed,
                memory_bytes=config.memory,
            )


def _have_same_files(running: ServedStream, written: ServedStream) -> bool:
    """Whether two manifests name the same files, with the same mtimes."""
    if running.manifest.content_id != written.manifest.content_id:
        return False
    return np.array_equal(running.manifest.mtimes_ns, written.manifest.mtimes_ns)
