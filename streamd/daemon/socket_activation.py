"""Sockets that the service manager holds and hands over at each start, so that endpoints outlive the daemon.

A client that connects while no daemon runs waits for the next one, and no other process can bind the path in between.
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

HandedSockets = dict[Path, socket.socket]


def take_handed_sockets(
    environment: MutableMapping[str, str], first_descriptor: int = FIRST_DESCRIPTOR
) -> HandedSockets:
    """Returns the listening sockets handed to this process, by path; {} where there is no manager.

    The caller has to close them. The variables are removed from the environment, and children do not inherit the
    sockets. Raises ConfigError for a socket that is not bound to a path.
    """
    pid, count, _ = (environment.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    links = [socket.socket(fileno=descriptor) for descriptor in range(first_descriptor, first_descriptor + int(count))]
    try:
        for link in links:
            link.set_inheritable(False)
            link.setblocking(False)
        return {_read_socket_path(link): link for link in links}
    except ConfigError:
        for link in links:
            link.close()
        raise


def has_waiting_connection(sockets: Iterable[socket.socket]) -> bool:
    """Whether a client has connected to one of these listening sockets and was not accepted yet."""
    poller = select.poll()
    for link in sockets:
        poller.register(link, select.POLLIN)
    return bool(poller.poll(0))


def _read_socket_path(link: socket.socket) -> Path:
    address = link.getsockname() if link.family == socket.AF_UNIX else None
    if not isinstance(address, str) or not address.startswith("/"):
        raise ConfigError(
            f"a socket was handed over that has no path ({link.family.name}): a socket unit of streamd has "
            "ListenStream=PATH"
        )
    return Path(address)


def choose_endpoint_sockets(
    handed_sockets: HandedSockets, endpoint_path: Path, descriptor_path: Path
) -> tuple[socket.socket | None, socket.socket | None]:
    """Returns the socket of an endpoint and its descriptor socket, each None if it was not handed over.

    A socket that others than the daemon's user may connect to needs no descriptor socket beside it. Raises ConfigError
    for other sockets.
    """
    if not handed_sockets:
        return None, None
    stream, packets = handed_sockets.get(endpoint_path), handed_sockets.get(descriptor_path)
    if stream is None or len(handed_sockets) != 1 + (packets is not None):
        raise ConfigError(
            f"the service manager hands over {', '.join(map(str, sorted(handed_sockets)))}, while this configuration "
            f"listens on {endpoint_path}: leave `listen:` out, or give the socket unit ListenStream={endpoint_path}"
        )
    for link, kind, setting in (
        (stream, socket.SOCK_STREAM, "ListenStream"),
        (packets, socket.SOCK_SEQPACKET, "ListenSequentialPacket"),
    ):
        if link is not None and link.type != kind:
            raise ConfigError(f"{link.getsockname()} is handed over as {link.type.name}: it must be a {setting}=")
    return stream, packets
