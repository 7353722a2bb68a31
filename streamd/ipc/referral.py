"""What the door of a daemon says to a client: one line with the path of the socket that serves the client's user."""

from __future__ import annotations

import os
import socket
from typing import Final

from streamd.errors import ConnectError
from streamd.limits import REFERRAL_BYTES

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
