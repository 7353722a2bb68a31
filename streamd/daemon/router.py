"""The daemon's ROUTER: frames in, frames out. The only server file with ZeroMQ.

The socket belongs to the event loop's thread, never blocks, and is read when its descriptor says so. That descriptor is
edge-triggered, and sending may eat the edge: after sending, the socket's state is looked at again.

Trainers are let in a few at a time, as far as there are descriptors. libzmq accepts whoever connects to a socket that
it listens at, and ends the process when it gets no descriptor for one more. So it is never given the socket at the
path: that one only collects knocks, `KNOCKS` at most. Those in it are let in by taking its place at the path with a new
one, and giving libzmq the old one, which nobody reaches any more.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import socket
import string
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import zmq

from streamd.core import log
from streamd.daemon import socket_activation
from streamd.errors import ConfigError
from streamd.ipc import endpoint
from streamd.limits import HANDSHAKE_MS, KNOCKS, MAX_CLIENT_FRAME_BYTES, ROUTER_QUEUE, SPARE_DESCRIPTORS

SOCKET_MODE: Final = 0o660
_MAX_FRAMES_PER_TURN: Final = 256  # read before the loop serves others
# As plain numbers: to combine two of an enumeration takes longer than to look at the socket.
_NO_WAIT: Final = int(zmq.DONTWAIT)
_NO_WAIT_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_INPUT: Final = int(zmq.POLLIN)
_CONNECTED: Final = int(zmq.EVENT_ACCEPTED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_MONITOR_EVENT: Final = struct.Struct("=Hi")  # number and value, as a monitor tells of it
_NAME_CHARACTERS: Final = string.digits + string.ascii_lowercase
_NAME_LENGTH: Final = 2  # with the mark before them as long as the descriptor socket's suffix: there is room for that
_LISTEN_RETRY_S: Final = 1.0
_UNCONFIRMED_GROUPS: Final = 2  # groups let in last, of whose knocks libzmq may not have told yet

FrameHandler = Callable[[bytes, bytes], None]


class Router:
    """One ipc endpoint, locked against a second daemon, readable and writable by owner and group.

    Sockets that were handed over are used as they are, and outlive it: all who connect to them are let in. At a socket
    of its own there are at most as many connections as `max_descriptors` descriptors are enough for.
    """

    def __init__(
        self,
        address: str,
        handed_sockets: socket_activation.HandedSockets | None = None,
        max_descriptors: int = SPARE_DESCRIPTORS,
    ) -> None:
        """Raises ConfigError for an endpoint that cannot be, or that other sockets were handed over for."""
        endpoint.check_endpoint(address)
        self.address = address
        self._path = endpoint.socket_path(address)
        self._handed_sockets = socket_activation.choose_endpoint_sockets(
            handed_sockets or {}, self._path, Path(self.descriptor_socket_path)
        )
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] | None = None
        self._max_descriptors = max_descriptors
        self._connection_gate: ConnectionGate | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._lock_descriptor: int | None = None
        self._handle_frame: FrameHandler | None = None
        self._scheduled_read: asyncio.Handle | None = None

    @property
    def descriptor_socket_path(self) -> str:
        """The path of the descriptor socket beside this endpoint."""
        return endpoint.descriptor_socket_path(self.address)

    @property
    def handed_descriptor_socket(self) -> socket.socket | None:
        """The descriptor socket, where it was handed over; whoever listens there closes it."""
        return self._handed_sockets[1] if self._handed_sockets else None

    def start_listening(self, handle_frame: FrameHandler) -> None:
        """Binds and begins to call `receive(identity, frame)`. Raises ConfigError when the endpoint is taken."""
        self.lock_endpoint()
        self._handle_frame = handle_frame
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.SNDHWM, ROUTER_QUEUE)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_CLIENT_FRAME_BYTES)
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._socket = router
        try:
            if self._handed_sockets is not None:  # libzmq closes the descriptor, and leaves the path alone
                self._bind_listening_socket(self._handed_sockets[0], str(self._path))
            else:
                self._monitor = router.get_monitor_socket(_CONNECTED | _DISCONNECTED)
                asyncio.get_running_loop().add_reader(self._monitor.FD, self._handle_connection_events)
                self._connection_gate = ConnectionGate(
                    self._path,
                    SOCKET_MODE,
                    self._max_descriptors,
                    self._bind_listening_socket,
                    self._unbind_listening_socket,
                )
                self._handle_connection_events()  # a descriptor of ZeroMQ is quiet until its socket was found empty
        except OSError as error:  # which ZeroMQ's are not
            raise ConfigError(f"cannot listen at {self.address}: {error.strerror}") from error
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen at {self.address}: {error.strerror}") from error
        asyncio.get_running_loop().add_reader(router.FD, self._read_frames)
        self._read_frames()

    def _bind_listening_socket(self, waiting: socket.socket, name: str) -> None:
        """Has libzmq accept who waits at a listening socket, and whoever comes there later."""
        assert self._socket is not None  # noqa: S101 - it is listened with
        self._socket.setsockopt(zmq.USE_FD, waiting.detach())
        self._socket.bind(f"ipc://{name}")

    def _unbind_listening_socket(self, name: str) -> None:
        """Ends a socket that was let in, whose connections have all ended."""
        assert self._socket is not None  # noqa: S101 - as above
        self._socket.unbind(f"ipc://{name}")

    def _handle_connection_events(self) -> None:
        """Tells the door of connections that came or went."""
        monitor, door = self._monitor, self._connection_gate
        while monitor is not None and door is not None and _has_socket_input(monitor):
            what, place = monitor.recv_multipart(_NO_WAIT)
            tell = (
                door.on_connection_accepted
                if _MONITOR_EVENT.unpack_from(what)[0] == _CONNECTED
                else door.on_connection_ended
            )
            tell(os.fsdecode(place).removeprefix("ipc://"))

    def lock_endpoint(self) -> None:
        """Locks the endpoint, for ZeroMQ would steal it from a living daemon, and clears what a dead one left.

        A daemon does so first of all: listing anew, it would else replace the manifests that another one has mapped.
        Raises ConfigError when the endpoint is taken.
        """
        if self._lock_descriptor is None:
            self._lock_descriptor = _open_endpoint_lock(self._path)
            self._remove_socket_files()

    def _remove_socket_files(self) -> None:
        if self._handed_sockets is not None:
            return
        for each in (self._path, Path(self.descriptor_socket_path)):
            each.unlink(missing_ok=True)

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client without ever waiting; False when it is gone or does not read."""
        router = self._socket
        if router is None:
            return False
        try:
            router.send(identity, _NO_WAIT_MORE)
            if pixels is None:
                router.send(data, _NO_WAIT)
            else:
                router.send(data, _NO_WAIT_MORE)
                router.send(pixels, _NO_WAIT, copy=False)
        except zmq.ZMQError:
            return False
        finally:  # whatever became of it, it may have used up the signal of a frame that has come
            self._schedule_frame_read()
        return True

    def _schedule_frame_read(self) -> None:
        if self._scheduled_read is None:
            self._scheduled_read = asyncio.get_running_loop().call_soon(self._read_frames)

    def _read_frames(self) -> None:
        self._scheduled_read = None
        router, receive = self._socket, self._handle_frame
        if router is None or receive is None:
            return
        for _ in range(_MAX_FRAMES_PER_TURN):
            if not _has_socket_input(router):
                return
            receive(*_receive_frame(router))
        self._schedule_frame_read()

    def close(self) -> None:
        """Ends the socket and gives the endpoint up."""
        if self._scheduled_read is not None:
            self._scheduled_read.cancel()
        if self._connection_gate is not None:
            self._connection_gate.close()
            self._connection_gate = None
        if self._socket is not None and self._monitor is not None:
            asyncio.get_running_loop().remove_reader(self._monitor.FD)
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.FD)
            self._socket.close(0)
            self._socket = None
        self._context.destroy(0)
        if self._lock_descriptor is not None:
            self._remove_socket_files()
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        for each in self._handed_sockets or ():  # if it never came to listen
            each.close()


