"""The endpoint at which daemon and client meet. Without a setting, both sides find it by the same rule."""

from __future__ import annotations

import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamd.core.host import list_runtime_folders
from streamd.core.text import shorten_text
from streamd.errors import ConfigError, ConnectError
from streamd.limits import REFERRAL_BYTES

_IPC: Final = "ipc://"
_TCP: Final = "tcp://"
_HOST_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_MAX_PORT: Final = 65535
_DESCRIPTORS: Final = ".fd"  # the suffix of the descriptor socket
_MAX_PATH_BYTES: Final = 107 - len(_DESCRIPTORS)  # sun_path, less its end and the descriptor socket's suffix
_START_REMEDY: Final = "start `streamd serve --config config.yaml`, or give the daemon's endpoint"
COMMAND_REMEDY: Final = f"{_START_REMEDY} (--endpoint, $STREAMD_ENDPOINT)"
PYTHON_REMEDY: Final = f'{_START_REMEDY}: connect("/path/to/streamd.sock"), or $STREAMD_ENDPOINT'
_SUGGESTED: Final = 3
_MAX_VALUE_CHARS: Final = 60  # of a wrong argument in a message
SOCKET_NAME: Final = "streamd.sock"
_GATES: Final = ".d"  # the suffix of the folder with the sockets that the door at a path refers to
_OWN: Final = "own"  # the folder in it with the socket that the daemon itself serves, for its own user
_SERVED_SOCKET: Final = "s"
GATE_FOLDER_MODE: Final = 0o711  # others may pass, and cannot list it: the names of gates are secrets
_OTHERS_MAY_CONNECT: Final = 0o022  # permission bits of a socket; those of the group also bound an ACL


def default_socket_paths() -> list[Path]:
    """Returns the socket's default paths, the preferred one first."""
    named = list_runtime_folders()
    # A service's folder is its own; that of a user is for all of the user's programs.
    places = [folder if name == "RUNTIME_DIRECTORY" else folder / "streamd" for name, folder in named.items()]
    return [place / SOCKET_NAME for place in (*places, Path("/run/streamd"))]


def default_endpoint() -> str:
    """Returns the endpoint at which a daemon listens by default."""
    return f"{_IPC}{default_socket_paths()[0]}"


def find_endpoint(endpoint: str | os.PathLike[str] | None, remedy: str = COMMAND_REMEDY) -> str:
    """Returns where a client connects: the argument, else $STREAMD_ENDPOINT, else the first default path that exists.

    The path of a socket stands for its ipc:// endpoint. Raises ConfigError for an invalid endpoint, and ConnectError
    when none is named and no default path exists, with the `remedy` as the caller's users would write it.
    """
    given: object = os.fspath(endpoint) if isinstance(endpoint, os.PathLike) else endpoint
    if given is not None and not isinstance(given, str):
        raise ConfigError(
            f"endpoint {shorten_text(repr(endpoint), _MAX_VALUE_CHARS)}: write the path of the daemon's socket as "
            'text, such as "/run/streamd/streamd.sock"'
        )
    if chosen := given or os.environ.get("STREAMD_ENDPOINT"):
        path = os.path.expanduser(chosen)  # noqa: PTH111 - Path would change the slashes of an endpoint
        complete = f"{_IPC}{path}" if path.startswith("/") else chosen
        check_endpoint(complete)
        return complete
    places = default_socket_paths()
    for place in places:
        if _may_exist(place):
            return f"{_IPC}{place}"
    looked = ", ".join(map(str, places))
    fault = "this socket does not exist" if len(places) == 1 else "none of these sockets exists"
    raise ConnectError(looked, f"{fault}; {remedy}")


def is_remote(endpoint: str) -> bool:
    """Whether an endpoint is a port of a host, and not a socket of this one."""
    return endpoint.startswith(_TCP)


def split_host_port(endpoint: str) -> tuple[str, int]:
    """Returns host and port of a valid tcp:// endpoint; the host of an IPv6 address is without its brackets."""
    host, _, port = endpoint.removeprefix(_TCP).rpartition(":")
    return host.strip("[]"), int(port)


def find_socket(endpoint: str | os.PathLike[str] | None, remedy: str = COMMAND_REMEDY) -> str:
    """Returns what `find_endpoint` returns, and raises ConnectError too when an ipc:// endpoint has no socket."""
    found = find_endpoint(endpoint, remedy)
    if is_remote(found):
        return found
    path = socket_path(found)
    if fault := _find_socket_fault(path):
        source = "$STREAMD_ENDPOINT names it; " if not endpoint and os.environ.get("STREAMD_ENDPOINT") else ""
        # Sockets that may be meant: in the same folder, in `path` as a folder, in default places.
        near: list[str] = []
        for folder in dict.fromkeys((path.parent, path, *(place.parent for place in default_socket_paths()))):
            with suppress(OSError):  # it is unreadable
                names = {each.name for each in folder.iterdir()}
                served = [name for name in sorted(names) if names & {f"{name}{_DESCRIPTORS}", f"{name}{_GATES}"}]
                near += [f"{_IPC}{folder / name}" for name in served]
        hint = f"; did you mean {' or '.join(near[:_SUGGESTED])}?" if near else ""
        raise ConnectError(found, f"{source}{fault}; {remedy}{hint}")
    return found


