"""Finds reasons, other than the data, for which `serve` would refuse: endpoint, monitor, state folder, descriptors.

Nothing is created or locked. The monitor's address is opened for a moment, by the daemon's own code.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.config.schema import Config
from streamd.core.text import escape_unprintable
from streamd.daemon.descriptor_allowance import compute_descriptor_allowance
from streamd.daemon.network_gate_keeper import find_network_keys
from streamd.daemon.served_endpoint import (
    build_endpoint_lock_path,
    build_folder_endpoint_error,
    build_unusable_endpoint_error,
)
from streamd.daemon.start_libraries import import_monitor
from streamd.daemon.streams.catalog import build_unusable_state_error, find_state_directory
from streamd.daemon.streams.manifest_locks import find_lock_holders
from streamd.errors import ConfigError, MissingExtraError
from streamd.ipc import endpoint

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
