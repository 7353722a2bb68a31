"""Sockets that the service manager holds and hands over at each start: endpoints that outlive the daemon.

Who connects while there is none waits for the next one, and nobody else can bind the path in between.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Final

from streamd.errors import ConfigError

FIRST_DESCRIPTOR: Final = 3  # sd_listen_fds(3)
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

Handed = dict[Path, socket.socket]


def handed_over(environment: MutableMapping[str, str], first: int = FIRST_DESCRIPTOR) -> Handed:
    """The listening sockets handed to this process, by path; none where there is no manager.

    They are the caller's to close. The variables are taken out of the environment, and no child inherits the sockets.
    Raises ConfigError for a socket that is no path's.
    """
    pid, count, _ = (environment.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    links = [socket.socket(fileno=descriptor) for descriptor in range(first, first + int(count))]
    try:
        for link in links:
            link.set_inheritable(False)
            link.setblocking(False)
        return {_path(link): link for link in links}
    except ConfigError:
        for link in links:
            link.close()
        raise


def is_awaited(links: Iterable[socket.socket]) -> bool:
    """Whether somebody has connected to one of these listening sockets and was not let in yet."""
    poller = select.poll()
    for link in links:
        poller.register(link, select.POLLIN)
    return bool(poller.poll(0))


def _path(link: socket.socket) -> Path:
    address = link.getsockname() if link.family == socket.AF_UNIX else None
    if not isinstance(address, str) or not address.startswith("/"):
        raise ConfigError(
            f"a socket was handed over that is no file's ({link.family.name}): a socket unit of streamd has "
            "ListenStream=PATH and ListenSequentialPacket=PATH.fd"
        )
    return Path(address)


def chosen(handed: Handed, endpoint: Path, descriptors: Path) -> tuple[socket.socket, socket.socket] | None:
    """The two that belong to an endpoint; None when none were handed over. Raises ConfigError for others."""
    if not handed:
        return None
    stream, packets = handed.get(endpoint), handed.get(descriptors)
    if len(handed) != 2 or stream is None or packets is None:  # noqa: PLR2004 - the two just named
        raise ConfigError(
            f"the service manager hands over {', '.join(map(str, sorted(handed)))}, while this configuration listens "
            f"at {endpoint}: leave `listen:` out, or give the socket unit ListenStream={endpoint} and "
            f"ListenSequentialPacket={descriptors}"
        )
    for link, kind, setting in (
        (stream, socket.SOCK_STREAM, "ListenStream"),
        (packets, socket.SOCK_SEQPACKET, "ListenSequentialPacket"),
    ):
        if link.type != kind:
            raise ConfigError(f"{link.getsockname()} is handed over as {link.type.name}: it must be a {setting}=")
    return stream, packets
