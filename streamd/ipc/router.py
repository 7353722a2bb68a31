"""ROUTER sockets, which receive and send the frames of clients. Each belongs to the event loop's thread.

`Router` serves the clients of this host. The gate for other hosts has its own, on the same `RouterSocket`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import string
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import zmq

from streamd.core import log
from streamd.ipc.endpoint import identify_file
from streamd.limits import HANDSHAKE_MS, KNOCKS, LINK_TURN_S, MAX_CLIENT_FRAME_BYTES, ROUTER_QUEUE, SPARE_DESCRIPTORS

# Plain integers, since combining members of an enumeration takes longer than reading the socket's state.
_NO_WAIT: Final = int(zmq.DONTWAIT)
_NO_WAIT_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_INPUT: Final = int(zmq.POLLIN)
_CONNECTED: Final = int(zmq.EVENT_ACCEPTED)
_REJECTED: Final = int(zmq.EVENT_ACCEPT_FAILED)  # of another user than the one that is served
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
MONITOR_EVENT: Final = struct.Struct("=Hi")  # event number and value, as a monitor socket sends them

FrameHandler = Callable[[bytes, bytes], object]


class FrameSender(Protocol):
    """Sends frames to clients by their identity."""

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client, and never waits. False when the client is gone or does not read."""
        ...


class SocketReader:
    """Calls `receive`, which receives one message, whenever `socket` has one. Lives on the event loop.

    The descriptor of a ZeroMQ socket is edge-triggered, silent until the socket was found empty once, and sending may
    consume its signal. So the socket's state is read before the first wait, and again after each send.
    """

    def __init__(self, socket: zmq.Socket[bytes], receive: Callable[[], None]) -> None:
        self._socket = socket
        self._receive = receive
        self._scheduled: asyncio.Handle | None = None
        self._is_paused = False
        self._descriptor = socket.FD
        asyncio.get_running_loop().add_reader(self._descriptor, self._read_messages)
        self.schedule_read()

    def schedule_read(self) -> None:
        """Reads soon. Call it after each send to the socket."""
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._read_messages)

    def set_paused(self, is_paused: bool) -> None:
        """Stops reading, or goes on. Messages that arrive meanwhile wait here, and then in their senders' queues."""
        self._is_paused = is_paused
        if not is_paused:
            self.schedule_read()

    def _read_messages(self) -> None:
        self._scheduled = None
        loop = asyncio.get_running_loop()
        end_s = loop.time() + LINK_TURN_S
        while loop.time() < end_s:
            if self._is_paused or not has_input(self._socket):
                return
            self._receive()
        self.schedule_read()  # other callbacks run first, and no further signal comes for what has arrived

    def close(self) -> None:
        """Stops reading for good. Call it before the socket is closed."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._is_paused = True
        if self._scheduled is not None:
            self._scheduled.cancel()


def has_input(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received."""
    return bool(cast("int", socket.getsockopt(zmq.EVENTS)) & _INPUT)


