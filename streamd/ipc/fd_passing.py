"""The Unix socket beside the endpoint: slots' descriptors for clients, and the first news of a client's death.

A client connects, says the secret that its welcome gave it, and asks for one slot at a time. The connection is its
lifeline: when it ends, or when the kernel says that the process at its other end is dead (a forked child may keep the
connection open), the session is lost. When the daemon dies, the client sees the end just as fast.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from streamd.errors import ConnectError
from streamd.limits import MAX_CREDIT, MAX_SESSIONS, PAIR_S, SECRET_BYTES

_SLOT: Final = struct.Struct("<Q")
# Before the numbers of deliveries, of a session that is over: held still; held no longer; only by a forked child.
_STILL_HELD: Final = b"K"
_DROPPED: Final = b"D"
_RETIRED: Final = b"R"
_MOST_BYTES: Final = 1 + 2 * MAX_CREDIT * _SLOT.size  # of a word: what is held, and what a child may see
_CREDENTIALS: Final = struct.Struct("3i")
_BACKLOG: Final = 128
_ANSWER_S: Final = 5.0
_REST_S: Final = 1.0


@dataclass(slots=True)
class _TrainerLink:
    link: socket.socket
    pidfd: int | None = None
    session: int | None = None
    is_over: bool = False  # the session has ended: what is held of it is all that is spoken of


@dataclass(frozen=True, slots=True)
class LifelineCallbacks:
    """Whom to tell what of sessions, by their numbers.

    `on_lost`, for a reason: nobody will say any more what becomes of its memory. `on_held_over`: it is over, while
    deliveries of it are held, None for whichever they may be. `on_dropped`: these deliveries are held no longer, the
    last of them but by a forked child. `on_paired`: the kernel says which process a session's lifeline leads to.
    """

    on_lost: Callable[[int, str], None]
    on_held_over: Callable[[int, tuple[int, ...] | None, str], None]
    on_dropped: Callable[[int, tuple[int, ...], tuple[int, ...]], None]
    on_paired: Callable[[int, int], None] = lambda _session, _pid: None


class DescriptorServer:
    """Hands read-only descriptors to those who know a session's secret. Lives on the event loop; nothing blocks."""

    def __init__(
        self, open_slot: Callable[[int], int | None], callbacks: LifelineCallbacks, max_links: int = 2 * MAX_SESSIONS
    ) -> None:
        self._open_slot = open_slot
        self._callbacks = callbacks
        self._max_links = max_links
        self._secrets: dict[bytes, int] = {}
        self._links: dict[int, _TrainerLink] = {}
        self._listening_socket: socket.socket | None = None
        self._spare: int | None = None  # given up for a moment when there is no other descriptor

    def start_listening(self, path: str, mode: int, inherited: socket.socket | None = None) -> None:
        """Binds the socket, unless one that listens there was handed over. Raises OSError."""
        self._listening_socket = listener = inherited or _bind_socket(path, mode)
        self._open_spare_descriptor()
        asyncio.get_running_loop().add_reader(listener, self._accept_connection)

    def issue_secret(self, session: int) -> bytes:
        """A new session's secret."""
        secret = os.urandom(SECRET_BYTES)
        self._secrets[secret] = session
        asyncio.get_running_loop().call_later(PAIR_S, self._expire_secret, secret)
        return secret

    def _expire_secret(self, secret: bytes) -> None:
        session = self._secrets.pop(secret, None)
        if session is not None:
            self._callbacks.on_lost(session, f"it did not open its lifeline within {PAIR_S:g} s")

    def close_session(self, session: int) -> None:
        """The session is over: its secret and its lifeline end."""
        self._secrets = {secret: owner for secret, owner in self._secrets.items() if owner != session}
        for descriptor, lifeline in list(self._links.items()):
            if lifeline.session == session:
                self._close_trainer_link(descriptor)

    def half_close_session(self, session: int) -> bool:
        """The session is over, while its trainer holds batches: it sees the end, and says what becomes of them.

        False when there is nobody who could: it has no lifeline.
        """
        self._secrets = {secret: owner for secret, owner in self._secrets.items() if owner != session}
        known = [each for each in self._links.values() if each.session == session]
        for lifeline in known:
            lifeline.is_over = True
            with suppress(OSError):  # it has ended by itself, which will be read
                lifeline.link.shutdown(socket.SHUT_WR)
        return bool(known)

    def close(self) -> None:
        for descriptor in list(self._links):
            self._close_trainer_link(descriptor)
        if self._listening_socket is not None:
            asyncio.get_running_loop().remove_reader(self._listening_socket)
            self._listening_socket.close()
            self._listening_socket = None
        self._close_spare_descriptor()

    def _accept_connection(self) -> None:
        assert self._listening_socket is not None  # noqa: S101 - only the listener's own reader calls this
        try:
            link, _ = self._listening_socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause_listening(error)
            return
        if len(self._links) >= self._max_links:  # those who are not paired soon hang up, or are hung up on
            link.close()
            return
        link.setblocking(False)
        descriptor = link.fileno()
        lifeline = self._links[descriptor] = _TrainerLink(link)
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._receive_message, descriptor)
        loop.call_later(PAIR_S, self._close_if_unpaired, descriptor, lifeline)

    def _close_if_unpaired(self, descriptor: int, lifeline: _TrainerLink) -> None:
        """Whoever has not said a session's secret by now is no trainer of ours, and keeps no descriptor."""
        if lifeline.session is None and self._links.get(descriptor) is lifeline:
            self._close_trainer_link(descriptor)

    def _pause_listening(self, error: OSError) -> None:
        """Out of descriptors or memory: the sessions that are here go on, and whoever knocks waits a little."""
        logging.getLogger("streamd.descriptors").warning("no new trainer for %g s: %s", _REST_S, error.strerror)
        loop = asyncio.get_running_loop()
        if self._listening_socket is not None:
            loop.remove_reader(self._listening_socket)
        loop.call_later(_REST_S, self._resume_listening)

    def _resume_listening(self) -> None:
        if self._listening_socket is not None:
            asyncio.get_running_loop().add_reader(self._listening_socket, self._accept_connection)

    def _receive_message(self, descriptor: int) -> None:
        lifeline = self._links[descriptor]
        try:
            data = lifeline.link.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        session = lifeline.session
        if not data:
            self._close_link_and_report_loss(descriptor, "its connection ended")
        elif session is None:
            self._pair_with_session(descriptor, lifeline, data)
        elif len(data) == _SLOT.size:
            if not lifeline.is_over:  # else who asks has been hung up on, and reads that
                self._send_descriptor(descriptor, lifeline, _SLOT.unpack(data)[0])
        elif len(data) % _SLOT.size == 1 and data[:1] in {_STILL_HELD, _DROPPED, _RETIRED}:
            self._handle_lease_report(lifeline, session, data)
        else:
            self._close_link_and_report_loss(descriptor, "it spoke nonsense on the descriptor socket")

    def _handle_lease_report(self, lifeline: _TrainerLink, session: int, report: bytes) -> None:
        """What becomes of the batches of a session that is over."""
        numbers = tuple(number for (number,) in _SLOT.iter_unpack(report[1:]))
        if report[:1] == _STILL_HELD:
            lifeline.is_over = True
            self._callbacks.on_held_over(session, numbers, "its connection ended")
        else:
            self._callbacks.on_dropped(session, numbers, numbers if report[:1] == _RETIRED else ())

    def _pair_with_session(self, descriptor: int, lifeline: _TrainerLink, secret: bytes) -> None:
        lifeline.session = self._secrets.pop(secret, None)
        if lifeline.session is None:
            self._close_trainer_link(descriptor)
            return
        peer = lifeline.link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = _CREDENTIALS.unpack(peer)[0]
        self._callbacks.on_paired(lifeline.session, pid)
        try:
            lifeline.pidfd = os.pidfd_open(pid) if pid > 0 else None
        except OSError as error:
            dead = isinstance(error, ProcessLookupError)
            self._close_link_and_report_loss(
                descriptor, f"its process {pid} {'is dead' if dead else f'cannot be watched: {error.strerror}'}"
            )
            return
        if lifeline.pidfd is not None:
            asyncio.get_running_loop().add_reader(
                lifeline.pidfd, self._close_link_and_report_loss, descriptor, f"its process {pid} is dead"
            )

    def _send_descriptor(self, descriptor: int, lifeline: _TrainerLink, slot: int) -> None:
        opened: int | None = None
        try:
            opened = self._open_slot_using_spare(slot)
            socket.send_fds(lifeline.link, [_SLOT.pack(slot)], [] if opened is None else [opened])
        except OSError as error:
            self._close_link_and_report_loss(descriptor, f"its descriptor socket failed: {error.strerror}")
        finally:
            if opened is not None:
                os.close(opened)
            if self._spare is None:
                self._open_spare_descriptor()

    def _open_slot_using_spare(self, slot: int) -> int | None:
        """A slot's descriptor, in the spare one's place when there is no other: it is closed as soon as it is sent."""
        try:
            return self._open_slot(slot)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
        self._close_spare_descriptor()
        return self._open_slot(slot)

    def _open_spare_descriptor(self) -> None:
        with suppress(OSError):  # then there is none, until the next slot was handed out
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_spare_descriptor(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _close_link_and_report_loss(self, descriptor: int, reason: str) -> None:
        session = self._links[descriptor].session
        self._close_trainer_link(descriptor)
        if session is not None:
            self._callbacks.on_lost(session, reason)

    def _close_trainer_link(self, descriptor: int) -> None:
        lifeline = self._links.pop(descriptor)
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        lifeline.link.close()
        if lifeline.pidfd is not None:
            loop.remove_reader(lifeline.pidfd)
            os.close(lifeline.pidfd)


def _bind_socket(path: str, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setblocking(False)
    listener.bind(path)
    os.chmod(path, mode)  # noqa: PTH101 - beside bind, with the same string
    listener.listen(_BACKLOG)
    return listener


class Lifeline:
    """A client's end. Used by its I/O thread only."""

    def __init__(self, path: str, secret: bytes) -> None:
        """Connects and introduces the session. Raises ConnectError."""
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(_ANSWER_S)
        try:
            self._link.connect(path)
            self._link.send(secret)
        except OSError as error:
            self._link.close()
            raise ConnectError(path, f"its descriptor socket: {error.strerror or error}") from error

    def fileno(self) -> int:
        return self._link.fileno()

    def fetch_descriptor(self, slot: int) -> int:
        """A read-only descriptor of a slot, to be closed by the caller.

        Raises ConnectError when the daemon is gone, OSError when this process may have no more descriptors.
        """
        try:
            self._link.send(_SLOT.pack(slot))
            data, descriptors, flags, _ = socket.recv_fds(self._link, _SLOT.size, 1)
        except OSError as error:
            raise ConnectError("the descriptor socket", str(error.strerror or error)) from error
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not descriptors:
            raise ConnectError("the descriptor socket", f"slot {slot} is gone" if data else "the daemon is gone")
        return descriptors[0]

    def has_ended(self) -> bool:
        """Whether the daemon has closed its end; asked when the socket is readable without a request."""
        self._link.setblocking(False)  # with a timeout Python waits for it, whatever MSG_DONTWAIT says
        try:
            return not self._link.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._link.settimeout(_ANSWER_S)

    def report_held_leases(self, numbers: Collection[int]) -> None:
        """Says that the session is over, and that of it these deliveries are held. Raises OSError."""
        self._send_report(_STILL_HELD, numbers)

    def report_dropped_leases(self, numbers: Collection[int]) -> None:
        """Says that these deliveries of a session that is over are held no longer. Raises OSError."""
        self._send_report(_DROPPED, numbers)

    def report_retired_leases(self, numbers: Collection[int]) -> None:
        """Says the same of those that a forked child may see as long as it likes. Raises OSError."""
        self._send_report(_RETIRED, numbers)

    def _send_report(self, kind: bytes, numbers: Collection[int]) -> None:
        self._link.setblocking(False)  # finalisers say it, and never wait
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
