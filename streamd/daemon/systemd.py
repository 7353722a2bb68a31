"""The service manager: notifies it by datagrams of lines `NAME=value`, and takes the sockets that it hands over.

It also decides whether the daemon makes progress, and formats its status in one line, for these notifications.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from streamd.core import log
from streamd.core.status import DaemonStatus
from streamd.core.text import escape_unprintable, format_count
from streamd.errors import ConfigError
from streamd.limits import REFUSED_START_S, STALLED_S

_NOTIFY_TIMEOUT_S: Final = 1.0  # its queue holds megabytes: when it is full, the whole host stands still
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

# `starting`: it does not serve yet. `ready`: it serves, for the first time or after a reload. `reloading`: a reload has
# begun, which `ready` ends. `working`: it serves and makes progress. `stopping`: it has begun to end.
ServiceState = Literal["starting", "ready", "reloading", "working", "stopping"]

_STATE_LINES: Final[dict[ServiceState, tuple[str, ...]]] = {
    "starting": (),
    "ready": ("READY=1",),
    "reloading": ("RELOADING=1",),
    "working": ("WATCHDOG=1",),
    "stopping": ("STOPPING=1",),
}


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The service manager. Without an `address` there is none, and nothing is sent.

    It expects a watchdog notification every `watchdog_s` seconds, unless that is None.
    """

    address: str | None = None
    watchdog_s: float | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """Returns the manager that the environment names. Removes its variables, so that no child sends in our name."""
        address, microseconds, pid = (environment.pop(name, "") for name in _VARIABLES)
        if not address.startswith(("/", "@")):
            return cls()
        is_watched = microseconds.isdecimal() and pid in {"", str(os.getpid())}
        return cls(address, int(microseconds) / 1e6 if is_watched and int(microseconds) else None)

    def notify_refused_start_and_wait(self, reason: str) -> None:
        """Reports why the daemon does not start, and returns after `REFUSED_START_S`, or at SIGTERM or SIGINT.

        A trainer that waits at a socket of the manager makes it restart a daemon that has ended at once, until the
        manager gives up the daemon and the socket. SIGTERM and SIGINT stay blocked: the process is about to end.
        """
        asked = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, asked)
        self.notify("starting", f"cannot start; it will be tried again: {reason}")
        signal.sigtimedwait(asked, REFUSED_START_S)

    def notify(self, state: ServiceState, status: str) -> None:
        """Reports in which state the daemon is; `status` says in a line what it does."""
        if self.address is None:
            return
        lines = [*_STATE_LINES[state], f"STATUS={escape_unprintable(status)}"]
        # Without the time, a manager would take this for a reload from before its own request.
        if state == "reloading":
            lines.insert(1, f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        path = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.settimeout(_NOTIFY_TIMEOUT_S)
                link.sendto("\n".join(lines).encode(), path)
        except OSError as error:
            log.warning("notify.failed", f"the service manager cannot be notified: {error}", address=self.address)


class ProgressWatch:
    """Finds whether the daemon's work is stuck, while it has something to decode.

    The engine replaces a worker that is stuck long before `stalled_s`. Work that stands still for longer means that the
    engine itself is stuck.
    """

    def __init__(self, now_s: float, stalled_s: float = STALLED_S) -> None:
        self._stalled_s = stalled_s
        self._last_progress_s = now_s
        self._progress_count = 0

    def is_progressing(self, *, is_producing: bool, progress_count: int, now_s: float) -> bool:
        """Whether nothing is being produced, or `progress_count` has changed within the time allowed."""
        if not is_producing or progress_count != self._progress_count:
            self._last_progress_s, self._progress_count = now_s, progress_count
        return now_s - self._last_progress_s < self._stalled_s


def format_status_headline(status: DaemonStatus) -> str:
    """Returns a line such as `serves train, validation to 3 trainers: 812 images/s`, followed by any troubles."""
    names = ", ".join(stream.name for stream in status.streams)
    rate = sum(stream.samples_per_s for stream in status.streams)
    flows = f": {rate:,.0f} images/s" if status.sessions else ""
    troubles = "".join(f"; {trouble}" for trouble in status.all_troubles)
    return f"serves {names} to {format_count(len(status.sessions), 'trainer')}{flows}{troubles}"


# --- Sockets that the service manager holds and hands over at each start, so that endpoints outlive the daemon.
#
# A client that connects while no daemon runs waits for the next one, and no other process can bind the path in
# between.


FIRST_DESCRIPTOR: Final = 3  # sd_listen_fds(3)
_LISTEN_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

HandedSockets = dict[Path, socket.socket]


def take_handed_sockets(
    environment: MutableMapping[str, str], first_descriptor: int = FIRST_DESCRIPTOR
) -> HandedSockets:
    """Returns the listening sockets handed to this process, by path; {} where there is no manager.

    The caller has to close them. The variables are removed from the environment, and children do not inherit the
    sockets. Raises ConfigError for a socket that is not bound to a path.
    """
    pid, count, _ = (environment.pop(name, "") for name in _LISTEN_VARIABLES)
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    links = [socket.socket(fileno=descriptor) for descriptor in range(first_descriptor, first_descriptor + int(count))]
    try:
        by_path: HandedSockets = {}
        for link in links:
            link.set_inheritable(False)
            link.setblocking(False)
            address = link.getsockname() if link.family == socket.AF_UNIX else None
            if not isinstance(address, str) or not address.startswith("/"):
                raise ConfigError(  # noqa: TRY301 - the sockets are closed below
                    f"a socket was handed over that has no path ({link.family.name}): a socket unit of streamd has "
                    "ListenStream=PATH"
                )
            by_path[Path(address)] = link
    except ConfigError:
        for link in links:
            link.close()
        raise
    return by_path


def has_waiting_connection(sockets: Iterable[socket.socket]) -> bool:
    """Whether a client has connected to one of these listening sockets and was not accepted yet."""
    poller = select.poll()
    for link in sockets:
        poller.register(link, select.POLLIN)
    return bool(poller.poll(0))


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
