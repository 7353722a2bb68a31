"""The daemon's ROUTER: frames in, frames out. The only server file with ZeroMQ.

The socket belongs to the event loop's thread, never blocks, and is read when its descriptor says so. That descriptor is
edge-triggered, and sending may eat the edge: after sending, the socket's state is looked at again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import zmq

from streamd import activation, endpoint
from streamd.errors import ConfigError
from streamd.limits import HANDSHAKE_MS, MAX_CLIENT_FRAME_BYTES, ROUTER_QUEUE

SOCKET_MODE: Final = 0o660
_UMASK: Final = 0o117
_FRAMES_A_TURN: Final = 256  # read before the loop serves others
# As plain numbers: to combine two of an enumeration takes longer than to look at the socket.
_AT_ONCE: Final = int(zmq.DONTWAIT)
_MORE_AT_ONCE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_INPUT: Final = int(zmq.POLLIN)

Receiver = Callable[[bytes, bytes], None]


class Server:
    """One ipc endpoint, locked against a second daemon, readable and writable by owner and group.

    Sockets that were handed over are used as they are, and outlive it.
    """

    def __init__(self, address: str, handed: activation.Handed | None = None) -> None:
        """Raises ConfigError for an endpoint that cannot be, or that other sockets were handed over for."""
        endpoint.check(address)
        self.address = address
        self._path = endpoint.socket_path(address)
        self._handed = activation.chosen(handed or {}, self._path, Path(self.descriptors))
        self._context = zmq.Context(io_threads=1)
        self._router: zmq.Socket[bytes] | None = None
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
        if self._handed is not None:  # libzmq closes the descriptor, and leaves the path alone
            router.setsockopt(zmq.USE_FD, self._handed[0].detach())
        before = os.umask(_UMASK)
        try:
            router.bind(self.address)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen at {self.address}: {error.strerror}") from error
        finally:
            os.umask(before)
        asyncio.get_running_loop().add_reader(router.FD, self._readable)
        self._readable()

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
