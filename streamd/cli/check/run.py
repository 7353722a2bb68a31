"""Runs a check: from a configuration to findings about its data, with progress. Leaves no files behind."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from streamd.cli.check.findings import CheckFindings
from streamd.cli.check.reader_messages import GroupResult, StreamToRead
from streamd.cli.check.reader_pool import ReaderPool
from streamd.cli.check.summary import build_findings
from streamd.cli.check.totals import StreamTotals, choose_counted_ids, choose_sample_ids, split_into_sample_groups
from streamd.cli.terminal.progress import SilentProgress
from streamd.config import locations
from streamd.config.load import add_error_locations, load_config
from streamd.config.rules import list_unserved_settings
from streamd.config.schema import Config
from streamd.core.cluster_settings import LOCAL_ADDRESS
from streamd.core.host import count_processors, hold_temporary_folder
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.text import escape_unprintable
from streamd.daemon.descriptor_allowance import compute_descriptor_allowance
from streamd.daemon.network_gate_keeper import find_network_keys
from streamd.daemon.served_endpoint import (
    build_endpoint_lock_path,
    build_folder_endpoint_error,
    build_unusable_endpoint_error,
)
from streamd.daemon.start_libraries import import_monitor
from streamd.daemon.streams.catalog import (
    build_unusable_state_error,
    find_expected_identities,
    find_state_directory,
    open_streams,
    write_sample_manifests,
)
from streamd.daemon.streams.manifest_locks import find_lock_holders
from streamd.errors import ConfigError, MissingExtraError
from streamd.ipc import endpoint
from streamd.limits import MIB


def inspect_data(path: Path, progress: SilentProgress, max_files: int | None = None) -> CheckFindings:
    """Lists, reads and decodes the data of a configuration: of each stream `max_files` files, evenly spread, or all.

    Raises ConfigError for a configuration with which `streamd serve` would not start, StreamdError when nothing can be
    read.
    """
    config = load_config(path)
    unserved = list_unserved_settings(config)
    served = _drop_unserved_streams(config, unserved)
    obstacles = find_start_obstacles(config)
    refused = [
        escape_unprintable(locations.add_locations(sentence, config.key_locations))
        for sentence in (*unserved, *obstacles.troubles)
    ]
    found = _read_streams(served, progress, max_files)
    notes = found.notes if obstacles.daemon_note is None else [obstacles.daemon_note, *found.notes]
    return replace(found, refused=refused, refused_here=obstacles.refused_here, notes=notes)


def _read_streams(config: Config, progress: SilentProgress, max_files: int | None) -> CheckFindings:
    """Lists, reads and decodes the data of the streams that this version serves as configured."""
    if not config.streams:
        return CheckFindings(config.memory, config.worker_count, {})
    with hold_temporary_folder("streamd-check-") as folder:
        with add_error_locations(config):
            write_sample_manifests(config, folder, progress.update_listing)
            # Without `expect`, which would refuse a stream before its pixels are known; the findings compare both.
            opened = open_streams(config.model_copy(update={"expect": None}), folder)
            streams = [replace(each, expected=find_expected_identities(config, each.spec.name)) for each in opened]
        try:
            tallies = [StreamTotals(each, choose_sample_ids(each.spec.samples, max_files)) for each in streams]
            with add_error_locations(config):
                processes, notes = asyncio.run(_read_all_samples(tallies, config, progress))
            costs = {
                each.stream.spec.name: (
                    each.decode_s * 1e3 / each.samples_read * each.stream.spec.batch_size,
                    compute_slot_bytes(each.stream.spec),
                )
                for each in tallies
                if each.samples_read
            }
            notes += [config.memory_warning] if config.memory_warning else []
            notes += list_cluster_notes(config, costs, os.environ)
            return build_findings(tallies, config, processes, notes=notes)
        finally:
            for stream in streams:
                stream.manifest.close()


def _drop_unserved_streams(config: Config, unserved: Sequence[str]) -> Config:
    """Returns the configuration without the streams that this version does not serve as configured."""
    kept = {
        name: stream
        for name, stream in config.streams.items()
        if not any(sentence.startswith(f"streams.{name}.") for sentence in unserved)
    }
    return config.model_copy(update={"streams": kept})


async def _read_all_samples(
    all_totals: Sequence[StreamTotals], config: Config, progress: SilentProgress
) -> tuple[int, list[str]]:
    """Reads all chosen samples; returns the number of processes that read, and notes on what remained unclear."""
    progress.start_reading(sum(tally.ids.size for tally in all_totals))

    def add_group_result(seen: GroupResult) -> None:
        all_totals[seen.stream].add_group_result(seen)
        progress.advance_reading(len(seen.ids))

    streams = [tally.stream for tally in all_totals]
    to_read = [StreamToRead(stream.spec, str(stream.manifest_path), stream.transform) for stream in streams]
    work = chain.from_iterable(
        split_into_sample_groups(number, tally.ids, choose_counted_ids(tally.ids))
        for number, tally in enumerate(all_totals)
    )
    readers = ReaderPool(to_read, work, add_group_result)
    processes = min(config.worker_count, count_processors())
    await readers.read_all_groups(processes)
    return processes, readers.notes


# --- What `streamd check` says of a cluster that decodes: whether it pays, and whether it is open. Pure.


# Measured (docs/decisions.md): the path through Ray costs this much processor time for each MiB of a batch.
OVERHEAD_MS_A_MIB: Final = 3.8
_PAYS_FROM: Final = 0.6  # of a node's time must be decoding, or the host's own workers are nearly as fast
_AUTH_MODE: Final = "RAY_AUTH_MODE"


def list_cluster_notes(
    config: Config, decode_ms_by_stream: Mapping[str, tuple[float, int]], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yields remarks, a sentence each; none where this host decodes.

    `decode_ms_by_stream` has the milliseconds of decoding one batch, and the bytes of its slot.
    """
    if config.engine.kind != "ray":
        return
    # A cluster that streamd starts for itself asks for a token, unless the mode is set to something else.
    mode = environment.get(_AUTH_MODE, "token" if config.engine.cluster_settings.address == LOCAL_ADDRESS else None)
    if mode != "token":
        what = f"is {mode} here" if mode else "is not set here, and many clusters want no token"
        yield (
            f"engine: {_AUTH_MODE} {what}, so whoever reaches a port of the cluster may run programs there: set "
            f"{_AUTH_MODE}=token for the cluster and for streamd, and keep its ports in a network that you trust"
        )
    for name, (decode_ms, slot_bytes) in decode_ms_by_stream.items():
        share = compute_decoding_share(decode_ms, slot_bytes)
        advice = "a cluster pays" if share >= _PAYS_FROM else "use engine: local, unless this host has too few cores"
        yield (
            f"engine: decoding a batch of {name!r} takes {decode_ms:.1f} ms and sending its {slot_bytes / MIB:.1f} MiB "
            f"through Ray {slot_bytes / MIB * OVERHEAD_MS_A_MIB:.1f} ms, so a node decodes {share:.0%} of its time: "
            f"{advice}"
        )


