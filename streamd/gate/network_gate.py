"""The gate of one tcp:// address: lets in clients on other hosts by their keys, and sends them pixels.

To the daemon each key is a user of its own, with a user's shares of sessions, memory and time. What such a client makes
libzmq do, or makes this process keep, ends this gate: all clients of this address connect again, and go on where they
were.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from streamd.core.slot_layout import SlotTensor
from streamd.errors import ConfigError, ConnectError, ProtocolError
from streamd.gate.network_router import Authenticator, ClientKeys, NetworkRouter, Peer, open_network_socket
from streamd.gate.user_gate import LinkLogHandler
from streamd.ipc.key_files import ClientKey, read_key_pair
from streamd.ipc.lifeline import DROPPED, STILL_HELD, Lifeline
from streamd.ipc.mapping import build_leased_array, map_readable
from streamd.ipc.messages import (
    EMPTY_HEADER,
    PIECE_MARK,
    AskMonitor,
    AskNames,
    BatchReady,
    ClientMessage,
    DaemonMessage,
    FrameHeader,
    Goodbye,
    Ping,
    Progress,
    ReceiptSeen,
    Refused,
    SlotsGone,
    Stats,
    StatusNow,
    Stopped,
    Streams,
    Subscribe,
    Welcome,
    build_frame,
    decode_client_frame,
    decode_daemon_frame,
    encode_frame,
    encode_message,
    split_records,
)
from streamd.ipc.record_link import KEY_PAUSE, KEY_USER, LinkCallbacks, RecordKind, RecordLink, split_client_frame
from streamd.limits import KEY_WAITING_BYTES, KEY_WAITING_FRAMES, KEYS_CHECK_S, PIECE_BYTES, SENDING_BYTES

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
            # Lets nobody in any more, and closes all connections.
            for each in (self._authenticator, self._router, self._link):
                if each is not None:
                    each.close()
            self._router = None
            for timer in (self._release, self._next_check):
                if timer is not None:
                    timer.cancel()
            self._context.destroy(0)
        if self._failure is not None:
            raise self._failure

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
            settings = json.loads(body)
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
        elif kind is RecordKind.FRAME:
            identity, data = split_client_frame(body)
            peer = self._router.find_peer(identity[KEY_USER.size :]) if self._router is not None else None
            if peer is None or self._relay is None:
                return
            for record in split_records(data):
                header, message = decode_daemon_frame(record)
                passed = record
                if isinstance(message, Streams | Stats | StatusNow) and peer.key.streams is not None:
                    passed = encode_frame(header, limit_answer(peer.key, message))
                self._relay.handle_daemon_record(identity, passed, header, message)
        elif kind is RecordKind.PAUSE:
            user, pause_ms = KEY_PAUSE.unpack(body)
            self._held.pause_key(user, time.monotonic() + pause_ms / 1000)
            self._schedule_release()

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
        assert self._relay is not None and self._router is not None  # noqa: S101, PT018 - set before any client is let in
        match message:
            case Subscribe():
                # Ends the sessions that a trainer had on a connection which it has given up, before the kernel does so.
                for key in message.earlier:
                    identity = self._relay.find_session(key)
                    other = self._router.find_peer(identity[KEY_USER.size :]) if identity is not None else None
                    if other is not None and other is not peer and other.key.public == peer.key.public:
                        self._router.close_connection(other)
                self._relay.pass_subscription(_identify(peer), header, message)
            case Progress() | ReceiptSeen() | Goodbye() | Ping():
                self._relay.pass_report(_identify(peer), data, message)
            case _:
                self._send_to_daemon(_identify(peer), data)

    def _on_peer_lost(self, peer: Peer) -> None:
        self._held.drop_frames(peer.user, peer.identity)
        if self._relay is not None:
            self._relay.end_session(_identify(peer))


def _identify(peer: Peer) -> bytes:
    """Returns what a client is called on the link: the number of its key, which is its user, and its routing id."""
    return KEY_USER.pack(peer.user) + peer.identity


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
            return Stats(
                {
                    group: each
                    for group, each in values.items()
                    if not group.startswith(_GROUP) or key.may_read(group.removeprefix(_GROUP))
                }
            )
        case StatusNow(status):
            shown = tuple(each for each in status.streams if key.may_read(each.name))
            sessions = tuple(each for each in status.sessions if key.may_read(each.stream))
            return StatusNow(msgspec.structs.replace(status, streams=shown, sessions=sessions))
        case _:
            return message


# --- Sends the pixels of batches to clients that cannot map them: a client of the daemon in place of each of theirs.
#
# The daemon sends the numbers of slots, as to any trainer. The relay maps these slots, and sends their bytes in pieces
# behind each batch's header. To the daemon, a batch stays leased until the trainer has released it and libzmq has
# taken the last of its bytes. So no slot is written to while a part of it is still on its way.


SendFrame = Callable[[bytes, bytes, memoryview | None], bool]


@dataclass(slots=True)
class _OutgoingPixels:
    """A batch on its way: its header's frame, its number, its bytes, and how many of these were given to libzmq."""

    frame: bytes
    number: int
    memory: memoryview
    given: int = 0
    unfinished_pieces: int = 0


