"""The endpoint of a daemon on disk: its lock, its sockets, and the folder with the sockets behind its door.

If only the daemon's own user can connect to the path, the daemon serves it itself. Otherwise a *door*, a process of its
own, listens there, and refers each client to another socket in the gate folder: clients of the daemon's own user to
`own/s`, which the daemon serves itself, and those of any other user to the gate of this user.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamd.core.host import list_runtime_folders
from streamd.daemon.systemd import HandedSockets, choose_endpoint_sockets
from streamd.errors import ConfigError
from streamd.ipc import endpoint
from streamd.limits import DOOR_BACKLOG

PRIVATE_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o660
_OWN_FOLDER_MODE: Final = 0o700
_GATE_NAME_LENGTH: Final = 25  # of a gate's folder and its socket, with the descriptor socket's suffix


class ServedEndpoint:
    """An ipc endpoint, locked against a second daemon.

    Sockets that the service manager handed over are used as they are, and outlive the daemon. With `is_private`, a
    socket that the daemon makes itself is for its own user alone; otherwise also for its group.
    """

    def __init__(
        self,
        address: str,
        handed_sockets: HandedSockets | None = None,
        *,
        is_private: bool = False,
    ) -> None:
        """Raises ConfigError for an invalid endpoint, or one that differs from the sockets that were handed over."""
        endpoint.check_endpoint(address)
        self.address = address
        self.path = endpoint.socket_path(address)
        self._mode = PRIVATE_MODE if is_private else PUBLIC_MODE
        self.handed_socket, self.handed_descriptor_socket = choose_endpoint_sockets(
            handed_sockets or {}, self.path, Path(endpoint.descriptor_socket_path(self.path))
        )
        self.gate_folder: Path | None = None
        self._place: tuple[int, int] | None = None  # of the door's socket, as the file system knows it
        self._lock_descriptor: int | None = None

    @property
    def is_gated(self) -> bool:
        """Whether users other than the daemon's own may connect, so that a door listens at the path."""
        if self.handed_socket is None:
            return endpoint.is_open_to_others(self._mode)
        try:
            return endpoint.is_open_to_others(stat.S_IMODE(self.path.stat().st_mode))
        except FileNotFoundError as error:
            raise ConfigError(_build_handed_error(self.path)) from error

    def lock(self) -> None:
        """Locks the endpoint, and removes the sockets of a daemon that has died.

        Without the lock, ZeroMQ would take the endpoint from a living daemon. A daemon locks it before anything else:
        otherwise --rescan could replace manifests that another daemon has mapped. Raises ConfigError when the endpoint
        is taken.
        """
        if self._lock_descriptor is None:
            self._lock_descriptor = _open_endpoint_lock(self.path)
            self._remove_files()

    def open_public_socket(self) -> socket.socket:
        """Returns the socket at the path, on which the door accepts clients. Raises OSError."""
        if self.handed_socket is not None:
            return self.handed_socket
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.setblocking(False)
            listener.bind(str(self.path))
            self.path.chmod(self._mode)
            listener.listen(DOOR_BACKLOG)
            self._place = endpoint.identify_file(self.path)
        except BaseException:
            listener.close()
            raise
        return listener

    def create_gate_folder(self) -> Path:
        """Creates the gate folder, and in it that of the own socket; returns the gate folder. Raises OSError."""
        # The folder lies beside the socket, or, if this cannot be, in a runtime folder.
        beside = endpoint.gate_folder(self.path)
        try:
            if not endpoint.fits_socket_path(beside / ("x" * _GATE_NAME_LENGTH)):
                raise OSError(f"{self.path} leaves no room for the sockets of gates")  # noqa: TRY301 - handled as one below
            endpoint.create_folder_with_mode(beside, endpoint.GATE_FOLDER_MODE)
        except OSError:
            for place in (*list_runtime_folders().values(), None):
                with suppress(OSError):
                    beside = Path(tempfile.mkdtemp(prefix="streamd-", suffix=".d", dir=place))
                    break
            else:
                raise
            beside.chmod(endpoint.GATE_FOLDER_MODE)  # mkdtemp makes it for this user alone
        self.gate_folder = folder = beside
        endpoint.create_folder_with_mode(endpoint.own_socket_path(folder).parent, _OWN_FOLDER_MODE)
        return folder

    @property
    def is_door_gone(self) -> bool:
        """Whether the door's socket, which `open_public_socket` made, is no longer at the path."""
        return self._place is not None and endpoint.identify_file(self.path) != self._place

    @property
    def folders(self) -> list[Path]:
        """The folders that the files of this endpoint lie in."""
        gates = self.gate_folder
        return [self.path.parent, *([gates, endpoint.own_socket_path(gates).parent] if gates is not None else [])]

    def renew_lock_and_folders(self) -> list[Path]:
        """Takes the lock and makes the folders again, as far as they are gone; returns what was gone.

        Raises OSError, and ConfigError, also where a socket is gone that the service manager has made.
        """
        gone = []
        handed = self.handed_socket is not None or self.handed_descriptor_socket is not None
        if handed and not self.path.exists():
            raise ConfigError(_build_handed_error(self.path))
        lock, held = build_endpoint_lock_path(self.path), self._lock_descriptor
        if held is not None and endpoint.identify_file(lock) != (os.fstat(held).st_dev, os.fstat(held).st_ino):
            self._lock_descriptor = _open_endpoint_lock(self.path)
            os.close(held)
            gone.append(lock)
        modes = (endpoint.GATE_FOLDER_MODE, _OWN_FOLDER_MODE)
        for folder, mode in zip(self.folders[1:], modes, strict=False):
            if not _is_own_folder(folder):
                endpoint.create_folder_with_mode(folder, mode)
                gone.append(folder)
        return gone

    def close(self) -> None:
        """Removes the sockets, and releases the endpoint."""
        # The files are removed before the lock is released: the next daemon takes the lock, and then makes its own
        # files.
        if self._lock_descriptor is not None:
            with suppress(OSError):  # something else lies in their place
                self._remove_files()
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        for each in (self.handed_socket, self.handed_descriptor_socket):
            if each is not None:
                each.close()

    def _remove_files(self) -> None:
        folder = self.gate_folder or endpoint.gate_folder(self.path)
        if _is_own_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)
        if self.handed_socket is None:
            self.path.unlink(missing_ok=True)
        if self.handed_descriptor_socket is None:
            Path(endpoint.descriptor_socket_path(self.path)).unlink(missing_ok=True)


