"""Sends the pixels of batches to clients that cannot map them: a client of the daemon in place of each of theirs.

The daemon sends the numbers of slots, as to any trainer. The relay maps these slots, and sends their bytes in pieces
behind each batch's header. To the daemon, a batch stays leased until the trainer has released it and libzmq has taken
the last of its bytes. So no slot is written to while a part of it is still on its way.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from streamd.core.slot_layout import SlotTensor
from streamd.errors import ConnectError
from streamd.ipc.frames import (
    PIECE_MARK,
    FrameHeader,
    build_frame,
    encode_frame,
    encode_message,
)
from streamd.ipc.lifeline import Lifeline
from streamd.ipc.mapping import build_leased_array, map_readable
from streamd.ipc.messages import (
    BatchReady,
    DaemonMessage,
    Goodbye,
    Ping,
    Progress,
    ReceiptSeen,
    SlotsGone,
    Stopped,
    Subscribe,
    Welcome,
)
from streamd.limits import PIECE_BYTES, SENDING_BYTES

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
        session = self._sessions.get(identity)
        match message:
            case Welcome():
                self._open_session(identity, header, message)
            case SlotsGone(slots):
                for slot in slots:
                    self._slots.pop(slot, None)
            case BatchReady() if session is not None:
                self._queue_pixels(session, header, message)
            case Stopped() if session is not None:
                self._queue_record(session, record)
                self._stop_session(session)
            case _ if session is not None:
                self._queue_record(session, record)
            case _:
                self._send_to_client(identity, record, None)

    def _open_session(self, identity: bytes, header: FrameHeader, welcome: Welcome) -> None:
        session_header = FrameHeader(header.boot, header.session, 0)
        try:
            lifeline = Lifeline(self._descriptor_path, welcome.secret)
        except ConnectError:
            return  # the daemon is ending, and this gate with it
        self._sessions[identity] = _RelayedSession(identity, session_header, lifeline)
        own = msgspec.structs.replace(welcome, secret=b"", transport="inline")
        self._queue_record(self._sessions[identity], encode_frame(header, own))

    def _queue_record(self, session: _RelayedSession, record: bytes) -> None:
        session.queue.append(record)
        self._send_queued(session)

    def _queue_pixels(self, session: _RelayedSession, header: FrameHeader, message: BatchReady) -> None:
        inline = msgspec.structs.replace(message, slot=0, inline=True)
        frame = build_frame(header, encode_message(inline))
        try:
            memory = self._map_slot(session, message.slot, message.slot_bytes)
        except (ConnectError, OSError):  # the client finds its session gone, and subscribes again
            self.end_session(session.identity)
            return
        session.queue.append(_OutgoingPixels(frame, header.number, memory))
        self._send_queued(session)

    def _map_slot(self, session: _RelayedSession, slot: int, nbytes: int) -> memoryview:
        if slot not in self._slots:
            # The daemon never waits for a gate, so it answers at once, and only for a slot that is new.
            descriptor = session.lifeline.fetch_descriptor(slot)
            try:
                self._slots[slot] = map_readable(descriptor, nbytes)
            finally:
                os.close(descriptor)
            session.slots.add(slot)
        return self._slots[slot]

    def _forget_slots(self, session: _RelayedSession) -> None:
        """Unmaps what came over the lifeline of a session that ends; libzmq keeps what it still sends.

        Nobody would say when these slots are gone. Other sessions that still need one ask for it themselves.
        """
        for slot in session.slots:
            self._slots.pop(slot, None)
        session.slots.clear()

    def _stop_session(self, session: _RelayedSession) -> None:
        """Reports which batches of a session that the daemon has ended are still on their way."""
        with suppress(OSError):  # closing the lifeline reports the same
            session.lifeline.report_held_leases(self._list_unfinished(session))
        session.is_over = True
        self._forget_slots(session)
        self._close_if_done(session)

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
            session.lifeline.report_dropped_leases(numbers)

    def _close_if_done(self, session: _RelayedSession) -> None:
        """Closes the lifeline of a session that is over, when nothing of it is on its way any more."""
        # The daemon closes its end when it has heard of the session's end. If this side did so first, the daemon would
        # take it for the death of the trainer.
        if not self._list_unfinished(session) and session.lifeline.fileno() >= 0:
            self._loop.add_reader(session.lifeline.fileno(), self._close_lifeline, session.lifeline)

    def _close_lifeline(self, lifeline: Lifeline) -> None:
        self._loop.remove_reader(lifeline.fileno())
        lifeline.close()
