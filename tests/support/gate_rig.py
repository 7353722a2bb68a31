"""A gate for other hosts in the process of a test, which stands for the daemon; and clients with keys of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import zmq

from streamd.client.sockets import find_curve_keys, open_dealer_socket
from streamd.gate.network_gate import NetworkGate
from streamd.ipc.record_link import LinkCallbacks, RecordKind, RecordLink, split_client_frame
from support.coroutine_tests import wait_for_condition
from support.remote_daemon import RemoteKeys

_EVENT: Final = struct.Struct("=Hi")
_WATCHED: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class GateRig:
    """The daemon's end of a gate's link: `frames` are those of clients, `ending` ends with the gate."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes]] = []
        self.port = 0
        self.ending: asyncio.Task[None] | None = None
        self._link: RecordLink | None = None

    async def start(self, keys: RemoteKeys) -> None:
        """Starts a gate at a port of this host."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self._link = await RecordLink.open(ours, LinkCallbacks(self._handle_record, lambda: None))
        self.ending = asyncio.create_task(NetworkGate(lambda _: None).run(theirs))
        settings = {"host": "127.0.0.1", "port": 0, "descriptors": "/nowhere", **keys.config}
        self._link.send_record(RecordKind.SETTINGS, json.dumps(settings).encode())
        await wait_for_condition(lambda: self.port or (self.ending and self.ending.done()), "the gate listens")

    def _handle_record(self, kind: RecordKind, body: bytes) -> None:
        if kind is RecordKind.READY:
            self.port = json.loads(body)["port"]
        elif kind is RecordKind.FRAME:
            self.frames.append(split_client_frame(body))

    def send_record(self, kind: RecordKind, body: bytes) -> None:
        """Sends the gate a record."""
        assert self._link is not None
        self._link.send_record(kind, body)

    async def close(self) -> None:
        """Ends the gate, which ends well unless it has failed."""
        if self._link is not None:
            self._link.close()
        if self.ending is not None:
            with contextlib.suppress(Exception):  # the test has looked at it
                await self.ending


@asynccontextmanager
async def run_gate(keys: RemoteKeys) -> AsyncIterator[GateRig]:
    """Runs a gate for the clients of `keys`."""
    rig = GateRig()
    try:
        await rig.start(keys)
        yield rig
    finally:
        await rig.close()


class KeyClient:
    """A DEALER with a key. `events` are what libzmq reports of its connections."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], port: int, curve: dict[str, str]) -> None:
        endpoint = f"tcp://127.0.0.1:{port}"
        self._monitor: zmq.Socket[bytes] | None = None
        self._seen: list[int] = []
        self.dealer = open_dealer_socket(context, endpoint, find_curve_keys(endpoint, curve))
        self._monitor = self.dealer.get_monitor_socket(_WATCHED)

    def list_events(self) -> list[int]:
        """Returns what has happened to its connections so far."""
        while self._monitor is not None and self._monitor.poll(0):
            self._seen.append(_EVENT.unpack_from(self._monitor.recv_multipart()[0])[0])
        return self._seen

    def is_let_in(self) -> bool:
        """Whether a connection of it was let in, at any time."""
        return zmq.EVENT_HANDSHAKE_SUCCEEDED in self.list_events()

    def is_refused(self) -> bool:
        """Whether its key was refused."""
        return zmq.EVENT_HANDSHAKE_FAILED_AUTH in self.list_events()

    def was_cut_off(self) -> bool:
        """Whether a connection of it has ended."""
        return zmq.EVENT_DISCONNECTED in self.list_events()

    def close(self) -> None:
        """Closes its sockets."""
        self.dealer.disable_monitor()
        if self._monitor is not None:
            self._monitor.close(0)
        self.dealer.close(0)


@contextmanager
def connect_with_key(rig: GateRig, curve: dict[str, str]) -> Iterator[KeyClient]:
    """Connects to a gate; the connection may still be in its handshake."""
    with zmq.Context() as context:
        client = KeyClient(context, rig.port, curve)
        try:
            yield client
        finally:
            client.close()