def explain_missing_answer(endpoint: str) -> str:
    """Returns what a user should check when no daemon answers at an endpoint."""
    if is_remote(endpoint):
        return (
            "is `streamd serve` running there, do firewalls let this port through, and is the key file of the server "
            "the daemon's own?"
        )
    fault = _find_socket_fault(socket_path(endpoint))
    return f"{fault}; {_START_REMEDY}" if fault else "is `streamd serve` running there?"


def _may_exist(path: Path) -> bool:
    """Whether a path exists, or may exist in a folder that this user may not enter."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _find_socket_fault(path: Path) -> str:
    """Returns why no socket can be reached at `path`, or "" if one can."""
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return f"this user may not enter {path.parent}; add the user to the folder's group, and log in again"
    except OSError:
        folder = path.parent
        return f"there is no socket {path.name} in {folder}" if _may_exist(folder) else f"there is no folder {folder}"
    return "" if stat.S_ISSOCK(mode) else f"{path} is a {'folder' if stat.S_ISDIR(mode) else 'file'}, not a socket"


def check_endpoint(endpoint: str) -> None:
    """Raises ConfigError for an invalid endpoint: no host and port, no absolute path, or one too long for a socket."""
    if is_remote(endpoint):
        found = _HOST_PORT.fullmatch(endpoint.removeprefix(_TCP))
        if not found or not 0 < int(found[2]) <= _MAX_PORT:
            raise ConfigError(f"endpoint {endpoint!r}: write host and port after tcp://, as in tcp://gpu1:5555")
        return
    if not endpoint.startswith(_IPC):
        scheme, mark, _ = endpoint.partition("://")
        if not mark:
            fault = f"has no scheme; did you mean 'ipc://{Path(endpoint).absolute()}'?"
        elif scheme in {"http", "https"}:
            fault = (
                "is the address of a dashboard; trainers connect to the daemon's socket, as in ipc:///path/to/socket"
            )
        else:
            fault = f"has the unknown scheme {scheme}://: write ipc:// before the absolute path of the daemon's socket"
        raise ConfigError(f"endpoint {endpoint!r} {fault}")
    path = endpoint.removeprefix(_IPC)
    if not path.startswith("/"):
        raise ConfigError(
            f"endpoint {endpoint!r}: write an absolute path after ipc://, as in ipc:///run/streamd/streamd.sock"
        )
    if "\0" in path:
        raise ConfigError(f"endpoint {endpoint!r}: the path of a socket cannot contain a byte of value 0")
    if not fits_socket_path(path):
        raise ConfigError(
            f"endpoint {endpoint!r}: a socket's path can have at most {_MAX_PATH_BYTES} bytes, but this one has "
            f"{len(os.fsencode(path))}: choose a shorter one"
        )


def socket_path(endpoint: str) -> Path:
    """Returns the path of an ipc:// endpoint."""
    return Path(endpoint.removeprefix(_IPC))


def descriptor_socket_path(path: Path | str) -> str:
    """Returns the path of the descriptor socket beside a socket that is served."""
    return f"{path}{_DESCRIPTORS}"


def fits_socket_path(path: Path | str) -> bool:
    """Whether a path is short enough for a socket that is served, with its descriptor socket beside it."""
    return len(os.fsencode(path)) <= _MAX_PATH_BYTES


def gate_folder(path: Path) -> Path:
    """Returns the folder with the sockets to which the door at `path` refers its clients."""
    return Path(f"{path}{_GATES}")


def own_socket_path(folder: Path) -> Path:
    """Returns the path of the socket for the daemon's own user, in a gate folder."""
    return served_socket_path(folder / _OWN)


def served_socket_path(folder: Path) -> Path:
    """Returns the path of the socket of a gate, or of the daemon itself, in its own folder."""
    return folder / _SERVED_SOCKET


def identify_file(path: Path | str) -> tuple[int, int] | None:
    """Returns what tells the file at a path from any other that exists; None if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def create_folder_with_mode(folder: Path, mode: int) -> None:
    """Creates a folder with these permission bits, whatever the umask is. Raises OSError."""
    folder.mkdir(mode=mode)
    folder.chmod(mode)


def is_open_to_others(mode: int) -> bool:
    """Whether a socket with these permission bits lets users connect that do not own it, with root left aside."""
    return bool(mode & _OTHERS_MAY_CONNECT)


# --- What the door of a daemon says to a client: one line with the path of the socket that serves the client's user.


_PREFIX: Final = b"streamd "
_GREETING_BYTE: Final = 0xFF  # the first one of ZeroMQ's own greeting


def encode_referral(path: bytes) -> bytes:
    """Returns the line that refers a client to a path."""
    return _PREFIX + path + b"\n"


def decode_referral(line: bytes, public_path: str) -> str:
    """Returns the path to which the door at `public_path` refers, or that path itself if there is no door.

    Raises ConnectError for an answer that is not streamd's.
    """
    if line[0] == _GREETING_BYTE:
        return public_path
    if not line.startswith(_PREFIX) or not line.endswith(b"\n"):
        raise ConnectError(f"ipc://{public_path}", f"{line[:40]!r} answered there, which is not streamd")
    return os.fsdecode(line[len(_PREFIX) : -1])


def receive_referral(door: socket.socket) -> bytes:
    """Receives what a connected door says, or the first byte of ZeroMQ's greeting; b"" if it closed. Raises OSError."""
    said = b""
    while not said.endswith(b"\n") and len(said) < REFERRAL_BYTES:
        part = door.recv(REFERRAL_BYTES - len(said))
        said += part
        if not part or said[0] == _GREETING_BYTE:
            break
    return said
