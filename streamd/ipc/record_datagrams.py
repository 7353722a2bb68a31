"""Datagrams of records between the daemon and a process that fills slots: a worker, or the bridge to a cluster."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from streamd.ipc.frames import split_records
from streamd.ipc.worker_messages import MAX_GROUP_RECORDS, MAX_RECORD_BYTES


def receive_command_records(link: socket.socket) -> tuple[list[bytes], list[int]] | None:
    """Receives one datagram: its records, and the descriptors of slots, which the caller owns.

    Returns None if none waits, and no records at all once the daemon has closed its end.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(link, MAX_RECORD_BYTES, MAX_GROUP_RECORDS)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return [], []
    return (split_records(data) if data else []), descriptors


class DatagramSender:
    """Sends datagrams over a non-blocking socket in their order. Those without room wait. Lives on the event loop.

    A full socket says nothing about the other end, which may be starting, or at a slow picture. `on_waiting(count)`
    tells how many datagrams wait, when the first one does and whenever one of them was taken. `on_closed()` is called
    when nobody can receive any more; what waits is dropped.
    """

    def __init__(
        self,
        link: socket.socket,
        on_closed: Callable[[], None],
        on_waiting: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._link = link
        self._on_closed = on_closed
        self._on_waiting = on_waiting
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()
        self._copies: set[int] = set()  # of the descriptors that wait, those that the caller has closed since

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a datagram, now or when there is room. The descriptors remain the caller's."""
        if self._waiting:
            self._waiting.append((data, descriptors))
        elif not self._send_now(data, descriptors):
            self._waiting.append((data, descriptors))
            asyncio.get_running_loop().add_writer(self._link, self._send_waiting)
            self._on_waiting(1)

    def copy_descriptors(self) -> None:
        """Copies the descriptors that wait. Call this before they are closed."""
        for place, (data, descriptors) in enumerate(self._waiting):
            copies = [each if each in self._copies else os.dup(each) for each in descriptors]
            self._copies.update(copies)
            self._waiting[place] = data, copies

    def close(self) -> None:
        """Drops what waits. Call this before the socket is closed."""
        if self._waiting:
            asyncio.get_running_loop().remove_writer(self._link)
        while self._waiting:
            self._close_copies(self._waiting.popleft()[1])

    def _close_copies(self, descriptors: Sequence[int]) -> None:
        for each in self._copies.intersection(descriptors):
            os.close(each)
            self._copies.discard(each)

    def _send_now(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Sends a datagram; returns False if there is no room."""
        try:
            if descriptors:
                socket.send_fds(self._link, [data], descriptors)
            else:
                self._link.send(data)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            self._on_closed()
        return True

    def _send_waiting(self) -> None:
        """Sends one of the datagrams that wait; the loop calls again while there is room."""
        data, descriptors = self._waiting[0]
        if not self._send_now(data, descriptors) or not self._waiting:
            return
        self._close_copies(self._waiting.popleft()[1])
        if not self._waiting:
            asyncio.get_running_loop().remove_writer(self._link)
        self._on_waiting(len(self._waiting))
