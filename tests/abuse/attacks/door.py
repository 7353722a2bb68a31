"""Attacks on the path that all users know, and on files and processes beyond it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from target import Attack, Target
from wire import connect_socket, read_path

from streamd.ipc.endpoint import descriptor_socket_path, gate_folder, own_socket_path

_GARBAGE_BYTES: Final = 4096
_SILENT: Final = 100
_DROPPED: Final = 250
_PAUSE_S: Final = 0.01
_CREDENTIALS: Final = struct.Struct("3i")


def send_garbage_to_door(target: Target) -> dict[str, int]:
    """Sends bytes without sense to the public path."""
    for _ in range(20):
        link = connect_socket(read_path(target.public))
        try:
            link.sendall(os.urandom(_GARBAGE_BYTES))
        except OSError:
            continue  # it was closed before all was sent
        finally:
            link.close()
    return {"connections with garbage": 20}


def flood_door(target: Target) -> dict[str, int]:
    """Connects to the public path and closes, again and again."""
    for _ in range(_DROPPED):
        connect_socket(read_path(target.public)).close()
    return {"connections to the public path": _DROPPED}


def never_read_door(target: Target) -> dict[str, int]:
    """Keeps connections to the public path open, and reads nothing."""
    if len(target.kept) >= _SILENT:
        target.kept.pop(0).close()
    target.kept.append(connect_socket(read_path(target.public)))
    time.sleep(_PAUSE_S)
    return {"connections that never read": 1}


def reach_beyond_socket(target: Target) -> dict[str, int]:
    """Tries what no client has to: the socket's place, the daemon's process and its files."""
    path = Path(read_path(target.public))
    daemon = _find_listener(path)
    tries: list[Callable[[], object]] = [
        path.unlink,
        lambda: path.rename(path.with_suffix(".old")),
        lambda: socket.socket(socket.AF_UNIX).bind(str(path)),
        lambda: socket.socket(socket.AF_UNIX).bind(str(path.parent / "other")),
        lambda: path.chmod(0o777),
        lambda: os.open(f"{path}.lock", os.O_RDWR),
    ]
    if daemon:
        tries += [
            lambda: os.listdir(f"/proc/{daemon}/fd"),  # noqa: PTH208 - to be refused is all that it is for
            lambda: os.open(f"/proc/{daemon}/mem", os.O_RDONLY),
            lambda: os.kill(daemon, signal.SIGKILL),
        ]
    return _try_all(tries)


def enter_as_stranger(target: Target) -> dict[str, int]:
    """Tries to reach the daemon's sockets as one who is not of the group."""
    public = Path(read_path(target.public))
    own = own_socket_path(gate_folder(public))
    paths = {str(public), str(own), descriptor_socket_path(own)}
    kinds = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
    return _try_all([lambda path=path, kind=kind: connect_socket(path, kind) for path in paths for kind in kinds])  # type: ignore[misc]  # mypy knows no lambda with defaults


def _try_all(tries: list[Callable[[], object]]) -> dict[str, int]:
    done = 0
    for attempt in tries:
        try:
            attempt()
            done += 1
        except OSError:
            continue
    time.sleep(_PAUSE_S)
    return {"attempts denied": len(tries) - done, "attempts allowed": done}


def _find_listener(path: Path) -> int:
    """Returns the pid of the process that serves a path; 0 if it cannot be known."""
    try:
        with connect_socket(str(path)) as link:
            peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return 0
    return int(_CREDENTIALS.unpack(peer)[0])


ATTACKS: Final[tuple[Attack, ...]] = (
    enter_as_stranger,
    flood_door,
    never_read_door,
    reach_beyond_socket,
    send_garbage_to_door,
)
