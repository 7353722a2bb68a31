"""What the daemon tells the service manager that started it, and nobody else: datagrams of lines `NAME=value`.

Whether the daemon gets anywhere, and how it is, in a line: what the service manager is told now and then.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final, Self

from streamd.core import log
from streamd.core.status import DaemonStatus
from streamd.core.text import escape_unprintable, format_count
from streamd.limits import REFUSED_START_S, STALLED_S

_NOTIFY_TIMEOUT_S: Final = 1.0  # the manager's queue holds megabytes: when it is full, the whole host stands still
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The service manager; without `address` there is none, and nothing is said.

    It wants to hear that all is well every `watchdog_s` seconds, unless that is None.
    """

    address: str | None = None
    watchdog_s: float | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """The one that an environment names. Its variables are taken out: no child of ours speaks in our name."""
        address, microseconds, pid = (environment.pop(name, "") for name in _VARIABLES)
        if not address.startswith(("/", "@")):
            return cls()
        is_watched = microseconds.isdecimal() and pid in {"", str(os.getpid())}
        return cls(address, int(microseconds) / 1e6 if is_watched and int(microseconds) else None)

    @property
    def is_present(self) -> bool:
        """Whether a service manager has started this process."""
        return self.address is not None

    def notify_starting(self, status: str) -> None:
        """What it does before it serves."""
        self._send_notification(_format_status_assignment(status))

    def notify_ready(self, status: str) -> None:
        """It serves, for the first time or after a reload."""
        self._send_notification("READY=1", _format_status_assignment(status))

    def notify_reloading(self, status: str) -> None:
        """A reload began; `notify_ready` ends it.

        Without the time a manager would take it for one before its own wish.
        """
        self._send_notification(
            "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", _format_status_assignment(status)
        )

    def notify_stopping(self, status: str) -> None:
        """The end began."""
        self._send_notification("STOPPING=1", _format_status_assignment(status))

    def notify_refused_start_and_wait(self, reason: str) -> None:
        """Says why it does not start, and returns after `REFUSED_START_S`, or when it is asked to end.

        A trainer that waits at a socket of the manager's starts a daemon that has ended again at once, until the
        manager gives both of them up. SIGTERM and SIGINT are blocked from now on: the process is about to end.
        """
        asked = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, asked)
        self._send_notification(_format_status_assignment(f"cannot start, is tried again: {reason}"))
        signal.sigtimedwait(asked, REFUSED_START_S)

    def notify_watchdog(self, status: str) -> None:
        """It serves, as it should."""
        self._send_notification("WATCHDOG=1", _format_status_assignment(status))

    def _send_notification(self, *lines: str) -> None:
        if self.address is None:
            return
        path = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.settimeout(_NOTIFY_TIMEOUT_S)
                link.sendto("\n".join(lines).encode(), path)
        except OSError as error:
            log.warning("notify.failed", f"the service manager does not listen: {error}", address=self.address)


def _format_status_assignment(text: str) -> str:
    return f"STATUS={escape_unprintable(text)}"


class ProgressWatch:
    """Tells a daemon that decodes, or has nothing to decode, from one whose work is stuck.

    The engine replaces a worker that is stuck long before `stalled_s`; what stands still for longer is the engine.
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
    """`serves train, validation to 3 trainers: 812 images/s`, and what is wrong, if anything is."""
    names = ", ".join(stream.name for stream in status.streams)
    rate = sum(stream.samples_per_s for stream in status.streams)
    flows = f": {rate:,.0f} images/s" if status.sessions else ""
    troubles = "".join(f"; {trouble}" for trouble in status.all_troubles)
    return f"serves {names} to {format_count(len(status.sessions), 'trainer')}{flows}{troubles}"
