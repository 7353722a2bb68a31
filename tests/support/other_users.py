"""Connections that the kernel reports as another user's, where these tests run as root."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DAEMON_USER: Final = 61001  # the user that a daemon runs as, in tests without a daemon
MEMBER: Final = os.geteuid() or 61003  # a user that is neither root nor the daemon's


@contextmanager
def as_member() -> Iterator[None]:
    """Makes this process, with all its threads, act as MEMBER within the block."""
    before = os.geteuid()
    os.seteuid(MEMBER)
    try:
        yield
    finally:
        os.seteuid(before)


def connect_as_member(place: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Returns a connection to a socket at a path, from a process of MEMBER as the kernel sees it."""
    link = socket.socket(socket.AF_UNIX, kind)
    with as_member():
        link.connect(str(place))
    return link