def compute_decoding_share(decode_ms: float, slot_bytes: int) -> float:
    """Returns the part of a node's time in which it decodes, 0 to 1."""
    overhead_ms = slot_bytes / MIB * OVERHEAD_MS_A_MIB
    return decode_ms / (decode_ms + overhead_ms) if decode_ms > 0 else 0.0


# --- Finds reasons, other than the data, for which `serve` would refuse: endpoint, monitor, state folder, descriptors.
#
# Nothing is created or locked. The monitor's address is opened for a moment, by the daemon's own code.


# Errors that depend on the user or on the moment, and not on the configuration.
_PASSING_ERRORS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EADDRINUSE})


@dataclass(frozen=True, slots=True)
class StartObstacles:
    """Reasons for which a daemon would not start.

    troubles: reasons in the configuration.
    refused_here: reasons that depend on the user, the environment or the moment; a service uses other folders.
    daemon_note: names the daemon that serves at the endpoint already, if there is one.
    """

    troubles: list[str]
    refused_here: list[str]
    daemon_note: str | None = None


def find_start_obstacles(config: Config) -> StartObstacles:
    """Finds the reasons for which this user could not start a daemon here and now.

    Raises MissingExtraError if a library of the monitor is missing.
    """
    address = config.local_endpoint or endpoint.default_endpoint()
    daemon_note = _find_daemon_note(endpoint.socket_path(address))
    of_config: list[ConfigError] = []
    of_environment = [*_find_refusal(_check_state_folder), *_find_refusal(lambda: _check_descriptors(config))]
    has_secret = config.curve is not None and config.curve.secret is not None  # else it comes from a service manager
    (of_config if has_secret else of_environment).extend(_find_refusal(lambda: _check_keys(config)))
    if daemon_note is None:  # else it has the endpoint, and perhaps the monitor's address
        (of_config if config.listen else of_environment).extend(_find_refusal(lambda: _check_endpoint(address)))
        of_config += _find_refusal(lambda: _check_monitor_address(config.monitor))
    troubles = [error for error in of_config if not _may_pass_elsewhere(error)]
    of_environment += [error for error in of_config if _may_pass_elsewhere(error)]
    return StartObstacles(
        [escape_unprintable(str(error)) for error in troubles],
        [escape_unprintable(str(error)) for error in of_environment],
        daemon_note,
    )


