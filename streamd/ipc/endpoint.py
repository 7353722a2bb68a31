"""Where daemon and client meet when nobody says where: the same rule on both sides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from streamd.errors import ConfigError, ConnectError

_IPC: Final = "ipc://"
_MAX_PATH_BYTES: Final = 107 - len(".fd")  # sun_path, less its end and the descriptor socket's suffix
SOCKET_NAME: Final = "streamd.sock"


def default_socket_paths() -> list[Path]:
    """The socket's default places, the preferred one first."""
    places = []
    if runtime := os.environ.get("RUNTIME_DIRECTORY"):
        places.append(Path(runtime.split(":")[0]) / SOCKET_NAME)
    if user := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(user) / "streamd" / SOCKET_NAME)
    return [*places, Path("/run/streamd") / SOCKET_NAME]


def default_endpoint() -> str:
    """Where a daemon listens by default."""
    return f"{_IPC}{default_socket_paths()[0]}"


def find_endpoint(endpoint: str | None) -> str:
    """Where a client connects: the argument, $STREAMD_ENDPOINT, then the first default place that exists."""
    chosen = endpoint or os.environ.get("STREAMD_ENDPOINT")
    if chosen:
        check_endpoint(chosen)
        return chosen
    places = default_socket_paths()
    for place in places:
        if place.exists():
            return f"{_IPC}{place}"
    looked = ", ".join(map(str, places))
    remedy = "start `streamd serve --config config.yaml`, or name its endpoint (--endpoint, $STREAMD_ENDPOINT)"
    raise ConnectError(looked, f"nothing there; {remedy}")


def explain_missing_answer(endpoint: str) -> str:
    """What a client without an answer is told to look at."""
    if socket_path(endpoint).exists():
        return "is `streamd serve` running there?"
    return "there is no such socket: start `streamd serve --config config.yaml`, or name its endpoint"


def check_endpoint(endpoint: str) -> None:
    """Raises ConfigError for an endpoint that cannot be."""
    if not endpoint.startswith(_IPC):
        raise ConfigError(
            f"endpoint {endpoint!r} is not served by this version: it must begin with ipc:// and name a path"
        )
    path = endpoint.removeprefix(_IPC)
    if not path.startswith("/"):
        raise ConfigError(
            f"endpoint {endpoint!r}: write an absolute path after ipc://, as in ipc:///run/streamd/streamd.sock"
        )
    if not fits_socket_path_limit(endpoint):
        raise ConfigError(
            f"endpoint {endpoint!r}: a socket's path has at most {_MAX_PATH_BYTES} bytes, this one "
            f"{len(os.fsencode(path))}: choose a shorter one"
        )


def fits_socket_path_limit(endpoint: str) -> bool:
    """Whether the path of an ipc:// endpoint is short enough for a socket."""
    return len(os.fsencode(endpoint.removeprefix(_IPC))) <= _MAX_PATH_BYTES


def socket_path(endpoint: str) -> Path:
    """The path of an ipc:// endpoint."""
    return Path(endpoint.removeprefix(_IPC))


def descriptor_socket_path(endpoint: str) -> str:
    """The descriptor socket beside an ipc:// endpoint."""
    return f"{socket_path(endpoint)}.fd"
