"""The daemon's ROUTER socket, which receives and sends frames. The only module of the daemon that uses ZeroMQ.

The socket belongs to the event loop's thread, never blocks, and is read when its descriptor is readable. That
descriptor is edge-triggered, and sending may consume the edge, so the socket's state is checked again after each send.

Trainers are admitted a few at a time, as far as there are descriptors. libzmq accepts every connection to a socket that
it listens at, and ends the process when it gets no descriptor for one. So libzmq never gets the socket at the path,
which only collects connections, `KNOCKS` at most. To admit them, the daemon binds a new socket, renames it to the path,
and gives the old one to libzmq. No client can reach the old one any more.
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
# Plain integers, since combining members of an enumeration takes longer than reading the socket's state.
_NO_WAIT: Final = int(zmq.DONTWAIT)
_NO_WAIT_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_INPUT: Final = int(zmq.POLLIN)
_CONNECTED: Final = int(zmq.EVENT_ACCEPTED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_MONITOR_EVENT: Final = struct.Struct("=Hi")  # event number and value, as a monitor socket sends them
_NAME_CHARACTERS: Final = string.digits + string.ascii_lowercase
_NAME_LENGTH: Final = 2  # with the `~` before it as long as the descriptor socket's suffix, for which a path has room
_LISTEN_RETRY_S: Final = 1.0
_UNCONFIRMED_GROUPS: Final = 2  # the last groups, whose connections libzmq may not have reported yet

FrameHandler = Callable[[bytes, bytes], None]


class Router:
    """One ipc endpoint, locked against a second daemon, readable and writable by owner and group.

    Sockets that the service manager handed over are used as they are, and outlive the daemon: every connection to them
    is accepted. A socket of the daemon's own accepts as many connections as `max_descriptors` descriptors allow.
    """

    def __init__(
        self,
        address: str,
        handed_sockets: socket_activation.HandedSockets | None = None,
        max_descriptors: int = SPARE_DESCRIPTORS,
    ) -> None:
        """Raises ConfigError for an invalid endpoint, or one that differs from the sockets that were handed over."""
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
        """The descriptor socket, if it was handed over. The server that listens there closes it."""
        return self._handed_sockets[1] if self._handed_sockets else None

    def start_listening(self, handle_frame: FrameHandler) -> None:
        """Binds, and calls `handle_frame(identity, frame)` from now on. Raises ConfigError if the address is taken."""
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
            if self._handed_sockets is not None:  # libzmq closes the descriptor, and leaves the path
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
                # The descriptor of a ZeroMQ socket stays silent until the socket was found empty once.
                self._handle_connection_events()
        except (OSError, zmq.ZMQError) as error:
            raise ConfigError(f"cannot listen on {self.address}: {error.strerror}") from error
        asyncio.get_running_loop().add_reader(router.FD, self._read_frames)
        self._read_frames()

    def _bind_listening_socket(self, waiting: socket.socket, name: str) -> None:
        """Gives a listening socket to libzmq, which accepts the connections that wait there, and later ones."""
        assert self._socket is not None  # noqa: S101 - start_listening has set it
        self._socket.setsockopt(zmq.USE_FD, waiting.detach())
        self._socket.bind(f"ipc://{name}")

    def _unbind_listening_socket(self, name: str) -> None:
        """Ends a listening socket of libzmq, whose connections have all ended."""
        assert self._socket is not None  # noqa: S101 - as above
        self._socket.unbind(f"ipc://{name}")

    def _handle_connection_events(self) -> None:
        """Reports connections that were accepted or ended to the connection gate."""
        monitor, gate = self._monitor, self._connection_gate
        while monitor is not None and gate is not None and _has_socket_input(monitor):
            event, address = monitor.recv_multipart(_NO_WAIT)
            is_accepted = _MONITOR_EVENT.unpack_from(event)[0] == _CONNECTED
            handle_event = gate.on_connection_accepted if is_accepted else gate.on_connection_ended
            handle_event(os.fsdecode(address).removeprefix("ipc://"))

    def lock_endpoint(self) -> None:
        """Locks the endpoint, and removes the socket files of a daemon that has died.

        Without the lock, ZeroMQ would take the endpoint from a living daemon. A daemon locks it before anything else:
        otherwise --rescan could replace manifests that another daemon has mapped. Raises ConfigError when the endpoint
        is taken.
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
        """Sends to one client, and never waits. False when the client is gone or does not read."""
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
        finally:
            # A send, also a failed one, may consume the signal of a frame that has arrived.
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
        # Other callbacks run first, and reading continues after them: the descriptor gives no further signal for frames
        # that have already arrived.
        self._schedule_frame_read()

    def close(self) -> None:
        """Closes the socket, removes its files, and releases the endpoint."""
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
        # The files are removed before the lock is released: the next daemon takes the lock, and then makes its own
        # files.
        if self._lock_descriptor is not None:
            self._remove_socket_files()
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        for each in self._handed_sockets or ():  # open still, if it never began to listen
            each.close()


