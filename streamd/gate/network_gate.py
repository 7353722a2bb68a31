"""The gate of one tcp:// address: lets in clients on other hosts by their keys, and sends them pixels.

To the daemon each key is a user of its own, with a user's shares of sessions, memory and time. What such a client makes
libzmq do, or makes this process keep, ends this gate: all clients of this address connect again, and go on where they
were.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from streamd.errors import ConfigError, ProtocolError
from streamd.gate.authenticator import Authenticator
from streamd.gate.client_keys import ClientKeys
from streamd.gate.network_router import NetworkRouter, Peer, open_network_socket
from streamd.gate.pixel_relay import PixelRelay
from streamd.gate.user_gate import LinkLogHandler
from streamd.ipc.frames import (
    EMPTY_HEADER,
    FrameHeader,
    decode_client_frame,
    decode_daemon_frame,
    encode_frame,
    split_records,
)
from streamd.ipc.key_files import ClientKey, read_key_pair
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    ClientMessage,
    DaemonMessage,
    Goodbye,
    Ping,
    Progress,
    ReceiptSeen,
    Refused,
    Stats,
    StatusNow,
    Streams,
    Subscribe,
)
from streamd.ipc.record_link import KEY_PAUSE, KEY_USER, LinkCallbacks, RecordKind, RecordLink, split_client_frame
from streamd.limits import KEY_WAITING_BYTES, KEY_WAITING_FRAMES, KEYS_CHECK_S

_LOG: Final = logging.getLogger("streamd.gate")


class NetworkGate:
    """Serves the clients of one address. Lives on the event loop.

    `keep_log_handler` gets the handler that sends this process's warnings to the daemon.
    """

    def __init__(self, keep_log_handler: Callable[[logging.Handler], None]) -> None:
        self._keep_log_handler = keep_log_handler
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._link: RecordLink | None = None
        self._router: NetworkRouter | None = None
        self._relay: PixelRelay | None = None
        self._keys: ClientKeys | None = None
        self._authenticator: Authenticator | None = None
        self._held = HeldFrames()
        self._release: asyncio.TimerHandle | None = None  # of the frames that wait, while some do
        self._ended = asyncio.Event()
        self._next_check: asyncio.TimerHandle | None = None
        self._applied_generation = 0  # of the keys, to which the open connections conform
        self._failure: BaseException | None = None

    async def run(self, end: socket.socket) -> None:
        """Serves until the daemon's end of the link closes. Raises the error of a callback that failed."""
        asyncio.get_running_loop().set_exception_handler(self._end_on_error)
        self._link = await RecordLink.open(
            end, LinkCallbacks(self._handle_record, self._ended.set, on_full=self._on_link_full)
        )
        self._keep_log_handler(LinkLogHandler(self._link))
        try:
            await self._ended.wait()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure

    def _close(self) -> None:
        """Lets nobody in any more, and closes all connections."""
        for each in (self._authenticator, self._router, self._link):
            if each is not None:
                each.close()
        self._router = None
        for timer in (self._release, self._next_check):
            if timer is not None:
                timer.cancel()
        self._context.destroy(0)

    def _end_on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A gate whose callback has failed, perhaps the one that decides about keys, serves nobody any more.
        del loop
        self._failure = self._failure or context.get("exception") or RuntimeError(str(context.get("message")))
        self._ended.set()

    def _on_link_full(self, is_full: bool) -> None:
        if self._router is not None:
            self._router.set_paused(is_full)

    def _handle_record(self, kind: RecordKind, body: bytes) -> None:
        if kind is RecordKind.SETTINGS:
            self._start_serving(json.loads(body))
        elif kind is RecordKind.FRAME:
            self._handle_daemon_frame(*split_client_frame(body))
        elif kind is RecordKind.PAUSE:
            user, pause_ms = KEY_PAUSE.unpack(body)
            self._held.pause_key(user, time.monotonic() + pause_ms / 1000)
            self._schedule_release()

    def _start_serving(self, settings: dict[str, Any]) -> None:
        assert self._link is not None  # noqa: S101 - a record came over it
        try:
            pair = read_key_pair(Path(settings["secret"]), "curve.secret")
            keys = self._keys = ClientKeys(Path(settings["clients"]))
            keys.reload_keys()
            listener, has_bbr = open_network_socket(settings["host"], settings["port"])
        except (ConfigError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._link.send_record(RecordKind.FAILED, json.dumps(reason or str(error)).encode())
            return
        port = listener.getsockname()[1]
        self._authenticator = Authenticator(self._context, keys)
        router = self._router = NetworkRouter(self._context, keys, self._receive_client_frame, self._on_peer_lost)
        self._relay = PixelRelay(settings["descriptors"], self._send_to_client, self._send_to_daemon)
        router.start_listening(listener, pair)
        self._check_keys()
        self._link.send_record(RecordKind.READY, json.dumps({"port": port, "has_bbr": has_bbr}).encode())

    def _check_keys(self) -> None:
        """Looks for changed keys, and closes the connections of removed ones. Called every KEYS_CHECK_S."""
        # The kernel reports no changes that another host makes to a folder on a network file system.
        if self._keys is not None and self._router is not None:
            self._keys.reload_keys()
            if self._keys.generation != self._applied_generation:
                self._applied_generation = self._keys.generation
                self._router.close_revoked()
        self._next_check = asyncio.get_running_loop().call_later(KEYS_CHECK_S, self._check_keys)

    # --- from clients

    def _send_to_daemon(self, identity: bytes, frame: bytes) -> None:
        if self._link is not None:
            self._link.send_frame(identity, frame)

    def _send_to_client(self, identity: bytes, frame: bytes, pixels: memoryview | None) -> bool:
        return self._router is not None and self._router.send_frame(identity[KEY_USER.size :], frame, pixels)

    def _receive_client_frame(self, peer: Peer, data: bytes) -> None:
        """Handles a frame, or keeps it while its key is paused. A client beyond the bounds loses its connection."""
        if not self._held.is_paused(peer.user):
            self._handle_client_frame(peer, data)
        elif not self._held.hold_frame(peer.user, peer.identity, data) and self._router is not None:
            self._router.close_connection(peer)

    def _schedule_release(self) -> None:
        """Sets the timer for the next pause that ends, if there is one."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        end_s = self._held.find_next_end_s()
        if end_s is not None:
            delay_s = max(0.0, end_s - time.monotonic())
            self._release = asyncio.get_running_loop().call_later(delay_s, self._release_frames)

    def _release_frames(self) -> None:
        """Handles the frames of the keys whose pause is over."""
        for identity, data in self._held.take_due_frames(time.monotonic()):
            peer = self._router.find_peer(identity) if self._router is not None else None
            if peer is not None:  # each may be the one for which its client loses the connection
                self._handle_client_frame(peer, data)
        self._schedule_release()

    def _handle_client_frame(self, peer: Peer, data: bytes) -> None:
        try:
            header, message = decode_client_frame(data)
        except ProtocolError:  # the daemon counts it, and answers a client of another version
            self._send_to_daemon(_identify(peer), data)
            return
        refusal = find_refusal(peer.key, message)
        if refusal is not None and self._router is not None:
            self._router.send_frame(peer.identity, encode_frame(EMPTY_HEADER, refusal))
            return
        self._pass_message(peer, data, header, message)

    def _pass_message(self, peer: Peer, data: bytes, header: FrameHeader, message: ClientMessage) -> None:
        assert self._relay is not None and self._router is not None  # noqa: S101, PT018 - set before any client is let in
        match message:
            case Subscribe():
                self._end_earlier_sessions(peer, message)
                self._relay.pass_subscription(_identify(peer), header, message)
            case Progress() | ReceiptSeen() | Goodbye() | Ping():
                self._relay.pass_report(_identify(peer), data, message)
            case _:
                self._send_to_daemon(_identify(peer), data)

    def _end_earlier_sessions(self, peer: Peer, message: Subscribe) -> None:
        """Ends the sessions that a trainer had on a connection which it has given up, before the kernel does so."""
        assert self._relay is not None and self._router is not None  # noqa: S101, PT018 - as above
        for key in message.earlier:
            identity = self._relay.find_session(key)
            other = self._router.find_peer(identity[KEY_USER.size :]) if identity is not None else None
            if other is not None and other is not peer and other.key.public == peer.key.public:
                self._router.close_connection(other)

    def _on_peer_lost(self, peer: Peer) -> None:
        self._held.drop_frames(peer.user, peer.identity)
        if self._relay is not None:
            self._relay.end_session(_identify(peer))

    # --- from the daemon

    def _handle_daemon_frame(self, identity: bytes, data: bytes) -> None:
        peer = self._router.find_peer(identity[KEY_USER.size :]) if self._router is not None else None
        if peer is None or self._relay is None:
            return
        for record in split_records(data):
            header, message = decode_daemon_frame(record)
            passed = record
            if isinstance(message, Streams | Stats | StatusNow) and peer.key.streams is not None:
                passed = encode_frame(header, limit_answer(peer.key, message))
            self._relay.handle_daemon_record(identity, passed, header, message)


def _identify(peer: Peer) -> bytes:
    """Returns what a client is called on the link: the number of its key, which is its user, and its routing id."""
    return KEY_USER.pack(peer.user) + peer.identity


async def run_network_gate(end: socket.socket, keep_log_handler: Callable[[logging.Handler], None]) -> None:
    """Runs the gate of one address until the daemon ends."""
    await NetworkGate(keep_log_handler).run(end)


# --- Frames of keys that the daemon has paused: they wait here in their order, within bounds. Pure: time is an
# argument.
#
# All keys share one socket, and libzmq cannot leave the frames of one of them in the kernel.


@dataclass(slots=True)
class _PausedKey:
    """A key whose frames wait until `until_s`: from which client each came, and what it says."""

    until_s: float
    frames: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    nbytes: int = 0


class HeldFrames:
    """The frames of paused keys. A key is named by its number, and a client by its routing id."""

    def __init__(self) -> None:
        self._keys: dict[int, _PausedKey] = {}

    def pause_key(self, user: int, until_s: float) -> None:
        """Holds the frames of a key until then. Frames that wait already wait as long."""
        self._keys.setdefault(user, _PausedKey(until_s)).until_s = until_s

    def is_paused(self, user: int) -> bool:
        """Whether the next frame of a key has to wait."""
        return user in self._keys

    def hold_frame(self, user: int, identity: bytes, frame: bytes) -> bool:
        """Keeps a frame of a paused key. False if the key has too many waiting: this one is not kept."""
        key = self._keys[user]
        if len(key.frames) >= KEY_WAITING_FRAMES or key.nbytes + len(frame) > KEY_WAITING_BYTES:
            return False
        key.frames.append((identity, frame))
        key.nbytes += len(frame)
        return True

    def drop_frames(self, user: int, identity: bytes) -> None:
        """Drops what waits of a client that is gone."""
        key = self._keys.get(user)
        if key is not None:
            key.frames = deque(each for each in key.frames if each[0] != identity)
            key.nbytes = sum(len(frame) for _, frame in key.frames)

    def take_due_frames(self, now_s: float) -> list[tuple[bytes, bytes]]:
        """Ends the pauses that are over; returns the frames of these keys, with their clients, in order."""
        due = [user for user, key in self._keys.items() if key.until_s <= now_s]
        return [each for user in due for each in self._keys.pop(user).frames]

    def find_next_end_s(self) -> float | None:
        """Returns when the next pause is over; None if no key is paused."""
        return min((key.until_s for key in self._keys.values()), default=None)


# --- What the key of a client lets it ask and see. Pure: messages in, messages out.


_GROUP: Final = "stream."


def find_refusal(key: ClientKey, message: ClientMessage) -> Refused | None:
    """Returns why a key may not ask this; None if it may."""
    if isinstance(message, Subscribe | AskNames) and not key.may_read(message.stream):
        allowed = ", ".join(sorted(key.streams or ())) or "none"
        return Refused(
            "unknown",
            f"there is no stream {message.stream!r} for the key {key.name}, which may read: {allowed}; its file on "
            "the daemon's host says which",
        )
    if isinstance(message, AskMonitor) and key.streams is not None:
        return Refused("usage", f"the dashboard shows all streams, and the key {key.name} may not read them all")
    return None


def limit_answer(key: ClientKey, message: DaemonMessage) -> DaemonMessage:
    """Returns an answer of the daemon without the streams that a key may not read."""
    if key.streams is None:
        return message
    match message:
        case Streams(streams):
            return Streams({name: spec for name, spec in streams.items() if key.may_read(name)})
        case Stats(values):
            return Stats({group: each for group, each in values.items() if _may_see_group(key, group)})
        case StatusNow(status):
            shown = tuple(each for each in status.streams if key.may_read(each.name))
            sessions = tuple(each for each in status.sessions if key.may_read(each.stream))
            return StatusNow(msgspec.structs.replace(status, streams=shown, sessions=sessions))
        case _:
            return message


def _may_see_group(key: ClientKey, group: str) -> bool:
    return not group.startswith(_GROUP) or key.may_read(group.removeprefix(_GROUP))
