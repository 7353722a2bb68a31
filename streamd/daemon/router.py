"""The daemon's ROUTER: frames in, frames out. The only server file with ZeroMQ.

The socket belongs to the event loop's thread, never blocks, and is read when its descriptor says so. That descriptor is
edge-triggered, and sending may eat the edge: after sending, the socket's state is looked at again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import zmq

from streamd.daemon import socket_activation
from streamd.daemon.listener import Door
from streamd.errors import ConfigError
from streamd.ipc import endpoint
from streamd.limits import HANDSHAKE_MS, MAX_CLIENT_FRAME_BYTES, ROUTER_QUEUE, SPARE_DESCRIPTORS

SOCKET_MODE: Final = 0o660
_FRAMES_A_TURN: Final = 256  # read before the loop serves others
# As plain numbers: to combine two of an enumeration takes longer than to look at the socket.
_AT_ONCE: Final = int(zmq.DONTWAIT)
_MORE_AT_ONCE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_INPUT: Final = int(zmq.POLLIN)
_COMING: Final = int(zmq.EVENT_ACCEPTED)
_GOING: Final = int(zmq.EVENT_DISCONNECTED)
_EVENT: Final = struct.Struct("=Hi")  # number and value, as a monitor tells of it

Receiver = Callable[[bytes, bytes], None]


class Server:
    """One ipc endpoint, locked against a second daemon, readable and writable by owner and group.

    Sockets that were handed over are used as they are, and outlive it: all who connect to them are let in. At a socket
    of its own there are at most as many connections as `most` descriptors are enough for.
    """

    def __init__(
        self, address: str, handed: socket_activation.Handed | None = None, most: int = SPARE_DESCRIPTORS
    ) -> None:
        """Raises ConfigError for an endpoint that cannot be, or that other sockets were handed over for."""
        endpoint.check(address)
        self.address = address
        self._path = endpoint.socket_path(address)
        self._handed = socket_activation.chosen(handed or {}, self._path, Path(self.descriptors))
        self._context = zmq.Context(io_threads=1)
        self._router: zmq.Socket[bytes] | None = None
        self._most = most
        self._door: Door | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._lock: int | None = None
        self._receive: Receiver | None = None
        self._look_again: asyncio.Handle | None = None

    @property
    def descriptors(self) -> str:
        """The path of the descriptor socket beside this endpoint."""
        return endpoint.descriptor_path(self.address)

    @property
    def handed_descriptors(self) -> socket.socket | None:
        """The descriptor socket, where it was handed over; whoever listens there closes it."""
        return self._handed[1] if self._handed else None

    def listen(self, receive: Receiver) -> None:
        """Binds and begins to call `receive(identity, frame)`. Raises ConfigError when the endpoint is taken."""
        self.take()
        self._receive = receive
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.SNDHWM, ROUTER_QUEUE)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_CLIENT_FRAME_BYTES)
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._router = router
        try:
            if self._handed is not None:  # libzmq closes the descriptor, and leaves the path alone
                self._let_in(self._handed[0], str(self._path))
            else:
                self._monitor = router.get_monitor_socket(_COMING | _GOING)
                asyncio.get_running_loop().add_reader(self._monitor.FD, self._count)
                self._door = Door(self._path, SOCKET_MODE, self._most, self._let_in, self._dismiss)
                self._count()  # a descriptor of ZeroMQ is quiet until its socket was found empty
        except OSError as error:  # which ZeroMQ's are not
            raise ConfigError(f"cannot listen at {self.address}: {error.strerror}") from error
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen at {self.address}: {error.strerror}") from error
        asyncio.get_running_loop().add_reader(router.FD, self._readable)
        self._readable()

    def _let_in(self, waiting: socket.socket, name: str) -> None:
        """Has libzmq accept who waits at a listening socket, and whoever comes there later."""
        assert self._router is not None  # noqa: S101 - it is listened with
        self._router.setsockopt(zmq.USE_FD, waiting.detach())
        self._router.bind(f"ipc://{name}")

    def _dismiss(self, name: str) -> None:
        """Ends a socket that was let in, whose connections have all ended."""
        assert self._router is not None  # noqa: S101 - as above
        self._router.unbind(f"ipc://{name}")

    def _count(self) -> None:
        """Tells the door of connections that came or went."""
        monitor, door = self._monitor, self._door
        while monitor is not None and door is not None and _has_input(monitor):
            what, place = monitor.recv_multipart(_AT_ONCE)
            tell = door.accepted if _EVENT.unpack_from(what)[0] == _COMING else door.ended
            tell(os.fsdecode(place).removeprefix("ipc://"))

    def take(self) -> None:
        """Locks the endpoint, for ZeroMQ would steal it from a living daemon, and clears what a dead one left.

        A daemon does so first of all: listing anew, it would else replace the manifests that another one has mapped.
        Raises ConfigError when the endpoint is taken.
        """
        if self._lock is None:
            self._lock = _lock(self._path)
            self._clear()

    def _clear(self) -> None:
        if self._handed is not None:
            return
        for each in (self._path, Path(self.descriptors)):
            each.unlink(missing_ok=True)

    def send(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client without ever waiting; False when it is gone or does not read."""
        router = self._router
        if router is None:
            return False
        try:
            router.send(identity, _MORE_AT_ONCE)
            if pixels is None:
                router.send(data, _AT_ONCE)
            else:
                router.send(data, _MORE_AT_ONCE)
                router.send(pixels, _AT_ONCE, copy=False)
        except zmq.ZMQError:
            return False
        finally:  # whatever became of it, it may have used up the signal of a frame that has come
            self._look_soon()
        return True

    def _look_soon(self) -> None:
        if self._look_again is None:
            self._look_again = asyncio.get_running_loop().call_soon(self._readable)

    def _readable(self) -> None:
        self._look_again = None
        router, receive = self._router, self._receive
        if router is None or receive is None:
            return
        for _ in range(_FRAMES_A_TURN):
            if not _has_input(router):
                return
            receive(*_message(router))
        self._look_soon()

    def close(self) -> None:
        """Ends the socket and gives the endpoint up."""
        if self._look_again is not None:
            self._look_again.cancel()
        if self._door is not None:
            self._door.close()
            self._door = None
        if self._router is not None and self._monitor is not None:
            asyncio.get_running_loop().remove_reader(self._monitor.FD)
            self._router.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        if self._router is not None:
            asyncio.get_running_loop().remove_reader(self._router.FD)
            self._router.close(0)
            self._router = None
        self._context.destroy(0)
        if self._lock is not None:
            self._clear()
            os.close(self._lock)
            self._lock = None
        for each in self._handed or ():  # if it never came to listen
            each.close()


def _has_input(router: zmq.Socket[bytes]) -> bool:
    return bool(cast("int", router.getsockopt(zmq.EVENTS)) & _INPUT)


def _message(router: zmq.Socket[bytes]) -> tuple[bytes, bytes]:
    """Who says what; nothing when it comes in parts, which no client of ours does."""
    identity, frame = router.recv(_AT_ONCE), router.recv(_AT_ONCE, copy=False)
    if not frame.more:
        return identity, frame.bytes
    router.recv_multipart(_AT_ONCE)
    return identity, b""


def _lock(path: Path) -> int:
    """An exclusive lock beside the socket, held until the process ends. Raises ConfigError."""
    if path.is_dir():
        raise ConfigError(f"cannot listen at {path}: it is a folder; name a file in it, such as {path}/streamd.sock")
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {path}: {error.strerror}: {error.filename}; choose another with `listen:`"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(
            f"another streamd serves {path}: stop it, or choose another endpoint with `listen:`"
        ) from error
    return descriptor