class RouterSocket:
    """A ROUTER socket for the frames of clients, with the bounds that hold at every address. Lives on the event loop.

    Nothing here waits.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._monitor: zmq.Socket[bytes] | None = None
        self._reader: SocketReader | None = None
        self._readers: list[SocketReader] = []  # of the socket and of its monitor
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.LINGER, 0),
            (zmq.SNDHWM, ROUTER_QUEUE),
            (zmq.MAXMSGSIZE, MAX_CLIENT_FRAME_BYTES),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        ):
            self._socket.setsockopt(option, value)

    def _bind_socket(self, listening: socket.socket, address: str) -> None:
        """Gives a listening socket to libzmq, which accepts the connections that wait there, and later ones."""
        self._socket.setsockopt(zmq.USE_FD, listening.detach())
        self._socket.bind(address)

    def _watch_connections(self, events: int, receive_event: Callable[[], None]) -> None:
        """Calls `receive_event` for each of these `events` of connections, which it reads from the monitor."""
        self._monitor = self._socket.get_monitor_socket(events)
        self._readers.append(SocketReader(self._monitor, receive_event))

    def _start_reading(self, receive_frame: Callable[[], None]) -> None:
        """Calls `receive_frame` for each frame from now on."""
        self._reader = SocketReader(self._socket, receive_frame)
        self._readers.append(self._reader)

    def _receive_message(self) -> tuple[bytes, bytes, zmq.Frame]:
        """Receives one frame: identity, data, and what libzmq knows of it.

        The data are empty for a frame in parts, which no client of ours sends.
        """
        identity, frame = self._socket.recv(_NO_WAIT), self._socket.recv(_NO_WAIT, copy=False)
        if not frame.more:
            return identity, frame.bytes, frame
        self._socket.recv_multipart(_NO_WAIT)
        return identity, b"", frame

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client, and never waits. False when the client is gone or does not read."""
        router = self._socket
        try:
            router.send(identity, _NO_WAIT_MORE)
            if pixels is None:
                router.send(data, _NO_WAIT)
            else:
                router.send(data, _NO_WAIT_MORE)
                router.send(pixels, _NO_WAIT, copy=False)
        except zmq.ZMQError:
            return False
        finally:
            # A send, also a failed one, may consume the signal of a frame that has arrived.
            if self._reader is not None:
                self._reader.schedule_read()
        return True

    def set_paused(self, is_paused: bool) -> None:
        """Reads no more frames, or reads again. Clients that send more meanwhile wait in their own queues."""
        if self._reader is not None:
            self._reader.set_paused(is_paused)

    def close(self) -> None:
        """Closes the socket, and all connections with it."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._reader = None
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self._socket.close(0)


class Router(RouterSocket):
    """The ROUTER of one path.

    A socket that was handed over (`handed`) is used as it is, and every connection to it is accepted. Otherwise it
    listens at `path` itself, on a socket with permission bits `mode`, and accepts as many connections as
    `max_descriptors` descriptors allow. With `user`, only processes of this user (a uid) are accepted.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        *,
        handed: socket.socket | None = None,
        max_descriptors: int = SPARE_DESCRIPTORS,
        user: int | None = None,
    ) -> None:
        self._context = zmq.Context(io_threads=1)
        super().__init__(self._context)
        self.path = path
        self._mode = mode
        self._handed = handed
        self._max_descriptors = max_descriptors
        self._limiter: ConnectionLimiter | None = None
        self._handle_frame: FrameHandler = lambda _identity, _frame: None
        if user is not None:
            self._socket.setsockopt(zmq.IPC_FILTER_UID, user)

    @property
    def connection_count(self) -> int:
        """The connections that are open, as far as they are counted; those to a handed socket are not."""
        return self._limiter.connection_count if self._limiter is not None else 0

    def start_listening(self, handle_frame: FrameHandler) -> None:
        """Listens, and calls `handle_frame(identity, frame)` from now on. Raises OSError, also for ZeroMQ's errors."""
        self._handle_frame = handle_frame
        try:
            if self._handed is not None:  # libzmq closes the descriptor, and leaves the path
                self._bind_socket(self._handed, f"ipc://{self.path}")
            else:
                self._watch_connections(_CONNECTED | _REJECTED | _DISCONNECTED, self._receive_connection_event)
                self._limiter = ConnectionLimiter(
                    self.path,
                    self._mode,
                    self._max_descriptors,
                    lambda waiting, name: self._bind_socket(waiting, f"ipc://{name}"),
                    lambda name: self._socket.unbind(f"ipc://{name}"),
                )
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        self._start_reading(self._receive_frame)

    def renew_if_gone(self) -> bool:
        """Listens at the path again if its socket is gone. Returns whether it was. Raises OSError."""
        return self._limiter is not None and self._limiter.renew_if_gone()

    def _receive_connection_event(self) -> None:
        """Reports a connection that was accepted, rejected or ended to the limiter."""
        assert self._monitor is not None and self._limiter is not None  # noqa: S101, PT018 - its own reader calls this
        event, address = self._monitor.recv_multipart(_NO_WAIT)
        number, name = MONITOR_EVENT.unpack_from(event)[0], os.fsdecode(address).removeprefix("ipc://")
        if number != _DISCONNECTED:
            self._limiter.on_connection_accepted(name)
        if number != _CONNECTED:
            self._limiter.on_connection_ended(name)

    def _receive_frame(self) -> None:
        identity, data, _ = self._receive_message()
        self._handle_frame(identity, data)

    def close(self) -> None:
        """Closes the socket, and removes the one at the path unless it was handed over."""
        if self._limiter is not None:
            self._limiter.close()
            self._limiter = None
        super().close()
        self._context.destroy(0)
        if self._handed is None:
            with suppress(OSError):  # its folder is gone
                self.path.unlink()
        else:
            self._handed.close()  # open still if it never began to listen


