"""The daemon's life: start, serve, drain, shut down.

SIGTERM and SIGINT drain and end it. SIGHUP reloads the configuration while it serves.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamd.config.load import ConfigInput, add_error_locations, load_config
from streamd.config.rules import list_unserved_settings
from streamd.config.schema import Config
from streamd.core import log
from streamd.core.counters import ProcessStats
from streamd.core.text import format_count, format_list
from streamd.daemon.batch_sender import SpawnTask
from streamd.daemon.data_watch import (
    FileSystemEvents,
    build_place_lookups,
    wait_for_mount,
    warn_of_newer_label_files,
)
from streamd.daemon.descriptor_allowance import compute_descriptor_allowance
from streamd.daemon.dispatcher import Dispatcher
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.engine.worker_pool import hire_workers
from streamd.daemon.gate_keeper import GateKeeper, NetworkKeys, find_network_keys
from streamd.daemon.reload import Reloader, keep_daemon_settings, log_reload_refusal, log_served_streams
from streamd.daemon.served_endpoint import PRIVATE_MODE, ServedEndpoint
from streamd.daemon.sessions import OWN_USER
from streamd.daemon.start_libraries import import_monitor
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.catalog import (
    build_lock_paths,
    find_state_directory,
    find_unlisted_streams,
    has_all_manifests,
    make_state_folder,
    open_streams,
)
from streamd.daemon.streams.listing_process import list_samples_in_process
from streamd.daemon.streams.manifest_locks import ManifestLocks, acquire_shared_locks
from streamd.daemon.streams.served_stream import ServedStream, measure_shuffles_in_thread
from streamd.daemon.systemd import HandedSockets, ProgressWatch, ServiceManager, format_status_headline
from streamd.errors import ConfigError, StreamdError
from streamd.ipc import endpoint
from streamd.ipc.messages import MonitorAt
from streamd.ipc.router import FrameSender, Router
from streamd.ipc.slots import SlotStore
from streamd.limits import DRAIN_S, FILES_CHECK_S, FILES_PAUSE_S
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from streamd.daemon.monitor.http_server import Monitor  # imports a large library

_STDERR_DESCRIPTOR: Final = 2
_SHOWN_FILES: Final = 3  # of those removed, in a line


class _DaemonStopped(Exception):  # noqa: N818 - no error
    """Ends the task group of a daemon that was asked to stop."""


class Daemon:
    """One run of `streamd serve`.

    `address` is the only address that is served, whatever the configuration names. `on_ready` is called when trainers
    are served. `manager` receives status notifications; `handed_sockets`, which it handed over, are the endpoint.
    """

    def __init__(
        self,
        config_source: ConfigInput,
        *,
        state: Path | None = None,
        rescan: bool = False,
        address: str | None = None,
        on_ready: Callable[[], None] = lambda: None,
        manager: ServiceManager | None = None,
        handed_sockets: HandedSockets | None = None,
    ) -> None:
        self._config_source = config_source
        self._address = address
        self._on_ready = on_ready
        self._manager = manager or ServiceManager()
        self._config = config = self._load_config()
        self._state = state or find_state_directory()
        self._rescan = rescan
        self._locks = ManifestLocks()
        self._stop_requested = asyncio.Event()
        self._reload_requested = asyncio.Event()
        self._failure: BaseException | None = None
        self._slots = SlotStore()
        self._stats = ProcessStats()
        self._has_terminal = os.isatty(_STDERR_DESCRIPTOR)
        # Slots, trainers and workers need descriptors: as many as are allowed.
        _, most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptors, most_descriptors))
        self._allowance = compute_descriptor_allowance(
            most_descriptors,
            workers=config.worker_count,
            streams=len(config.streams),
            is_monitored=config.monitor is not None,
            network_gates=len(config.remote_endpoints),
        )
        address = config.local_endpoint or endpoint.default_endpoint()
        self._network_keys: NetworkKeys | None = None
        if config.remote_endpoints and config.curve is not None:
            with add_error_locations(config):
                self._network_keys = find_network_keys(config.curve.secret, config.curve.clients)
        self._endpoint = ServedEndpoint(address, handed_sockets, is_private=self._address is not None)
        self._router: Router | None = None
        self._gate_keeper: GateKeeper | None = None

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT. Raises the error that ended it otherwise."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        loop.add_signal_handler(signal.SIGHUP, self._handle_sighup)
        loop.set_exception_handler(self._stop_on_loop_error)
        try:
            async with asyncio.TaskGroup() as group:
                dispatcher = await self._wait_for_start_or_stop(self._start_serving(group))
                await self._stop_requested.wait()
                # A reload would replace streams while their trainers are being sent away.
                self._reloads.cancel()
                await asyncio.wait({self._reloads})
                # All trainers are sent away, and have DRAIN_S to leave. A second signal ends the wait.
                log.info("daemon.draining", "disconnecting the trainers", sessions=dispatcher.session_count)
                # The first signal has set this event. Cleared, it reports the second one.
                self._stop_requested.clear()
                self._manager.notify("stopping", f"disconnecting {format_count(dispatcher.session_count, 'trainer')}")
                dispatcher.drain_sessions()
                try:
                    async with asyncio.timeout(DRAIN_S):
                        await dispatcher.wait_until_no_sessions(self._stop_requested)
                except TimeoutError:
                    log.warning(
                        "daemon.drain_timeout", "some trainers did not leave in time", sessions=dispatcher.session_count
                    )
                await dispatcher.close()
                self._close_endpoint()
                raise _DaemonStopped  # noqa: TRY301 - it leaves the task group, and everything in it
        except* _DaemonStopped:
            log.info("daemon.stopped", "done")
        except* StreamdError as errors:
            raise _find_first_error(errors) from errors
        finally:
            # Every task of the group has ended, the engine and its workers with it, so nothing uses these any more.
            self._close_endpoint()
            self._slots.close()
        if self._failure is not None:
            raise self._failure

    async def _wait_for_start_or_stop(self, start: Coroutine[None, None, Dispatcher]) -> Dispatcher:
        """Awaits the start and returns its result. Raises _DaemonStopped if a stop is requested first."""
        starting, stopped = asyncio.ensure_future(start), asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise _DaemonStopped
            return starting.result()
        finally:
            # A cancelled start has to finish its clean-up first: it kills the process that lists samples.
            starting.cancel()
            stopped.cancel()
            await asyncio.wait({starting, stopped})
            # A start that fails since the group is ending already would be logged as an error that nobody has seen.
            if not starting.cancelled():
                starting.exception()

    async def _start_serving(self, group: asyncio.TaskGroup) -> Dispatcher:
        """Lists the data, starts the workers, opens the endpoint."""
        # The lock comes first: while another daemon serves this endpoint, its manifests must not be listed again.
        config, began_s = self._config, time.monotonic()
        self._endpoint.lock()
        if warning := config.memory_warning:
            log.warning("memory.beyond", warning)
        opening = group.create_task(self._open_monitor(group), name="opening the monitor")
        self._manager.notify("starting", "lists the samples")
        config = await self._wait_for_data_places(config)
        streams = await self._list_and_open_streams(config, list_again=self._rescan)
        engine = BatchEngine(streams, self._slots, self._stats, hire_workers(config))
        await engine.find_missing_data()
        self._manager.notify("starting", "starts the workers")
        _spawn_task(group, engine.run(), name="engine")
        await measure_shuffles_in_thread(streams)  # while the workers start, before any status is built
        with add_error_locations(config):
            pixel_ids = await engine.wait_for_pixel_ids()
        monitor = await opening
        served = {
            each.spec.name: replace(each, spec=replace(each.spec, pixel_id=pixel_ids[each.spec.name]))
            for each in streams
        }
        with self._report_listen_errors():
            sender = self._open_endpoint()
        # A reload during the wait for the data has kept the settings of the daemon, its memory and workers among them.
        limits = SchedulerLimits(config.memory, config.worker_count, self._allowance.slots, OWN_USER)
        dispatcher = Dispatcher(
            served,
            scheduler=Scheduler([each.stream_shape for each in streams], limits),
            engine=engine,
            slots=self._slots,
            router=sender,
            stats=self._stats,
            status_builder=StatusBuilder(
                served, config.worker_count, config.memory, self._endpoint.address, self._stats, time.monotonic()
            ),
            spawn=partial(_spawn_task, group),
            allowance=self._allowance,
            monitor=MonitorAt(monitor.url, monitor.token) if monitor else None,
        )
        await self._start_listening(dispatcher, partial(_spawn_task, group))
        if monitor is not None:
            monitor.set_monitored_daemon(dispatcher)
        reloader = Reloader(config, partial(self._load_config_and_streams, engine), dispatcher, engine, self._allowance)
        self._reloads = _spawn_task(group, self._reload_on_request(reloader, dispatcher), name="reloads")
        log_served_streams(streams, config)
        warn_of_newer_label_files(config, streams, engine.streams_without_data)
        _spawn_task(group, self._keep_files(dispatcher), name="files")
        # Trainers are served now: the log, the service manager and `on_ready` hear of it.
        log.info(
            "daemon.ready",
            f"serving at {self._endpoint.address}",
            pid=os.getpid(),
            workers=config.worker_count,
            seconds=time.monotonic() - began_s,
        )
        self._manager.notify("ready", format_status_headline(dispatcher.build_status()))
        if self._manager.watchdog_s is not None:
            _spawn_task(group, self._notify_watchdog(dispatcher, self._manager.watchdog_s), name="watchdog")
        self._on_ready()
        return dispatcher

    def _open_endpoint(self) -> FrameSender:
        """Prepares the sockets of the endpoint, and returns what sends to its clients. Raises OSError."""
        served, most = self._endpoint, self._allowance.max_connection_descriptors
        folder = served.create_gate_folder() if served.is_gated else None
        if folder is not None:
            self._router = Router(endpoint.own_socket_path(folder), PRIVATE_MODE, max_descriptors=most)
        else:
            self._router = Router(served.path, PRIVATE_MODE, handed=served.handed_socket, max_descriptors=most)
            if self._network_keys is None:
                return self._router
        self._gate_keeper = GateKeeper(self._router, folder, most_gates=self._allowance.gates)
        return self._gate_keeper

    async def _start_listening(self, dispatcher: Dispatcher, spawn: SpawnTask) -> None:
        """Serves clients from now on. Raises ConfigError."""
        assert self._router is not None  # noqa: S101 - _open_endpoint has set it
        keeper, served = self._gate_keeper, self._endpoint
        descriptors = endpoint.descriptor_socket_path(self._router.path)
        with self._report_listen_errors():
            is_gated = served.gate_folder is not None
            handed = None if is_gated else served.handed_descriptor_socket
            # The descriptor socket comes first, since a welcome sends trainers there.
            dispatcher.descriptor_server.start_listening(descriptors, PRIVATE_MODE, handed)
            self._router.start_listening(dispatcher.handle_frame)
            if keeper is not None:
                keeper.start(dispatcher, spawn, served.open_public_socket() if is_gated else None)
        if keeper is not None and self._network_keys is not None:
            with add_error_locations(self._config):
                await keeper.serve_addresses(self._config.remote_endpoints, self._network_keys, descriptors)

    @contextmanager
    def _report_listen_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._endpoint.address}: {error.strerror or error}") from error

    async def _keep_files(self, dispatcher: Dispatcher) -> None:
        """Makes the endpoint anew when files of it are removed. Raises StreamdError if it cannot, or state is gone."""
        events, told, has_failed = FileSystemEvents(), set[Path](), False
        try:
            while True:
                gates = self._gate_keeper.list_socket_folders() if self._gate_keeper is not None else []
                # Watched before they are looked at, so that nothing is removed in between unseen.
                events.watch_folders([self._state, *self._endpoint.folders, *gates])
                # Files of the endpoint that are gone are made anew.
                served, keeper, router = self._endpoint, self._gate_keeper, self._router
                assert router is not None  # noqa: S101 - _open_endpoint has set it
                try:
                    gone = served.renew_lock_and_folders()
                    gone += [router.path] if router.renew_if_gone() else []
                    if dispatcher.descriptor_server.renew_if_gone():
                        gone.append(Path(endpoint.descriptor_socket_path(router.path)))
                    if keeper is not None:
                        if served.is_door_gone:
                            keeper.listen_anew(served.open_public_socket())
                            gone.append(served.path)
                        gone += keeper.end_unreachable_gates()
                    has_failed = False
                except (OSError, ConfigError) as error:
                    # A folder may have been removed after it was looked at; the next look makes it anew.
                    if not has_failed:
                        has_failed = True
                        await asyncio.sleep(FILES_PAUSE_S)
                        continue
                    raise StreamdError(
                        f"the files of {served.address} were removed while it was served, and cannot be made anew: "
                        f"{error}"
                    ) from error
                if gone:
                    names = format_list([str(each) for each in gone], _SHOWN_FILES)
                    log.warning("endpoint.gone", f"made anew after they were removed: {names}; trainers go on")
                    continue  # new folders are to be watched
                self._check_manifests(dispatcher, told)
                await events.wait_for_change(None if events.sees_folders else FILES_CHECK_S)
                await asyncio.sleep(FILES_PAUSE_S)
        finally:
            events.close()

    @staticmethod
    def _check_manifests(dispatcher: Dispatcher, told: set[Path]) -> None:
        """Warns once of each list of samples that is gone. Raises StreamdError if its folder is."""
        for stream in dispatcher.streams.values():
            path = Path(stream.manifest.path)
            if os.path.lexists(path):
                told.discard(path)
            elif not os.path.lexists(path.parent):
                raise StreamdError(
                    f"{path} was removed while it was served: start the daemon again, which lists the samples anew, "
                    "and keep STATE_DIRECTORY out of folders that something cleans"
                )
            elif path not in told:
                told.add(path)
                log.warning(
                    "endpoint.gone",
                    f"{path} was removed while it was served: a reload (kill -HUP) lists the samples anew; until then "
                    "trainers go on, but no worker can start again",
                )

    def _close_endpoint(self) -> None:
        if self._gate_keeper is not None:
            self._gate_keeper.close()
        if self._router is not None:
            self._router.close()
        self._endpoint.close()

    async def _open_monitor(self, group: asyncio.TaskGroup) -> Monitor | None:
        """Starts the HTTP server and returns it; None if the configuration has no monitor.

        It starts early, so that a daemon that lists samples for long is seen as healthy, though not ready. Its large
        library is imported in a thread, while the workers start.
        """
        if self._config.monitor is None:
            return None
        server = await asyncio.to_thread(import_monitor)
        monitor = server(self._config.monitor)
        with add_error_locations(self._config):
            await monitor.start_listening()
        _spawn_task(group, monitor.run(), name="monitor")
        log.info("monitor.ready", f"dashboard at {monitor.url}/, metrics at {monitor.url}/metrics")
        return monitor

    def _load_config(self) -> Config:
        """Loads the configuration. Raises ConfigError, also for settings that this version does not serve."""
        config = load_config(self._config_source)
        if self._address is not None:
            config = config.model_copy(update={"listen": (self._address,), "curve": None, "monitor": None})
        with add_error_locations(config):
            if unserved := list_unserved_settings(config):
                raise ConfigError("\n".join(unserved))
        return config

    async def _wait_for_data_places(self, config: Config) -> Config:
        """Under a service manager, waits until the data to be listed are there: file systems may be mounted late.

        Without a manager it does not wait, and the listing reports what is missing. Returns the configuration to
        continue with, since SIGHUP reloads it during the wait.
        """
        lookups, reported = None, ""
        while self._manager.address is not None:
            # A stream with a manifest needs no listing, and the engine waits for its data while others are served.
            if lookups is None:
                wanted = config.streams if self._rescan else find_unlisted_streams(config, self._state)
                lookups = build_place_lookups(stream for name, stream in config.streams.items() if name in wanted)
            answers = await asyncio.gather(*(each.wait_for_answer() for each in lookups))
            absent = "; ".join(reason for reason in dict.fromkeys(answers) if reason)
            if not absent:
                break
            if absent != reported:
                reported = absent
                log.error(
                    "data.absent",
                    f"the daemon waits for data: {absent}; mount it, or correct the path and restart or send SIGHUP",
                )
                self._manager.notify("starting", f"waits for {absent}")
            await wait_for_mount(self._reload_requested)
            if self._reload_requested.is_set():
                self._reload_requested.clear()
                # The streams are those that are written now; after a mistake, those that were there.
                log.notice("reload.began", "reading the configuration again")
                try:
                    config = keep_daemon_settings(config, self._load_config())
                except (StreamdError, OSError) as error:
                    log_reload_refusal(error)
                lookups, reported = None, ""
        return config

    async def _list_and_open_streams(self, config: Config, *, list_again: bool) -> list[ServedStream]:
        """Opens the configuration's streams. First lists those without a manifest, or all of them with `list_again`."""
        with add_error_locations(config):
            make_state_folder(self._state)
        locks = self._locks.get_or_create_locks(build_lock_paths(config, self._state))
        if list_again or not (has_all_manifests(config, self._state) and acquire_shared_locks(locks.values())):
            # The process lists the samples, and this daemon then holds shared locks, so that no other replaces the
            # lists.
            listed = False
            while not listed:
                # The listing process needs these locks exclusively, so this daemon releases those that it holds.
                for name in config.streams if list_again else find_unlisted_streams(config, self._state):
                    locks[name].release_lock()
                try:
                    await list_samples_in_process(self._config_source, self._state, list_again=list_again)
                finally:
                    # This fails while another process lists the same samples. The next listing process waits for it.
                    listed = acquire_shared_locks(locks.values())
                list_again = False
                # The listing process has read the configuration by itself, and may have found other streams in it.
                if find_unlisted_streams(config, self._state):
                    raise ConfigError(f"{self._config_source}: it was changed while its samples were listed; try again")
        with add_error_locations(config):
            return [replace(each, manifest_lock=locks[each.spec.name]) for each in open_streams(config, self._state)]

    # --- reloading

    async def _load_config_and_streams(self, engine: BatchEngine) -> tuple[Config, list[ServedStream]]:
        config = self._load_config()
        streams = await self._list_and_open_streams(config, list_again=False)
        warn_of_newer_label_files(config, streams, engine.streams_without_data)
        return config, streams

    async def _reload_on_request(self, reloader: Reloader, dispatcher: Dispatcher) -> None:
        """Reloads on request until cancelled, one reload at a time. Requests during a reload cause one more."""
        while True:
            await self._reload_requested.wait()
            # Cleared before the configuration is read, so that a later change is never missed.
            self._reload_requested.clear()
            self._manager.notify("reloading", "reads the configuration again")
            dispatcher.set_reload_failed(failed=not await reloader.reload_streams())
            self._manager.notify("ready", format_status_headline(dispatcher.build_status()))

    def _handle_sighup(self) -> None:
        """Requests a reload; or a stop, if the daemon was started in a terminal and the terminal is gone."""
        if self._has_terminal and not os.isatty(_STDERR_DESCRIPTOR):
            self.request_stop()
        elif isinstance(self._config_source, Mapping):
            log.notice(
                "reload.nothing",
                "there is no configuration file to read again; a restart with --rescan lists new files",
            )
        else:
            self._reload_requested.set()

    # --- the service manager

    async def _notify_watchdog(self, dispatcher: Dispatcher, watchdog_s: float) -> None:
        """Notifies the service manager twice a period while work progresses; it restarts the daemon otherwise."""
        progress_watch = ProgressWatch(time.monotonic())
        while True:
            if progress_watch.is_progressing(
                is_producing=dispatcher.is_producing,
                progress_count=dispatcher.finished_work_count,
                now_s=time.monotonic(),
            ):
                self._manager.notify("working", format_status_headline(dispatcher.build_status()))
            else:
                log.error("daemon.stuck", "batches are requested, but none makes progress: waiting to be restarted")
            await asyncio.sleep(watchdog_s / 2)

    # --- the end

    def request_stop(self) -> None:
        """Requests that the daemon drains its sessions and ends, as SIGTERM does."""
        self._stop_requested.set()

    def _stop_on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Ends the daemon after a callback raised, since its state cannot be trusted. `run` raises the error."""
        del loop
        error = context.get("exception")
        log.error("daemon.failed", context.get("message", "a callback failed"), error=error)
        self._failure = self._failure or error or RuntimeError(str(context.get("message")))
        self._stop_requested.set()


def _spawn_task(
    group: asyncio.TaskGroup, coroutine: Coroutine[Any, Any, None], *, name: str | None = None
) -> asyncio.Task[None]:
    """Starts a task of the daemon. Raises RuntimeError while the group is ending.

    The coroutine is closed then, as asyncio itself does from Python 3.13 on: else it keeps what the task would close.
    """
    try:
        return group.create_task(coroutine, name=name)
    except RuntimeError:
        coroutine.close()
        raise


def _find_first_error(errors: BaseExceptionGroup[StreamdError]) -> StreamdError:
    error = errors.exceptions[0]
    return _find_first_error(error) if isinstance(error, BaseExceptionGroup) else error