def _is_own_folder(folder: Path) -> bool:
    """Whether a path is a folder, and no link, that belongs to this user."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def _build_handed_error(path: Path) -> str:
    return (
        f"{path}: the socket that the service manager made there is gone, so no trainer finds it: restart the socket's "
        "unit, such as  systemctl restart streamd.socket  which starts the daemon, too"
    )


def build_endpoint_lock_path(path: Path) -> Path:
    """Returns the path of the lock file beside a socket."""
    return Path(f"{path}.lock")


def build_folder_endpoint_error(path: Path) -> ConfigError:
    """Returns the error for a socket's path that is a folder."""
    return ConfigError(
        f"cannot listen on {path}: it is a folder; give the path of a file in it, such as {path}/streamd.sock"
    )


def build_unusable_endpoint_error(path: Path, error: OSError) -> ConfigError:
    """Returns the error for a socket's path that cannot be written."""
    is_default = path in endpoint.default_socket_paths()
    variable = ", or set XDG_RUNTIME_DIR to a folder that you can write to" if is_default else ""
    return ConfigError(
        f"cannot listen on {path}: {error.strerror}: {error.filename}; choose another endpoint with `listen:`{variable}"
    )


def _open_endpoint_lock(path: Path) -> int:
    """Takes the exclusive lock beside a socket; returns its descriptor. Raises ConfigError if that is not possible."""
    if path.is_dir():
        raise build_folder_endpoint_error(path)
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = build_endpoint_lock_path(path)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise build_unusable_endpoint_error(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(
            f"another streamd is already listening on {path}: stop it, or choose another endpoint with `listen:`"
        ) from error
    return descriptor
