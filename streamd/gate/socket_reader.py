"""Reads a ZeroMQ socket on the event loop.

The descriptor of such a socket is edge-triggered, silent until the socket was found empty once, and sending may consume
its signal. So the socket's state is read before the first wait, and again after each send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import zmq

from streamd.limits import LINK_TURN_S

_INPUT: Final = int(zmq.POLLIN)


def has_input(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received."""
    return bool(cast("int", socket.getsockopt(zmq.EVENTS)) & _INPUT)


class SocketReader:
    """Calls `receive`, which receives one message, whenever `socket` has one. Lives on the event loop."""

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
        """Stops to read, or goes on. Messages that arrive meanwhile wait."""
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
        """Stops to read for good. Call it before the socket is closed."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._is_paused = True
        if self._scheduled is not None:
            self._scheduled.cancel()
