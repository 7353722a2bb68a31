"""How a thread waits for descriptors and is woken, with what the system has: eventfd and epoll, or less."""

from __future__ import annotations

import os
import select
import selectors
import socket
import weakref
from collections.abc import Iterable


class WakeSignal:
    """Wakes a thread that waits for `descriptor`. `wake` never waits, and any thread may call it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        if hasattr(os, "eventfd"):
            self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            # Views that outlive the stream still write to the descriptor, so it closes with the last of them and not
            # when the thread ends. It stays open at the interpreter's exit: the thread still polls it, and its number
            # could be reused.
            weakref.finalize(self, os.close, self.descriptor).atexit = False
            return
        self._waiting, self._socket = socket.socketpair()
        for end in (self._waiting, self._socket):
            end.setblocking(False)
            weakref.finalize(self, end.close).atexit = False  # as above
        self.descriptor = self._waiting.fileno()

    def wake(self) -> None:
        """Makes the descriptor readable."""
        if self._socket is None:
            os.eventfd_write(self.descriptor, 1)
            return
        try:
            self._socket.send(b"\0")
        except BlockingIOError:  # it is readable already
            return

    def clear(self) -> None:
        """Makes the descriptor silent until the next `wake`. Call it when it is readable."""
        if self._socket is None:
            os.eventfd_read(self.descriptor)
        else:
            self._waiting.recv(1 << 16)


class DescriptorPoller:
    """Waits until one of some descriptors is readable."""

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._epoll: select.epoll | None = None
        self._selector: selectors.BaseSelector | None = None
        if hasattr(select, "epoll"):
            self._epoll = select.epoll()
            for descriptor in descriptors:
                self._epoll.register(descriptor, select.EPOLLIN)
            return
        self._selector = selectors.DefaultSelector()
        for descriptor in descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ)

    def poll(self, wait_s: float | None) -> list[int]:
        """Waits up to `wait_s` seconds, without a limit for None, and returns the descriptors that are readable."""
        if self._epoll is not None:
            return [descriptor for descriptor, _ in self._epoll.poll(wait_s)]
        return [key.fd for key, _ in self._selector.select(wait_s)] if self._selector is not None else []

    def close(self) -> None:
        for each in (self._epoll, self._selector):
            if each is not None:
                each.close()
