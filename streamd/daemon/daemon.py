"""The daemon's life in four verbs: start, serve, drain, shut down. Signals in, an exit status out.

SIGTERM and SIGINT drain and end it; SIGHUP reloads, which is part of serving.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from streamd.config import Config, ConfigInput, list_unserved_settings, load_config, locate_errors
from streamd.core import log
from streamd.core.counters import ProcessStats
from streamd.core.text import format_count
from streamd.daemon.data_places import PlaceLooks, wait_for_mount, warn_of_newer_labels
from streamd.daemon.descriptor_allowance import allow
from streamd.daemon.dispatcher import Service
from streamd.daemon.engine.engine import LocalEngine
from streamd.daemon.reload import Reloader, introduce, keep_settings, refuse_reload
from streamd.daemon.router import SOCKET_MODE, Server
from streamd.daemon.socket_activation import Handed
from streamd.daemon.status_builder import Overview
from streamd.daemon.streams.catalog import (
    build_lock_paths,
    find_state_directory,
    find_unlisted_streams,
    is_listed,
    make_state_folder,
    open_streams,
)
from streamd.daemon.streams.listing_process import list_in_process
from streamd.daemon.streams.manifest_locks import ListLock, ListLocks, acquire_all_shared
from streamd.daemon.streams.served_stream import ServedStream, measure_shuffles
from streamd.daemon.systemd import Manager, Pulse, headline
from streamd.errors import ConfigError, MissingExtraError, StreamdError
from streamd.ipc import endpoint
from streamd.ipc.messages import MonitorAt
from streamd.ipc.slots import SlotStore
from streamd.limits import DRAIN_S
from streamd.scheduler import SchedulerLimits, Window

if TYPE_CHECKING:
    from streamd.daemon.monitor.http_server import Monitor  # an extra

_STDERR: Final = 2


class _Stopped(Exception):  # noqa: N818 - no error: it leaves the task group, and everything in it
    """Somebody asked the daemon to end."""


class Daemon:
    """One run of `streamd serve`.

    `address` serves there, whatever the configuration says, and there alone. `on_ready` is called when it serves.
    `manager` is told how it goes; sockets that it `handed` over are the endpoint.
    """

    def __init__(
        self,
        given: ConfigInput,
        *,
        state: Path | None = None,
        rescan: bool = False,
        address: str | None = None,
        on_ready: Callable[[], None] = lambda: None,
        manager: Manager | None = None,
        handed: Handed | None = None,
    ) -> None:
        self._given = given
        self._address = address
        self._on_ready = on_ready
        self._manager = manager or Manager()
        self._config = config = self._load()
        self._state = state or find_state_directory()
        self._rescan = rescan
        self._locks = ListLocks()
        self._stop = asyncio.Event()
        self._wanted_anew = asyncio.Event()
        self._failure: BaseException | None = None
        self._slots = SlotStore()
        self._stats = ProcessStats()
        self._has_terminal = os.isatty(_STDERR)
        self._allowance = allow(
            _allow_descriptors(),
            workers=config.worker_count,
            streams=len(config.streams),
            is_monitored=config.monitor is not None,
        )
        address = config.listen[0] if config.listen else endpoint.default_endpoint()
        self._server = Server(address, handed, self._allowance.connections)

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT. Raises what ended it otherwise."""
        self._watch()
        try:
            async with asyncio.TaskGroup() as group:
                service = await self._unless_stopped(self._start(group))
                await self._stop.wait()
                await self._end_reloads()
                await self._drain(service)
                self._shut_down(service)
                _leave()
        except* _Stopped:
            log.info("daemon.stopped", "done")
        except* StreamdError as errors:
            raise _first(errors) from errors
        finally:
            self._server.close()
            self._slots.close()
        if self._failure is not None:
            raise self._failure

    async def _unless_stopped(self, start: Coroutine[None, None, Service]) -> Service:
        """Awaits the start; a signal that comes first ends it."""
        starting, stopped = asyncio.ensure_future(start), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise _Stopped
            return starting.result()
        finally:
            starting.cancel()
            stopped.cancel()
            await asyncio.wait({starting, stopped})

    async def _start(self, group: asyncio.TaskGroup) -> Service:
        """Lists the data, starts the workers, opens the endpoint."""
        config, began_s = self._config, time.monotonic()
        self._server.take()
        opening = group.create_task(self._open_monitor(group), name="opening the monitor")
        self._manager.starting("lists the samples")
        config = await self._await_data(config)
        streams = await self._list(config, anew=self._rescan)
        engine = LocalEngine(streams, self._slots, self._stats, config.worker_count)
        await engine.find_absences()
        self._manager.starting("starts the workers")
        group.create_task(engine.run(), name="engine")
        await measure_shuffles(streams)  # while the workers start, before anything is shown of the streams
        with locate_errors(config):
            pixel_ids = await engine.pixel_ids()
        monitor = await opening
        served = {
            each.spec.name: replace(each, spec=replace(each.spec, pixel_id=pixel_ids[each.spec.name]))
            for each in streams
        }
        service = Service(
            served,
            window=self._window(streams),
            engine=engine,
            slots=self._slots,
            server=self._server,
            stats=self._stats,
            overview=Overview(
                served, config.worker_count, config.memory, self._server.address, self._stats, time.monotonic()
            ),
            spawn=group.create_task,
            allowance=self._allowance,
            monitor=MonitorAt(monitor.url, monitor.token) if monitor else None,
        )
        # First, for a welcome sends trainers there.
        service.descriptors.start_listening(self._server.descriptors, SOCKET_MODE, self._server.handed_descriptors)
        self._server.listen(service.receive)
        if monitor is not None:
            monitor.watch(service, self._stats)
        reloader = Reloader(config, partial(self._read, engine), service, engine, self._allowance)
        self._reloads = group.create_task(self._reload(reloader, service), name="reloads")
        introduce(streams, config)
        warn_of_newer_labels(config, (each for each in streams if each.spec.name not in engine.away))
        self._announce(group, service, time.monotonic() - began_s)
        return service

    def _window(self, streams: Sequence[ServedStream]) -> Window:
        shapes, config = [each.shape for each in streams], self._config
        return Window(shapes, SchedulerLimits(config.memory, config.worker_count, self._allowance.slots))

    def _announce(self, group: asyncio.TaskGroup, service: Service, seconds: float) -> None:
        """Tells everybody who waits for it that trainers are served now."""
        log.info(
            "daemon.ready",
            f"serving at {self._server.address}",
            pid=os.getpid(),
            workers=self._config.worker_count,
            seconds=seconds,
        )
        self._manager.ready(headline(service.status()))
        if self._manager.watchdog_s is not None:
            group.create_task(self._be_watched(service, self._manager.watchdog_s), name="watchdog")
        self._on_ready()

    async def _open_monitor(self, group: asyncio.TaskGroup) -> Monitor | None:
        """Answers over HTTP from now on, if the configuration says so.

        So early, for whoever lists long is healthy, and not ready. An extra is read for it, and a large one: in a
        thread, while the workers come up.
        """
        if self._config.monitor is None:
            return None
        try:
            web = await asyncio.to_thread(import_module, "streamd.daemon.monitor.http_server")
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "a library", "monitor", "monitor") from error
        monitor: Monitor = web.Monitor(self._config.monitor)
        with locate_errors(self._config):
            await monitor.open()
        group.create_task(monitor.run(), name="monitor")
        log.info("monitor.ready", f"dashboard at {monitor.url}/, metrics at {monitor.url}/metrics")
        return monitor

    def _load(self) -> Config:
        """The configuration as it is written now. Raises ConfigError, also for what this version does not serve."""
        config = load_config(self._given)
        if self._address is not None:
            config = config.model_copy(update={"listen": (self._address,), "curve": None, "monitor": None})
        with locate_errors(config):
            if unserved := list_unserved_settings(config):
                raise ConfigError("\n".join(unserved))
        return config

    async def _await_data(self, config: Config) -> Config:
        """Under a service manager, waits for data to be listed that are not there: their file system may come late.

        At a terminal, and for a program, the listing says at once what is missing. Returns what to go on with: SIGHUP
        has the configuration read again.
        """
        looks, said = self._look_for(config), ""
        while self._manager.is_there and (absent := "; ".join(await looks.absences())):
            if absent != said:
                said = absent
                log.error(
                    "data.absent", f"waits for {absent}; mount it, or correct the path and restart or send SIGHUP"
                )
                self._manager.starting(f"waits for {absent}")
            await wait_for_mount(self._wanted_anew)
            if self._wanted_anew.is_set():
                self._wanted_anew.clear()
                config = self._load_anew(config)
                looks, said = self._look_for(config), ""
        return config

    def _look_for(self, config: Config) -> PlaceLooks:
        wanted = config.streams if self._rescan else find_unlisted_streams(config, self._state)
        return PlaceLooks(stream for name, stream in config.streams.items() if name in wanted)

    def _load_anew(self, config: Config) -> Config:
        """The streams as they are written now; those of `config` if there is a mistake, which is logged."""
        log.notice("reload.began", "reading the configuration again")
        try:
            return keep_settings(config, self._load())
        except (StreamdError, OSError) as error:
            refuse_reload(error)
            return config

    async def _list(self, config: Config, *, anew: bool) -> list[ServedStream]:
        """The streams of the configuration; their samples are listed unless they are known, and it is not `anew`."""
        with locate_errors(config):
            make_state_folder(self._state)
        locks = self._locks.locks_by_stream(build_lock_paths(config, self._state))
        if anew or not (is_listed(config, self._state) and acquire_all_shared(locks.values())):
            await self._list_apart(config, locks, anew=anew)
        with locate_errors(config):
            return [replace(each, list_lock=locks[each.spec.name]) for each in open_streams(config, self._state)]

    async def _list_apart(self, config: Config, locks: Mapping[str, ListLock], *, anew: bool) -> None:
        """Has the samples listed, and shares the locks of their lists: no other daemon replaces them from then on."""
        listed = False
        while not listed:
            # The process that lists has these alone, so this daemon lets go of those that it serves already.
            for name in config.streams if anew else find_unlisted_streams(config, self._state):
                locks[name].release_lock()
            try:
                await list_in_process(self._given, self._state, anew=anew)
            finally:
                listed = acquire_all_shared(locks.values())  # or another process lists them just now
            anew = False
            if find_unlisted_streams(config, self._state):  # that process has read the configuration once more
                raise ConfigError(f"{self._given}: it was changed while its samples were listed; try again")

    # --- reloading

    async def _read(self, engine: LocalEngine) -> tuple[Config, list[ServedStream]]:
        config = self._load()
        streams = await self._list(config, anew=False)
        warn_of_newer_labels(config, (each for each in streams if each.spec.name not in engine.away))
        return config, streams

    async def _reload(self, reloader: Reloader, service: Service) -> None:
        """One reload after the other, as long as it serves; what is asked for during one is one more."""
        while True:
            await self._wanted_anew.wait()
            self._wanted_anew.clear()
            self._manager.reloading("reads the configuration again")
            service.reloaded(failed=not await reloader.reload())
            self._manager.ready(headline(service.status()))

    async def _end_reloads(self) -> None:
        self._reloads.cancel()
        await asyncio.wait({self._reloads})

    def _hang_up(self) -> None:
        """SIGHUP: somebody wants a reload, or the terminal that the daemon was started in is gone, which ends it."""
        if self._has_terminal and not os.isatty(_STDERR):
            self.stop()
        elif isinstance(self._given, Mapping):
            log.notice("reload.nothing", "the configuration came from a program: there is no file to read again")
        else:
            self._wanted_anew.set()

    # --- the service manager

    async def _be_watched(self, service: Service, watchdog_s: float) -> None:
        """Says twice a period that all is well, as long as it is; the manager starts the daemon anew otherwise."""
        pulse = Pulse(time.monotonic())
        while True:
            if pulse.beats(asked=service.is_asked, moves=service.moves, now_s=time.monotonic()):
                self._manager.well(headline(service.status()))
            else:
                log.error("daemon.stuck", "batches are asked for and none gets on: waiting to be started anew")
            await asyncio.sleep(watchdog_s / 2)

    # --- the end

    def stop(self) -> None:
        """Asks it to send its trainers away and end, as SIGTERM does."""
        self._stop.set()

    async def _drain(self, service: Service) -> None:
        """Sends everyone away; a second signal ends the wait."""
        log.info("daemon.draining", "sending the trainers away", sessions=service.sessions)
        self._stop.clear()
        self._manager.stopping(f"sends {format_count(service.sessions, 'trainer')} away")
        service.drain()
        try:
            async with asyncio.timeout(DRAIN_S):
                await service.empty(self._stop)
        except TimeoutError:
            log.warning("daemon.drain_timeout", "some trainers did not leave in time", sessions=service.sessions)

    def _shut_down(self, service: Service) -> None:
        service.close()
        self._server.close()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.set_exception_handler(self._fail)

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: the daemon's state is not to be trusted, so it ends, and says why."""
        del loop
        error = context.get("exception")
        log.error("daemon.failed", context.get("message", "a callback failed"), error=error)
        self._failure = self._failure or error or RuntimeError(str(context.get("message")))
        self._stop.set()


def _allow_descriptors() -> int:
    """Slots, trainers and workers take descriptors: as many as the system lets us have; how many that is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _leave() -> NoReturn:
    raise _Stopped


def _first(errors: BaseExceptionGroup[StreamdError]) -> StreamdError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