@dataclass(slots=True)
class _ConnectionGroup:
    """Connections that were let in together: the listening socket is one descriptor, each connection another."""

    accepted: int = 0
    ended: int = 0

    def count_group_descriptors(self, *, is_sure: bool) -> int:
        return 1 + (self.accepted if is_sure else max(KNOCKS, self.accepted)) - self.ended


class ConnectionGate:
    """Owns the socket at `path`, and counts what it let in.

    `max_descriptors` descriptors are for listening and connections. `accept_waiting` is given a listening socket with
    its name, to accept what waits there; `stop_accepting` ends it when its connections have. `accepted` and `ended`
    are told of each connection by that name. Lives on the event loop.
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
        self._groups: dict[str, _ConnectionGroup] = {}  # by name, in the order in which they were let in
        self._names = itertools.cycle(map("".join, itertools.product(_NAME_CHARACTERS, repeat=_NAME_LENGTH)))
        self._queue, self._name = self._open_listening_socket()
        self._is_full = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._pause_or_resume_listening()

    @property
    def used_descriptor_count(self) -> int:
        """What listening and connections may take now, knocks that were let in and not told of included."""
        unsure = len(self._groups) - _UNCONFIRMED_GROUPS
        groups = enumerate(self._groups.values())
        return 1 + sum(group.count_group_descriptors(is_sure=place < unsure) for place, group in groups)

    def on_connection_accepted(self, name: str) -> None:
        """libzmq has accepted a connection of that group."""
        if name in self._groups:
            self._groups[name].accepted += 1
            self._pause_or_resume_listening()

    def on_connection_ended(self, name: str) -> None:
        """A connection of that group has ended."""
        if name not in self._groups:
            return
        self._groups[name].ended += 1
        for each, group in list(self._groups.items())[:-_UNCONFIRMED_GROUPS]:
            if group.ended == group.accepted:
                del self._groups[each]
                self._stop_accepting(each)
        self._pause_or_resume_listening()

    def close(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        asyncio.get_running_loop().remove_reader(self._queue)
        self._queue.close()

    def _open_listening_socket(self) -> tuple[socket.socket, str]:
        """A new socket in the place of the one at the path. Raises OSError."""
        name = next(name for name in map(f"{self._path}~{{}}".format, self._names) if self._is_socket_name_free(name))
        aside = Path(name)
        aside.unlink(missing_ok=True)
        queue = socket.socket(socket.AF_UNIX)
        try:
            queue.setblocking(False)
            queue.bind(name)
            aside.chmod(self._mode)
            queue.listen(KNOCKS - 1)  # the kernel lets one more in
            aside.rename(self._path)
        except BaseException:
            queue.close()
            raise
        return queue, name

    def _is_socket_name_free(self, name: str) -> bool:
        """Also where a daemon left its socket that was killed right here; other files are somebody else's."""
        return name not in self._groups and (not os.path.lexists(name) or Path(name).is_socket())

    def _pause_or_resume_listening(self) -> None:
        """Hears knocks while there is room for all that may come at a time, and the last ones were let in."""
        loop = asyncio.get_running_loop()
        last = next(reversed(self._groups.values()), None)
        is_full = self.used_descriptor_count + 1 + KNOCKS > self._max_descriptors
        if is_full and not self._is_full:
            log.warning(
                "session.refused",
                f"no more connections for now: they take {self.used_descriptor_count} of the {self._max_descriptors} "
                "descriptors that there "
                "are for them; who connects waits. Allow the daemon more open files (ulimit -n, LimitNOFILE=)",
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
        except OSError as error:  # the folder is full, or may not be written any more: who is here goes on
            log.warning("session.refused", f"no new trainer for {_LISTEN_RETRY_S:g} s: {self._path}: {error.strerror}")
            self._retry_timer = asyncio.get_running_loop().call_later(_LISTEN_RETRY_S, self._pause_or_resume_listening)
            return
        self._groups[name] = _ConnectionGroup()
        self._accept_waiting(waiting, name)
        self._pause_or_resume_listening()


def _has_socket_input(router: zmq.Socket[bytes]) -> bool:
    return bool(cast("int", router.getsockopt(zmq.EVENTS)) & _INPUT)


def _receive_frame(router: zmq.Socket[bytes]) -> tuple[bytes, bytes]:
    """Who says what; nothing when it comes in parts, which no client of ours does."""
    identity, frame = router.recv(_NO_WAIT), router.recv(_NO_WAIT, copy=False)
    if not frame.more:
        return identity, frame.bytes
    router.recv_multipart(_NO_WAIT)
    return identity, b""


def build_endpoint_lock_path(path: Path) -> Path:
    """The file beside a socket that its daemon has locked."""
    return Path(f"{path}.lock")


def build_folder_endpoint_error(path: Path) -> ConfigError:
    """The refusal of a socket's path that is a folder's."""
    return ConfigError(f"cannot listen at {path}: it is a folder; name a file in it, such as {path}/streamd.sock")


def build_unusable_endpoint_error(path: Path, error: OSError) -> ConfigError:
    """The refusal of a socket's path where nothing can be written."""
    return ConfigError(f"cannot listen at {path}: {error.strerror}: {error.filename}; choose another with `listen:`")


def _open_endpoint_lock(path: Path) -> int:
    """An exclusive lock beside the socket, held until the process ends. Raises ConfigError."""
    if path.is_dir():
        raise build_folder_endpoint_error(path)
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = build_endpoint_lock_path(path)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise build_unusable_endpoint_error(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(
            f"another streamd serves {path}: stop it, or choose another endpoint with `listen:`"
        ) from error
    return descriptor