def _find_refusal(check: Callable[[], None]) -> list[ConfigError]:
    try:
        check()
    except MissingExtraError:  # must be remedied before all others
        raise
    except ConfigError as error:
        return [error]
    return []


def _may_pass_elsewhere(error: ConfigError) -> bool:
    """Returns whether another user, or the same one at another time, may succeed."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING_ERRORS


def _find_daemon_note(path: Path) -> str | None:
    """Returns a note about the daemon that serves at a socket already; None if this user can see none."""
    pids = sorted(find_lock_holders(build_endpoint_lock_path(path)))
    if not pids:
        return None
    return escape_unprintable(
        f"a daemon (pid {pids[0]}) serves at {path}: kill -HUP {pids[0]} makes it read its configuration again; a "
        "second daemon needs a different `listen:`"
    )


def _check_endpoint(address: str) -> None:
    """Raises ConfigError for an endpoint at which this user cannot listen; other kinds of endpoints are not served."""
    if not address.startswith("ipc://"):
        return
    endpoint.check_endpoint(address)
    path = endpoint.socket_path(address)
    lock = build_endpoint_lock_path(path)
    error = _find_unusable_folder(path.parent)
    if error is None and os.path.lexists(lock) and not os.access(lock, os.R_OK | os.W_OK):
        error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(lock))
    if error is not None:
        raise build_unusable_endpoint_error(path, error) from error
    if path.is_dir():
        raise build_folder_endpoint_error(path)


def _check_state_folder() -> None:
    """Raises ConfigError for a state folder in which this user cannot write."""
    state = find_state_directory()
    error = _find_unusable_folder(state)
    if error is not None:
        raise build_unusable_state_error(state, error) from error


def _find_unusable_folder(folder: Path) -> OSError | None:
    """Returns why this user cannot write in a folder, or create a missing one; None if this is possible."""
    nearest = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    try:
        is_folder = nearest.is_dir()
    except OSError as error:  # a link to a folder that this user cannot enter
        return error
    if not is_folder:
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))
    return None


def _check_descriptors(config: Config) -> None:
    """Raises ConfigError when the descriptors that this environment allows are too few for the daemon."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    compute_descriptor_allowance(
        most, workers=config.worker_count, streams=len(config.streams), is_monitored=config.monitor is not None
    )


def _check_keys(config: Config) -> None:
    """Raises ConfigError when the keys for other hosts cannot be read."""
    if config.remote_endpoints and config.curve is not None:
        find_network_keys(config.curve.secret, config.curve.clients)


def _check_monitor_address(address: str | None) -> None:
    """Raises ConfigError for an address at which the monitor cannot listen."""
    if address is not None:
        asyncio.run(_open_and_close_monitor(address))


async def _open_and_close_monitor(address: str) -> None:
    monitor = import_monitor()(address)
    await monitor.start_listening()
    await monitor.close()
