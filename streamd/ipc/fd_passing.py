"""The descriptor socket beside the endpoint: hands descriptors of slots to clients, and detects a client's death.

A client connects, sends the secret that its welcome contained, and then requests one slot at a time. The connection is
the session's lifeline. The session is lost when the connection ends, or when the kernel reports that the process at its
other end is dead (a forked child may keep the connection open). When the daemon dies, the client sees the end as fast.

A connection is unpaired until its secret arrives, then paired with one session. When that session has ended, its link
is over: it carries no more descriptors, only reports of the leases that the trainer still holds.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from streamd.ipc.endpoint import identify_file
from streamd.ipc.lifeline import DROPPED, RETIRED, SLOT_SERIAL, STILL_HELD
from streamd.limits import MAX_CREDIT, MAX_SESSIONS, PAIR_S, QUESTION_WEIGHT, SECRET_BYTES

# Of a report: deliveries that are held, or that a forked child may see.
_MOST_BYTES: Final = 1 + 2 * MAX_CREDIT * SLOT_SERIAL.size
_CREDENTIALS: Final = struct.Struct("3i")
_BACKLOG: Final = 128
_REST_S: Final = 1.0


@dataclass(slots=True)
class _TrainerLink:
    link: socket.socket
    user: int  # the uid of the process that made the connection
    pidfd: int | None = None
    session: int | None = None
    is_over: bool = False  # the session has ended: the link carries only reports on its leases
    slots: set[int] = field(default_factory=set)  # those whose descriptors it was sent, and that are there still


@dataclass(frozen=True, slots=True)
class LifelineCallbacks:
    """The server's callbacks. Each runs on the event loop and begins with the session's number.

    `on_lost(session, reason)`: no report of its leases can come any more. `on_held_over(session, held, reason)`: it has
    ended, and its trainer still holds the deliveries `held`, None for all. `on_dropped(session, numbers, retired)`:
    its trainer holds these deliveries no longer; a forked child may still see those that are `retired`.
    `on_paired(session, pid)`: the process at the other end of its lifeline, as the kernel reports it.
    """

    on_lost: Callable[[int, str], None]
    on_held_over: Callable[[int, tuple[int, ...] | None, str], None]
    on_dropped: Callable[[int, tuple[int, ...], tuple[int, ...]], None]
    on_paired: Callable[[int, int], None] = lambda _session, _pid: None


class DescriptorServer:
    """Hands read-only descriptors to clients that know a session's secret.

    All methods and callbacks run on the event loop; none of them blocks. `open_slot` returns a new descriptor of a
    slot, None if the slot is gone, and may raise OSError. At most `max_links` connections are open at a time.
    `measure_pause_s(user, took_s)` returns how long a user's messages must wait after one that took so much processor
    time.
    """

    def __init__(
        self,
        open_slot: Callable[[int], int | None],
        callbacks: LifelineCallbacks,
        max_links: int = 2 * MAX_SESSIONS,
        measure_pause_s: Callable[[int, float], float] = lambda _user, _took_s: 0.0,
    ) -> None:
        self._open_slot = open_slot
        self._callbacks = callbacks
        self._max_links = max_links
        self._measure_pause_s = measure_pause_s
        self._secrets: dict[bytes, int] = {}
        self._links: dict[int, _TrainerLink] = {}  # by the descriptor of the connection
        # By user that is over its share: the connections that have something to read, which are not read until then.
        self._waiting_links: dict[int, deque[tuple[int, _TrainerLink]]] = {}
        self._listening_socket: socket.socket | None = None
        self._path, self._mode = "", 0  # of that socket
        self._place: tuple[int, int] | None = None  # of that socket, as the file system knows it
        self._spare: int | None = None  # a descriptor that is closed for a moment when the process has no other left

    def start_listening(self, path: str, mode: int, inherited: socket.socket | None = None) -> None:
        """Listens at `path`, on a new socket with permission bits `mode` or on an `inherited` one. Raises OSError."""
        self._listening_socket = listener = inherited or bind_descriptor_socket(path, mode)
        self._path, self._mode, self._place = path, mode, identify_file(path)
        self._open_spare_descriptor()
        asyncio.get_running_loop().add_reader(listener, self._accept_connection)

    def renew_if_gone(self) -> bool:
        """Listens at the path again if its socket is gone. Returns whether it was. Raises OSError."""
        if self._listening_socket is None or identify_file(self._path) == self._place:
            return False
        before, self._listening_socket = self._listening_socket, bind_descriptor_socket(self._path, self._mode)
        self._place = identify_file(self._path)
        asyncio.get_running_loop().remove_reader(before)
        before.close()
        asyncio.get_running_loop().add_reader(self._listening_socket, self._accept_connection)
        return True

    def issue_secret(self, session: int) -> bytes:
        """Returns a secret for a new session. The session is lost unless a client sends it back within PAIR_S."""
        secret = os.urandom(SECRET_BYTES)
        self._secrets[secret] = session
        asyncio.get_running_loop().call_later(PAIR_S, self._expire_secret, secret)
        return secret

    def _expire_secret(self, secret: bytes) -> None:
        session = self._secrets.pop(secret, None)
        if session is not None:
            self._callbacks.on_lost(session, f"it did not open its lifeline within {PAIR_S:g} s")

    def close_session(self, session: int) -> None:
        """Ends a session's secret and its lifeline, without a call to `on_lost`."""
        self._secrets = {secret: owner for secret, owner in self._secrets.items() if owner != session}
        for descriptor, lifeline in list(self._links.items()):
            if lifeline.session == session:
                self._close_trainer_link(descriptor)

    def half_close_session(self, session: int) -> bool:
        """Ends a session of which its trainer holds batches. The trainer sees the end, and reports what it drops.

        Returns False if the session has no lifeline, so that no report can come.
        """
        self._secrets = {secret: owner for secret, owner in self._secrets.items() if owner != session}
        known = [each for each in self._links.values() if each.session == session]
        for lifeline in known:
            lifeline.is_over = True
            # Only the writing half is closed: the client reads the end of the session, and its reports still arrive.
            with suppress(OSError):  # the connection has ended; its reader will report that
                lifeline.link.shutdown(socket.SHUT_WR)
        return bool(known)

    def forget_slots(self, slots: Collection[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Forgets slots that are gone. Returns each session that was sent descriptors of some of them, with these."""
        found = []
        for lifeline in self._links.values():
            gone = lifeline.slots.intersection(slots)
            if gone and lifeline.session is not None:
                lifeline.slots -= gone
                found.append((lifeline.session, tuple(sorted(gone))))
        return found

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
        link = accept_connection(self._listening_socket, self._accept_connection)
        lifeline = self._add_link(link) if link is not None else None
        if link is not None and lifeline is not None:
            asyncio.get_running_loop().call_later(PAIR_S, self._close_if_unpaired, link.fileno(), lifeline)

    def adopt_connection(self, link: socket.socket, secret: bytes) -> None:
        """Takes over a connection on which a gate has received a session's secret."""
        lifeline = self._add_link(link)
        if lifeline is not None:
            self._pair_with_session(link.fileno(), lifeline, secret)

    def _add_link(self, link: socket.socket) -> _TrainerLink | None:
        """Begins to read a connection. Closes it and returns None if there are too many."""
        # Unpaired connections end within PAIR_S, so there is room again soon: a client that is turned away may retry.
        if len(self._links) >= self._max_links:
            link.close()
            return None
        link.setblocking(False)
        descriptor = link.fileno()
        lifeline = self._links[descriptor] = _TrainerLink(link, read_peer(link)[1])
        asyncio.get_running_loop().add_reader(descriptor, self._receive_message, descriptor)
        return lifeline

    def _close_if_unpaired(self, descriptor: int, lifeline: _TrainerLink) -> None:
        """Closes a connection that has not sent a session's secret in time, so that it takes no descriptor."""
        # The descriptor's number may belong to a newer connection by now.
        if lifeline.session is None and self._links.get(descriptor) is lifeline:
            self._close_trainer_link(descriptor)

    def _receive_message(self, descriptor: int) -> None:
        # A SOCK_SEQPACKET socket keeps the boundaries of messages, so their length tells them apart: 8 bytes are a
        # request for a slot, 1 + 8n bytes a report on n deliveries, and the first message of all is the secret.
        lifeline = self._links[descriptor]
        waiting = self._waiting_links.get(lifeline.user)
        if waiting is not None:  # a user has many connections: what one of them costs keeps the others waiting, too
            asyncio.get_running_loop().remove_reader(descriptor)
            waiting.append((descriptor, lifeline))
            return
        pause_s = self._receive_and_charge(descriptor, lifeline)
        if pause_s > 0:
            self._waiting_links[lifeline.user] = deque()
            asyncio.get_running_loop().call_later(pause_s, self._resume_links, lifeline.user)

    def _receive_and_charge(self, descriptor: int, lifeline: _TrainerLink) -> float:
        """Handles the next message of a connection; returns how long the user's next messages must wait."""
        try:
            data = lifeline.link.recv(_MOST_BYTES)
        except BlockingIOError:
            return 0.0
        except OSError:
            data = b""
        began_s = time.thread_time()
        session = lifeline.session
        if not data:
            self._close_link_and_report_loss(descriptor, "its connection ended")
        elif session is None:
            self._pair_with_session(descriptor, lifeline, data)
        elif len(data) == SLOT_SERIAL.size:
            if not lifeline.is_over:  # otherwise the writing half is closed, and the client reads its end
                self._send_descriptor(descriptor, lifeline, SLOT_SERIAL.unpack(data)[0])
        elif len(data) % SLOT_SERIAL.size == 1 and data[:1] in {STILL_HELD, DROPPED, RETIRED}:
            numbers = tuple(number for (number,) in SLOT_SERIAL.iter_unpack(data[1:]))
            if data[:1] == STILL_HELD:
                lifeline.is_over = True
                self._callbacks.on_held_over(session, numbers, "its connection ended")
            else:
                self._callbacks.on_dropped(session, numbers, numbers if data[:1] == RETIRED else ())
        else:
            self._close_link_and_report_loss(descriptor, "it spoke nonsense on the descriptor socket")
        # What belongs to a batch costs its time. The end of a session costs more, like the question that began it.
        weight = 1.0 if data else QUESTION_WEIGHT
        return self._measure_pause_s(lifeline.user, weight * (time.thread_time() - began_s))

    def _resume_links(self, user: int) -> None:
        """Reads the connections of a user again which had to wait, one message each, while its share lasts."""
        waiting, pause_s = self._waiting_links[user], 0.0
        while waiting and pause_s <= 0:
            descriptor, lifeline = waiting.popleft()
            # The descriptor's number may belong to a newer connection by now.
            if self._links.get(descriptor) is lifeline:
                pause_s = self._receive_and_charge(descriptor, lifeline)
            if self._links.get(descriptor) is lifeline:
                asyncio.get_running_loop().add_reader(descriptor, self._receive_message, descriptor)
        if pause_s > 0:
            asyncio.get_running_loop().call_later(pause_s, self._resume_links, user)
        else:
            del self._waiting_links[user]

    def _pair_with_session(self, descriptor: int, lifeline: _TrainerLink, secret: bytes) -> None:
        lifeline.session = self._secrets.pop(secret, None)
        if lifeline.session is None:
            self._close_trainer_link(descriptor)
            return
        pid = read_peer(lifeline.link)[0]
        self._callbacks.on_paired(lifeline.session, pid)
        # The end of the connection alone would not show the death of a process whose forked child keeps it open. The
        # pidfd becomes readable when the process that connected dies.
        try:
            lifeline.pidfd = os.pidfd_open(pid) if pid > 0 else None
        except OSError as error:
            dead = isinstance(error, ProcessLookupError)
            self._close_link_and_report_loss(
                descriptor, f"its process {pid} {'is dead' if dead else f'cannot be watched: {error.strerror}'}"
            )
            return
        if lifeline.pidfd is not None:
            asyncio.get_running_loop().add_reader(lifeline.pidfd, self._on_process_dead, descriptor, lifeline, pid)

    def _on_process_dead(self, descriptor: int, lifeline: _TrainerLink, pid: int) -> None:
        """Ends the session of a process that has died, at once; its user's next messages wait in return."""
        began_s = time.thread_time()
        self._close_link_and_report_loss(descriptor, f"its process {pid} is dead")
        self._measure_pause_s(lifeline.user, QUESTION_WEIGHT * (time.thread_time() - began_s))

    def _send_descriptor(self, descriptor: int, lifeline: _TrainerLink, slot: int) -> None:
        # A client waits for each answer before its next request. One that does not would collect descriptors on their
        # way, which the kernel counts for this daemon's user: with too many of them, nobody gets one.
        if any(fcntl.ioctl(lifeline.link, termios.TIOCOUTQ, bytes(4))):
            self._close_link_and_report_loss(descriptor, "it asked for a slot before it had read the last answer")
            return
        opened: int | None = None
        try:
            try:
                opened = self._open_slot(slot)
            except OSError as error:
                # In place of the spare descriptor if the process has no other. It is opened again below, once this one
                # is sent.
                if error.errno not in {errno.EMFILE, errno.ENFILE}:
                    raise
                self._close_spare_descriptor()
                opened = self._open_slot(slot)
            socket.send_fds(lifeline.link, [SLOT_SERIAL.pack(slot)], [] if opened is None else [opened])
            if opened is not None:
                lifeline.slots.add(slot)
        except OSError as error:
            self._close_link_and_report_loss(descriptor, f"its descriptor socket failed: {error.strerror}")
        finally:
            if opened is not None:
                os.close(opened)
            if self._spare is None:
                self._open_spare_descriptor()

    def _open_spare_descriptor(self) -> None:
        with suppress(OSError):  # without a spare one; the next request for a slot tries again
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_spare_descriptor(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _close_link_and_report_loss(self, descriptor: int, reason: str) -> None:
        # Closed first: the callback may close this session's links too, and must not find this one.
        session = self._links[descriptor].session
        self._close_trainer_link(descriptor)
        if session is not None:
            self._callbacks.on_lost(session, reason)

    def _close_trainer_link(self, descriptor: int) -> None:
        lifeline = self._links.pop(descriptor)
        # The readers go before the descriptors are closed: the kernel gives the same numbers to the next files opened.
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        lifeline.link.close()
        if lifeline.pidfd is not None:
            loop.remove_reader(lifeline.pidfd)
            os.close(lifeline.pidfd)


def bind_descriptor_socket(path: str, mode: int) -> socket.socket:
    """Returns a new descriptor socket that listens at `path`, with permission bits `mode`. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setblocking(False)
    listener.bind(path)
    os.chmod(path, mode)  # noqa: PTH101 - beside bind, with the same string
    listener.listen(_BACKLOG)
    return listener


def accept_connection(listener: socket.socket, accept_next: Callable[[], None]) -> socket.socket | None:
    """Accepts a connection at a listening socket whose reader is `accept_next`; returns None if there is none now.

    After descriptors or memory ran out, the reader is removed for _REST_S, and connections wait in the backlog: the
    listener stays readable while they do, and its reader would spin.
    """
    try:
        return listener.accept()[0]
    except (BlockingIOError, ConnectionAbortedError):
        return None
    except OSError as error:
        logging.getLogger("streamd.descriptors").warning(
            "no new trainers are accepted for %g s: %s", _REST_S, error.strerror
        )
    loop = asyncio.get_running_loop()
    loop.remove_reader(listener)
    loop.call_later(_REST_S, _resume_accepting, listener, accept_next)
    return None


def _resume_accepting(listener: socket.socket, accept_next: Callable[[], None]) -> None:
    if listener.fileno() >= 0:  # otherwise it was closed meanwhile
        asyncio.get_running_loop().add_reader(listener, accept_next)


def read_peer(link: socket.socket) -> tuple[int, int]:
    """Returns the pid and the uid of the process that made a connection, as the kernel reports them."""
    pid, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user