# --- Limits the connections to a ZeroMQ socket, which has no limit of its own.
#
# libzmq accepts every connection to a socket that it listens at, and ends the process when it gets no descriptor for
# one. So libzmq never gets the socket at the path, which only collects connections, `KNOCKS` at most. To admit them,
# the limiter binds a new socket, renames it to the path, and gives the old one to libzmq. No client can reach the old
# one any more.


_NAME_CHARACTERS: Final = string.digits + string.ascii_lowercase
_NAME_LENGTH: Final = 2  # with the `~` before it as long as the descriptor socket's suffix, for which a path has room
_LISTEN_RETRY_S: Final = 1.0
_UNCONFIRMED_GROUPS: Final = 2  # the last groups, whose connections libzmq may not have reported yet


@dataclass(slots=True)
class _ConnectionGroup:
    """Connections admitted together. Their listening socket takes one descriptor, and each connection another."""

    accepted: int = 0
    ended: int = 0


class ConnectionLimiter:
    """Owns the socket at `path`, and counts the connections that it admitted.

    Listening and connections take at most `max_descriptors` descriptors. `accept_waiting` gets a listening socket and
    its name, and accepts the connections that wait there; `stop_accepting` ends that socket when its connections have
    ended. `on_connection_accepted` and `on_connection_ended` are called for each connection with that name. Lives on
    the event loop.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        max_descriptors: int,
        accept_waiting: Callable[[socket.socket, str], None],
        stop_accepting: Callable[[str], None],
    ) -> None:
        self._path, self._mode, self._max_descriptors = path, mode, max_descriptors
        self._accept_waiting, self._stop_accepting = accept_waiting, stop_accepting
        self._groups: dict[str, _ConnectionGroup] = {}  # by name, in the order in which they were admitted
        self._names = itertools.cycle(map("".join, itertools.product(_NAME_CHARACTERS, repeat=_NAME_LENGTH)))
        self._place: tuple[int, int] | None = None  # of the socket at the path, as the file system knows it
        self._queue, self._name = self._open_listening_socket()
        self._is_full = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._pause_or_resume_listening()

    @property
    def connection_count(self) -> int:
        """The connections that are open, as far as libzmq has reported them."""
        return sum(group.accepted - group.ended for group in self._groups.values())

    @property
    def used_descriptor_count(self) -> int:
        """The most descriptors that listening and connections may take now, with connections not reported yet."""
        # libzmq may not have reported all connections of the last groups, so each of these groups counts as if it were
        # full.
        unsure = len(self._groups) - _UNCONFIRMED_GROUPS
        return 1 + sum(
            1 + (group.accepted if place < unsure else max(KNOCKS, group.accepted)) - group.ended
            for place, group in enumerate(self._groups.values())
        )

    def on_connection_accepted(self, name: str) -> None:
        """Counts a connection of a group that libzmq has accepted."""
        if name in self._groups:
            self._groups[name].accepted += 1
            self._pause_or_resume_listening()

    def on_connection_ended(self, name: str) -> None:
        """Counts an ended connection of a group, and ends earlier groups that have none left."""
        if name not in self._groups:
            return
        self._groups[name].ended += 1
        # The last groups are kept even if all known connections have ended, since others may not be reported yet.
        for each, group in list(self._groups.items())[:-_UNCONFIRMED_GROUPS]:
            if group.ended == group.accepted:
                del self._groups[each]
                self._stop_accepting(each)
        self._pause_or_resume_listening()

    def renew_if_gone(self) -> bool:
        """Puts a listening socket at the path again if it is gone. Returns whether it was. Raises OSError."""
        if identify_file(self._path) == self._place:
            return False
        waiting, name = self._queue, self._name
        self._queue, self._name = self._open_listening_socket()
        asyncio.get_running_loop().remove_reader(waiting)
        arrived = select.poll()
        arrived.register(waiting, select.POLLIN)
        if arrived.poll(0):
            self._groups[name] = _ConnectionGroup()
            self._accept_waiting(waiting, name)
        else:  # nobody can connect to it any more, so libzmq would never report a connection of it
            waiting.close()
        self._pause_or_resume_listening()
        return True

    def close(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        asyncio.get_running_loop().remove_reader(self._queue)
        self._queue.close()

    def _open_listening_socket(self) -> tuple[socket.socket, str]:
        """Puts a new listening socket in place of the one at the path; returns it and its name. Raises OSError."""
        # A name is free, too, where a killed daemon left a socket. Other files are not touched.
        for name in map(f"{self._path}~{{}}".format, self._names):
            if name not in self._groups and (not os.path.lexists(name) or Path(name).is_socket()):
                break
        # The rename replaces the old socket in one step, so there is always one at the path for clients to connect to.
        aside = Path(name)
        aside.unlink(missing_ok=True)
        queue = socket.socket(socket.AF_UNIX)
        try:
            queue.setblocking(False)
            queue.bind(name)
            aside.chmod(self._mode)
            queue.listen(KNOCKS - 1)  # the kernel lets one more in
            self._place = identify_file(aside)
            aside.rename(self._path)
        except BaseException:
            queue.close()
            raise
        return queue, name

    def _pause_or_resume_listening(self) -> None:
        """Listens while there is room for KNOCKS more connections, and libzmq has accepted one of the last group."""
        loop = asyncio.get_running_loop()
        last = next(reversed(self._groups.values()), None)
        is_full = self.used_descriptor_count + 1 + KNOCKS > self._max_descriptors
        if is_full and not self._is_full:
            log.warning(
                "session.refused",
                f"no more connections for now: they take {self.used_descriptor_count} of the {self._max_descriptors} "
                "descriptors that there are for them; new clients wait. Allow the daemon more open files (ulimit "
                "-n, LimitNOFILE=)",
            )
        self._is_full = is_full
        if is_full or (last is not None and not last.accepted):
            loop.remove_reader(self._queue)
        else:
            loop.add_reader(self._queue, self._admit_waiting_clients)

    def _admit_waiting_clients(self) -> None:
        asyncio.get_running_loop().remove_reader(self._queue)
        waiting, name = self._queue, self._name
        try:
            self._queue, self._name = self._open_listening_socket()
        except OSError as error:  # the folder is full or not writable now: present trainers continue
            log.warning(
                "session.refused",
                f"no new trainer can connect for {_LISTEN_RETRY_S:g} s: {self._path}: {error.strerror}",
            )
            self._retry_timer = asyncio.get_running_loop().call_later(_LISTEN_RETRY_S, self._pause_or_resume_listening)
            return
        # The group is known before libzmq can report its connections.
        self._groups[name] = _ConnectionGroup()
        self._accept_waiting(waiting, name)
        self._pause_or_resume_listening()
