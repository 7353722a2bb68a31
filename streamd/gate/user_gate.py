"""The gate of one user: speaks ZeroMQ with the clients of this user, and passes their frames to the daemon.

It also accepts their lifelines, and hands each to the daemon once it has sent a secret that the daemon has issued. What
a user makes libzmq do, or makes this process keep, ends this gate: the sessions of this user, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamd.core.text import shorten_text
from streamd.ipc import endpoint
from streamd.ipc.fd_passing import accept_connection, bind_descriptor_socket, read_peer
from streamd.ipc.record_link import LinkCallbacks, RecordKind, RecordLink, split_client_frame
from streamd.ipc.router import Router
from streamd.limits import GATE_CONNECTIONS, GATE_IDLE_S, KNOCKS, MAX_REFUSAL_CHARS, PAIR_S, SECRET_BYTES

_SOCKET_MODE: Final = 0o666  # only this user knows the path, and only this user is let in
_ROOT: Final = 0
# A Welcome begins with the header of a frame, an array, its tag and the secret: see ipc.messages.
_WELCOME: Final = struct.Struct(f"<2sB25xBBBB{SECRET_BYTES}s")


class UserGate:
    """Serves one user. `passed` carries lifelines to the daemon. Lives on the event loop.

    `keep_log_handler` gets the handler that sends this process's warnings to the daemon.
    """

    def __init__(self, passed: socket.socket, keep_log_handler: Callable[[logging.Handler], None]) -> None:
        self._passed = passed
        self._keep_log_handler = keep_log_handler
        self._link: RecordLink | None = None
        self._router: Router | None = None
        self._lifelines: LifelineHall | None = None
        self._ended = asyncio.Event()

    async def run(self, end: socket.socket) -> None:
        """Serves until the daemon's end of the link closes, or nobody has been connected for GATE_IDLE_S."""
        self._link = await RecordLink.open(
            end, LinkCallbacks(self._handle_record, self._ended.set, on_full=self._on_link_full)
        )
        self._keep_log_handler(LinkLogHandler(self._link))
        self._watch_for_idleness()
        await self._ended.wait()
        if self._router is not None:
            self._router.close()

    def _handle_record(self, kind: RecordKind, body: bytes) -> None:
        if kind is RecordKind.FRAME and self._router is not None:
            identity, frame = split_client_frame(body)
            if secret := find_secret(frame):
                assert self._lifelines is not None  # noqa: S101 - made with the router
                self._lifelines.expect_secret(secret)
            if not self._router.send_frame(identity, frame) and self._link is not None:
                self._link.send_record(RecordKind.UNREACHABLE, identity)
        elif kind is RecordKind.SETTINGS:
            assert self._link is not None  # noqa: S101 - a record came over it
            settings = json.loads(body)
            folder, user = Path(settings["folder"]), int(settings["user"])
            endpoint.create_folder_with_mode(folder, endpoint.GATE_FOLDER_MODE)
            # The kernel lists the paths of sockets as they were bound, to every user. The folder's name is a secret.
            os.chdir(folder)
            path = endpoint.served_socket_path(Path())
            self._lifelines = LifelineHall(self._passed, user)
            self._lifelines.start_listening(endpoint.descriptor_socket_path(path))
            self._router = Router(path, _SOCKET_MODE, max_descriptors=GATE_CONNECTIONS, user=user)
            self._router.start_listening(self._link.send_frame)
            self._link.send_record(RecordKind.READY)

    def _on_link_full(self, is_full: bool) -> None:
        """Reads no more of the clients while the daemon does not keep up with this user."""
        if self._router is not None:
            self._router.set_paused(is_full)

    def _watch_for_idleness(self, was_idle: bool = False) -> None:
        """Ends a gate without clients. Called every GATE_IDLE_S."""
        is_idle = self._router is not None and self._router.connection_count == 0
        if is_idle and was_idle:
            self._ended.set()
        asyncio.get_running_loop().call_later(GATE_IDLE_S, self._watch_for_idleness, is_idle)


class LinkLogHandler(logging.Handler):
    """Sends what this process has to say to the daemon, which logs it with the user."""

    def __init__(self, link: RecordLink) -> None:
        super().__init__(logging.WARNING)
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        text = shorten_text(record.getMessage(), MAX_REFUSAL_CHARS)
        self._link.send_record(RecordKind.LOG, json.dumps(text).encode())


class LifelineHall:
    """Accepts the lifelines of one user's trainers, and passes those with an expected secret to the daemon.

    The daemon then owns the connection, which outlives this gate. Lives on the event loop.
    """

    def __init__(self, passed: socket.socket, user: int, most_waiting: int = 4 * KNOCKS) -> None:
        self._passed = passed
        self._user = user
        self._most_waiting = most_waiting
        self._secrets: set[bytes] = set()
        self._waiting: dict[int, socket.socket] = {}  # without a secret so far, by descriptor, the oldest first
        self._listener: socket.socket | None = None

    def start_listening(self, path: str) -> None:
        """Listens at the path of the descriptor socket. Raises OSError."""
        self._listener = bind_descriptor_socket(path, _SOCKET_MODE)
        asyncio.get_running_loop().add_reader(self._listener, self._accept_connection)

    def expect_secret(self, secret: bytes) -> None:
        """Accepts a lifeline with this secret for PAIR_S."""
        self._secrets.add(secret)
        asyncio.get_running_loop().call_later(PAIR_S, self._secrets.discard, secret)

    def close(self) -> None:
        """Closes the connections that wait, and stops listening."""
        for descriptor in list(self._waiting):
            self._drop_connection(descriptor)
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept_connection(self) -> None:
        assert self._listener is not None  # noqa: S101 - only the listener's own reader calls this
        link = accept_connection(self._listener, self._accept_connection)
        if link is None:
            return
        if read_peer(link)[1] not in {self._user, _ROOT}:
            link.close()
            return
        # A connection without a secret makes room for a newer one, so idle ones shut out nobody.
        if len(self._waiting) >= self._most_waiting:
            self._drop_connection(next(iter(self._waiting)))
        link.setblocking(False)
        self._waiting[link.fileno()] = link
        asyncio.get_running_loop().add_reader(link, self._receive_secret, link.fileno())

    def _receive_secret(self, descriptor: int) -> None:
        link = self._waiting[descriptor]
        try:
            secret = link.recv(SECRET_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            secret = b""
        if secret in self._secrets:
            self._secrets.discard(secret)
            with suppress(OSError):  # the daemon is gone, or its buffer is full: the trainer subscribes again
                socket.send_fds(self._passed, [secret], [descriptor])
        self._drop_connection(descriptor)

    def _drop_connection(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._waiting.pop(descriptor).close()


def find_secret(frame: bytes) -> bytes | None:
    """Returns the secret of a frame of the daemon that is a Welcome; None for any other frame."""
    if len(frame) < _WELCOME.size:
        return None
    *_, array, tag, kind, length, secret = _WELCOME.unpack_from(frame)
    is_welcome = (array & 0xF0, tag, kind, length) == (0x90, 67, 0xC4, SECRET_BYTES)
    return bytes(secret) if is_welcome else None