@dataclass(slots=True)
class _ConnectionGroup:
    """Connections admitted together. Their listening socket takes one descriptor, and each connection another."""

    accepted: int = 0
    ended: int = 0

    def count_group_descriptors(self, *, is_sure: bool) -> int:
        return 1 + (self.accepted if is_sure else max(KNOCKS, self.accepted)) - self.ended


class ConnectionGate:
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
        self._queue, self._name = self._open_listening_socket()
        self._is_full = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._pause_or_resume_listening()

    @property
    def used_descriptor_count(self) -> int:
        """The most descriptors that listening and connections may take now, with connections not reported yet."""
        # libzmq may not have reported all connections of the last groups, so each of these groups counts as if it were
        # full.
        unsure = len(self._groups) - _UNCONFIRMED_GROUPS
        groups = enumerate(self._groups.values())
        return 1 + sum(group.count_group_descriptors(is_sure=place < unsure) for place, group in groups)

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

    def close(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        asyncio.get_running_loop().remove_reader(self._queue)
        self._queue.close()

    def _open_listening_socket(self) -> tuple[socket.socket, str]:
        """Puts a new listening socket in place of the one at the path; returns it and its name. Raises OSError."""
        name = next(name for name in map(f"{self._path}~{{}}".format, self._names) if self._is_socket_name_free(name))
        # The rename replaces the old socket in one step, so there is always one at the path for clients to connect to.
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
        """Whether a name is free, or has a socket that a killed daemon left there. Other files are not touched."""
        return name not in self._groups and (not os.path.lexists(name) or Path(name).is_socket())

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


def _has_socket_input(router: zmq.Socket[bytes]) -> bool:
    return bool(cast("int", router.getsockopt(zmq.EVENTS)) & _INPUT)


def _receive_frame(router: zmq.Socket[bytes]) -> tuple[bytes, bytes]:
    """Receives one frame: identity and data. The data are empty for a frame in parts, which no client of ours sends."""
    identity, frame = router.recv(_NO_WAIT), router.recv(_NO_WAIT, copy=False)
    if not frame.more:
        return identity, frame.bytes
    router.recv_multipart(_NO_WAIT)
    return identity, b""


def build_endpoint_lock_path(path: Path) -> Path:
    """Returns the path of the lock file beside a socket."""
    return Path(f"{path}.lock")


def build_folder_endpoint_error(path: Path) -> ConfigError:
    """Returns the error for a socket's path that is a folder."""
    return ConfigError(
        f"cannot listen on {path}: it is a folder; give the path of a file in it, such as {path}/streamd.sock"
    )


def build_unusable_endpoint_error(path: Path, error: OSError) -> ConfigError:
    """Returns the error for a socket's path that cannot be written."""
    return ConfigError(
        f"cannot listen on {path}: {error.strerror}: {error.filename}; choose another endpoint with `listen:`"
    )


def _open_endpoint_lock(path: Path) -> int:
    """Takes the exclusive lock beside a socket; returns its descriptor. Raises ConfigError if that is not possible."""
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
            f"another streamd is already listening on {path}: stop it, or choose another endpoint with `listen:`"
        ) from error
    return descriptor