@dataclass(slots=True, eq=False)
class _RelayedSession:
    """One trainer's session. `queue` holds what it gets, in order; `reports` what it said and the daemon has yet to
    hear, since a batch that it names is still on its way. `slots` came over its lifeline: the daemon tells this session
    when they are gone."""

    identity: bytes
    header: FrameHeader
    lifeline: Lifeline
    slots: set[int] = field(default_factory=set)
    queue: deque[bytes | _OutgoingPixels] = field(default_factory=deque)
    under_way: dict[int, _OutgoingPixels] = field(default_factory=dict)  # by number: libzmq has some of their bytes
    reports: deque[tuple[bytes, frozenset[int]]] = field(default_factory=deque)  # frames, with the batches they release
    sending_bytes: int = 0
    is_over: bool = False


class PixelRelay:
    """The sessions of one gate's clients. Lives on the event loop.

    `descriptor_path` is the daemon's descriptor socket. `send_to_client(identity, frame, pixels)` sends to a client,
    `send_to_daemon(identity, frame)` to the daemon.
    """

    def __init__(
        self, descriptor_path: str, send_to_client: SendFrame, send_to_daemon: Callable[[bytes, bytes], None]
    ) -> None:
        self._descriptor_path = descriptor_path
        self._send_to_client = send_to_client
        self._send_to_daemon = send_to_daemon
        self._sessions: dict[bytes, _RelayedSession] = {}  # those that go on, by the client's routing id
        self._slots: dict[int, memoryview] = {}  # mapped, whichever session asked for them first
        self._loop = asyncio.get_running_loop()

    # --- what clients send

    def pass_subscription(self, identity: bytes, header: FrameHeader, message: Subscribe) -> None:
        """Passes a subscription on. The session of the connection, if there is one, ends first."""
        self.end_session(identity)
        self._send_to_daemon(identity, encode_frame(header, msgspec.structs.replace(message, transport="shared")))

    def pass_report(self, identity: bytes, frame: bytes, message: Progress | ReceiptSeen | Goodbye | Ping) -> None:
        """Passes on what a trainer says in its session, after the batches that it releases have left."""
        session = self._sessions.get(identity)
        if session is None:
            self._send_to_daemon(identity, frame)
        elif isinstance(message, Goodbye):
            self.end_session(identity)
        else:
            released = frozenset(message.released) if isinstance(message, Progress) else frozenset()
            session.reports.append((frame, released))
            self._pass_ready_reports(session)

    def end_session(self, identity: bytes) -> None:
        """Says goodbye to the daemon for a client that is gone, or has said so itself."""
        session = self._sessions.pop(identity, None)
        if session is None:
            return
        unsent = [each.number for each in session.queue if isinstance(each, _OutgoingPixels) and not each.given]
        session.queue.clear()
        if session.is_over:
            self._report_dropped(session, unsent)
        else:
            self._send_to_daemon(identity, encode_frame(session.header, Goodbye(tuple(session.under_way))))
            session.is_over = True
        self._forget_slots(session)
        self._close_if_done(session)

    def find_session(self, key: tuple[int, int]) -> bytes | None:
        """Returns the routing id of the client that has a session, by the daemon's boot and the session's number."""
        for session in self._sessions.values():
            if (session.header.boot, session.header.session) == key:
                return session.identity
        return None

    # --- what the daemon sends

    def handle_daemon_record(self, identity: bytes, record: bytes, header: FrameHeader, message: DaemonMessage) -> None:
        """Passes on one record of the daemon."""
        session, queued = self._sessions.get(identity), record
        if isinstance(message, SlotsGone):
            for slot in message.slots:
                self._slots.pop(slot, None)
            return
        if isinstance(message, Welcome):
            session_header = FrameHeader(header.boot, header.session, 0)
            try:
                lifeline = Lifeline(self._descriptor_path, message.secret)
            except ConnectError:
                return  # the daemon is ending, and this gate with it
            self._sessions[identity] = session = _RelayedSession(identity, session_header, lifeline)
            queued = encode_frame(header, msgspec.structs.replace(message, secret=b"", transport="inline"))
        if session is None:
            self._send_to_client(identity, record, None)
            return
        # A batch: its pixels follow its header.
        if isinstance(message, BatchReady):
            slot = message.slot
            try:
                if slot not in self._slots:
                    # The daemon never waits for a gate, so it answers at once, and only for a slot that is new.
                    descriptor = session.lifeline.fetch_descriptor(slot)
                    try:
                        self._slots[slot] = map_readable(descriptor, message.slot_bytes)
                    finally:
                        os.close(descriptor)
                    session.slots.add(slot)
            except (ConnectError, OSError):  # the client finds its session gone, and subscribes again
                self.end_session(session.identity)
                return
            inline = msgspec.structs.replace(message, slot=0, inline=True)
            frame = build_frame(header, encode_message(inline))
            session.queue.append(_OutgoingPixels(frame, header.number, self._slots[slot]))
        else:
            session.queue.append(queued)
        self._send_queued(session)
        # Reports which batches of a session that the daemon has ended are still on their way.
        if isinstance(message, Stopped):
            with suppress(OSError):  # closing the lifeline reports the same
                session.lifeline.report_leases(STILL_HELD, self._list_unfinished(session))
            session.is_over = True
            self._forget_slots(session)
            self._close_if_done(session)

    def _forget_slots(self, session: _RelayedSession) -> None:
        """Unmaps what came over the lifeline of a session that ends; libzmq keeps what it still sends.

        Nobody would say when these slots are gone. Other sessions that still need one ask for it themselves.
        """
        for slot in session.slots:
            self._slots.pop(slot, None)
        session.slots.clear()

    @staticmethod
    def _list_unfinished(session: _RelayedSession) -> list[int]:
        queued = [each.number for each in session.queue if isinstance(each, _OutgoingPixels)]
        return list(dict.fromkeys([*session.under_way, *queued]))

    # --- the way out

    def _send_queued(self, session: _RelayedSession) -> None:
        """Sends as much as libzmq should hold for one client. What ends on its way calls this again."""
        while session.queue:
            first = session.queue[0]
            if isinstance(first, bytes):
                is_sent = self._send_to_client(session.identity, first, None)
            elif session.sending_bytes >= SENDING_BYTES:
                return
            else:
                is_sent = self._send_piece(session, first)
            if not is_sent:
                self.end_session(session.identity)
                return
            if isinstance(first, bytes) or first.given == len(first.memory):
                session.queue.popleft()

    def _send_piece(self, session: _RelayedSession, batch: _OutgoingPixels) -> bool:
        """Gives libzmq the next piece of a batch, and returns whether the client could be reached."""
        nbytes = min(PIECE_BYTES, len(batch.memory) - batch.given)
        frame = PIECE_MARK if batch.given else batch.frame

        def on_taken() -> None:  # in a thread of pyzmq's, when libzmq needs the bytes no more
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._on_piece_taken, session, batch, nbytes)

        piece = build_leased_array(batch.memory, SlotTensor("piece", "uint8", (nbytes,), batch.given), on_taken)
        batch.given += nbytes
        batch.unfinished_pieces += 1
        session.sending_bytes += nbytes
        session.under_way[batch.number] = batch
        return self._send_to_client(session.identity, frame, piece.data)

    def _on_piece_taken(self, session: _RelayedSession, batch: _OutgoingPixels, nbytes: int) -> None:
        session.sending_bytes -= nbytes
        batch.unfinished_pieces -= 1
        is_whole = batch.given == len(batch.memory) or self._sessions.get(session.identity) is not session
        if not batch.unfinished_pieces and is_whole:
            session.under_way.pop(batch.number, None)
            if session.is_over:
                self._report_dropped(session, [batch.number])
                self._close_if_done(session)
        self._send_queued(session)
        self._pass_ready_reports(session)

    def _pass_ready_reports(self, session: _RelayedSession) -> None:
        while session.reports and not session.is_over:
            frame, released = session.reports[0]
            if not released.isdisjoint(self._list_unfinished(session)):
                return
            session.reports.popleft()
            self._send_to_daemon(session.identity, frame)

    @staticmethod
    def _report_dropped(session: _RelayedSession, numbers: list[int]) -> None:
        with suppress(OSError):  # closing the lifeline reports the same
            session.lifeline.report_leases(DROPPED, numbers)

    def _close_if_done(self, session: _RelayedSession) -> None:
        """Closes the lifeline of a session that is over, when nothing of it is on its way any more."""
        # The daemon closes its end when it has heard of the session's end. If this side did so first, the daemon would
        # take it for the death of the trainer.
        if not self._list_unfinished(session) and session.lifeline.fileno() >= 0:
            self._loop.add_reader(session.lifeline.fileno(), self._close_lifeline, session.lifeline)

    def _close_lifeline(self, lifeline: Lifeline) -> None:
        self._loop.remove_reader(lifeline.fileno())
        lifeline.close()
