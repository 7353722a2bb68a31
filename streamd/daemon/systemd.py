"""Notifies the service manager that started the daemon, by datagrams of lines `NAME=value`.

It also decides whether the daemon makes progress, and formats its status in one line, for these notifications.
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

_NOTIFY_TIMEOUT_S: Final = 1.0  # its queue holds megabytes: when it is full, the whole host stands still
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


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

    @property
    def is_present(self) -> bool:
        """Whether a service manager has started this process."""
        return self.address is not None

    def notify_starting(self, status: str) -> None:
        """Reports what the daemon does before it serves."""
        self._send_notification(status)

    def notify_ready(self, status: str) -> None:
        """Reports that the daemon serves, for the first time or after a reload."""
        self._send_notification(status, "READY=1")

    def notify_reloading(self, status: str) -> None:
        """Reports that a reload has begun; `notify_ready` ends it."""
        # Without the time, a manager would take this for a reload from before its own request.
        self._send_notification(status, "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def notify_stopping(self, status: str) -> None:
        """Reports that the daemon has begun to end."""
        self._send_notification(status, "STOPPING=1")

    def notify_refused_start_and_wait(self, reason: str) -> None:
        """Reports why the daemon does not start, and returns after `REFUSED_START_S`, or at SIGTERM or SIGINT.

        A trainer that waits at a socket of the manager makes it restart a daemon that has ended at once, until the
        manager gives up the daemon and the socket. SIGTERM and SIGINT stay blocked: the process is about to end.
        """
        asked = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, asked)
        self._send_notification(f"cannot start; it will be tried again: {reason}")
        signal.sigtimedwait(asked, REFUSED_START_S)

    def notify_watchdog(self, status: str) -> None:
        """Reports that the daemon serves and makes progress."""
        self._send_notification(status, "WATCHDOG=1")

    def _send_notification(self, status: str, *lines: str) -> None:
        if self.address is None:
            return
        path = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.settimeout(_NOTIFY_TIMEOUT_S)
                link.sendto("\n".join([*lines, f"STATUS={escape_unprintable(status)}"]).encode(), path)
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
