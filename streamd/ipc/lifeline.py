"""A client's end of its lifeline: the connection to the daemon's descriptor socket, which `fd_passing` serves.

It runs on every system that the client does, also where no memory can be shared.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection
from typing import Final

from streamd.errors import ConnectError

SLOT_SERIAL: Final = struct.Struct("<Q")
# The first byte of a report on a session that has ended; delivery numbers follow. These are still held, are dropped,
# or are held by a forked child alone.
STILL_HELD: Final = b"K"
DROPPED: Final = b"D"
RETIRED: Final = b"R"
_ANSWER_S: Final = 5.0


class Lifeline:
    """A client's end of the connection.

    The I/O thread uses it while the session exists. After that, `report_leases` is called by finalisers in any thread:
    it sends one message and never waits.
    """

    def __init__(self, path: str, secret: bytes) -> None:
        """Connects to the descriptor socket at `path` and sends the session's secret. Raises ConnectError."""
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(_ANSWER_S)
        try:
            self._link.connect(path)
            self._link.send(secret)
        except OSError as error:
            self._link.close()
            raise ConnectError(path, f"cannot connect to its descriptor socket: {error.strerror or error}") from error

    def fileno(self) -> int:
        return self._link.fileno()

    def fetch_descriptor(self, slot: int) -> int:
        """Requests a slot's read-only descriptor and returns it; the caller closes it.

        Raises ConnectError when the daemon or the slot is gone or no answer comes in time, and OSError when this
        process has no descriptor left.
        """
        try:
            self._link.send(SLOT_SERIAL.pack(slot))
            data, descriptors, flags, _ = socket.recv_fds(self._link, SLOT_SERIAL.size, 1)
        except OSError as error:
            raise ConnectError("the descriptor socket", str(error.strerror or error)) from error
        # The kernel drops a descriptor for which this process has no number left, and marks the message.
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not descriptors:
            raise ConnectError("the descriptor socket", f"slot {slot} is gone" if data else "the daemon is gone")
        return descriptors[0]

    def has_ended(self) -> bool:
        """Whether the daemon has closed its end. Call it when the socket is readable without a request."""
        self._link.setblocking(False)  # a socket with a timeout waits in Python, even with MSG_DONTWAIT
        try:
            return not self._link.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._link.settimeout(_ANSWER_S)

    def report_leases(self, kind: bytes, numbers: Collection[int]) -> None:
        """Reports what has become of deliveries of a session that has ended. Raises OSError.

        `kind` is STILL_HELD by its trainer, DROPPED, or RETIRED: its trainer holds them no longer, while a forked child
        may see them.
        """
        self._link.setblocking(False)  # finalisers call this and must not wait
        self._link.send(kind + struct.pack(f"<{len(numbers)}Q", *numbers))

    def wait_until_closed(self, timeout_s: float) -> None:
        """Returns when the daemon closes its end, or after `timeout_s`."""
        self._link.settimeout(timeout_s)
        try:
            self._link.recv(1)
        except OSError:
            return

    def close(self) -> None:
        self._link.close()
