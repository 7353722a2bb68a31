"""A trainer's I/O thread in virtual time: the real Session and Handoff, and what `client.io_thread` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final, cast

from stage import Stage
from synthetic import Slot
from virtual_network import Lifeline, Link, Network
from virtual_time import Process

from streamd.client.handoff import Handoff
from streamd.client.leases import EndedConnection, ReceivedBatch
from streamd.client.session import (
    ClientAction,
    ClientSession,
    FailStream,
    OpenSocket,
    SendMessage,
    compute_leases_per_report,
)
from streamd.ipc.lifeline import RETIRED
from streamd.ipc.lifeline import Lifeline as RealLifeline
from streamd.ipc.messages import BatchReady, CreditNow, DaemonMessage, FrameHeader, ReceiptDue, SlotsGone, Welcome

_WAKE_S: Final = 0.0005  # a bell until its thread runs, at most
_FAREWELL_S: Final = 1.0


class End:
    """A client's end of a lifeline, for what is held over."""

    def __init__(self, network: Network, lifeline: Lifeline) -> None:
        self._network, self._lifeline = network, lifeline

    def report_leases(self, kind: bytes, numbers: Collection[int]) -> None:
        if kind == RETIRED:
            self._network.drop(self._lifeline, (), numbers)
        else:
            self._network.drop(self._lifeline, numbers)

    def close(self) -> None:
        self._network.let_go(self._lifeline)


class VirtualIOThread:
    """`held_over`: what its process holds of ended sessions. `on_news`: something may have come for the loop."""

    def __init__(
        self,
        seat: str,
        process: Process,
        session: ClientSession,
        handoff: Handoff,
        stage: Stage,
        held_over: set[EndedConnection],
        on_news: Callable[[], None],
    ) -> None:
        self.seat, self.process = seat, process
        self.session, self.handoff = session, handoff
        self.link: Link | None = None
        self.lifeline: Lifeline | None = None
        self.slots: dict[int, Slot] = {}  # serial -> what it is mapped to
        self.closed = False
        self.shared = False  # a forked child has the socket too
        self._agenda, self._rng, self._story, self._network = stage.agenda, stage.rng, stage.story, stage.network
        self._held_over = held_over
        self._ended: dict[int, EndedConnection] = {}
        self._lifelines: list[Lifeline] = []  # of connections of which something was held
        self._whose = 0, 0
        self._on_news = on_news
        self._returned: deque[tuple[int, int]] = deque()
        self._orders: deque[Callable[[], Iterable[ClientAction]]] = deque()
        self._connection = 0
        self._pixel_id = ""
        self._worth_ringing = 1
        self._hurried = False
        self._rung = False
        self._due_s: float | None = None
        self._arm()

    # --- the loop

    def give_back(self, connection: int, number: int) -> None:
        self._returned.append((connection, number))
        if (ended := self._ended.get(connection)) is not None:
            ended.return_lease(number)
        elif self._hurried or len(self._returned) >= self._worth_ringing:
            self._ring()

    def hurry(self, *, now: bool) -> None:
        self._hurried = now
        if now and self._returned:
            self._ring()

    def order(self, order: Callable[[], Iterable[ClientAction]]) -> None:
        self._orders.append(order)
        self._ring()

    def close(self) -> None:
        """Says goodbye, and waits for the daemon to hang up: at most a second."""
        self._collect()
        self.closed = True
        held, forked = self.handoff.discard_untaken_batches()
        farewell = self.session.close_session((*held, *forked.difference(held)))
        self._do(farewell)
        if farewell and self.lifeline is not None:
            self.process.after(_FAREWELL_S, self.disconnect)
        else:
            self.disconnect()

    # --- the thread

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self.process.after(self._rng.random() * _WAKE_S, self._heed)

    def _heed(self) -> None:
        self._rung = False
        if not self.closed:
            self._collect()
            self._arm()

    def _arm(self) -> None:
        due_s = self.session.next_deadline_s()
        if due_s is not None and (self._due_s is None or due_s < self._due_s):
            self._due_s = due_s
            self.process.after(max(0.0, due_s - self._agenda.now_s), self._passed, due_s)

    def _passed(self, due_s: float) -> None:
        if due_s == self._due_s:
            self._due_s = None
        deadline_s = self.session.next_deadline_s()
        if not self.closed and deadline_s is not None and self._agenda.now_s >= deadline_s:
            self._do(self.session.handle_deadline(self._agenda.now_s))
            if self.session.state == "away":
                self.lose()
        self._arm()

    def frame(self, link: Link, header: FrameHeader, message: DaemonMessage) -> None:
        """As IOThread._receive."""
        if link is not self.link or self.closed:
            return
        mine = self.session._header
        stale = self.session.state == "active" and (header.boot, header.session) != (mine.boot, mine.session)
        answer = self.session.handle_message(header, message, self._agenda.now_s)
        if stale:
            still = not answer and self.session.state == "active"
            self._story.counts["stale frames at a trainer"] += 1
            self._story.require("a frame of another session changes nothing", still, "{}: {}", self.seat, message)
        self._do(answer, header.number)
        if self.session.state == "away":
            self.lose()
        if self._returned or self._orders:
            self._collect()
        self._arm()

    def lifeline_ended(self, lifeline: Lifeline) -> None:
        """The daemon hung up, or is dead."""
        if lifeline is not self.lifeline:
            return
        if self.closed:
            self.disconnect()
        else:
            self.lose()

    def link_ended(self, link: Link) -> None:
        """The connection broke, as the socket's monitor tells."""
        if link is self.link and not self.closed:
            self.lose()

    def lose(self) -> None:
        sound = self._network.hostile or not self.session.gaps
        self._story.require("nothing is lost on a sound connection", sound, "{} found a gap", self.seat)
        self.disconnect()
        self._do(self.session.handle_lost(self._agenda.now_s))
        self._away()
        self._arm()

    def die(self) -> None:
        """Its process is dead."""
        for lifeline in (*self._lifelines, *([self.lifeline] if self.lifeline is not None else [])):
            self._network.let_go(lifeline)
        if self.link is not None:
            self._network.close(self.link, heard=not self.shared)
            self.link = None

    def disconnect(self) -> None:
        self.slots.clear()
        if self.lifeline is not None:
            self._part(self.lifeline)
            self.lifeline = None
        if self.link is not None:
            self._network.close(self.link, heard=not self.shared)
            self.link = None

    def _part(self, lifeline: Lifeline) -> None:
        """As IOThread._part."""
        held, forked = self.handoff.discard_untaken_batches()
        if held or forked:
            self._network.drop(lifeline, (), forked.difference(held))
            self._network.keep(lifeline, held)
        if not held:
            self._network.let_go(lifeline)
            return
        self._lifelines.append(lifeline)
        end = End(self._network, lifeline)
        ended = EndedConnection(
            cast("RealLifeline", end), self._whose, self.session.subscription.stream, held, forked, self._held_over
        )
        self._ended[self._connection] = ended
        for connection, number in list(self._returned):
            if connection == self._connection:
                ended.return_lease(number)

    def _away(self) -> None:
        if self.handoff.away_since_s is None:
            self._story.note(self.seat, "the daemon is away")
        self.handoff.mark_daemon_away()

    def _collect(self) -> None:
        numbers = []
        while self._returned:
            connection, number = self._returned.popleft()
            if connection == self._connection:
                numbers.append(number)
        taken, retired = self.handoff.release_leases(self._connection, numbers)
        if numbers and self.session.state == "over" and self.lifeline is not None:
            self._network.drop(self.lifeline, set(numbers).difference(retired), retired)
        elif numbers:
            self._do(self.session.handle_released_leases(numbers, taken, 0, self._agenda.now_s, retired))
        while self._orders:
            self._do(self._orders.popleft()())

    def _do(self, what: Iterable[ClientAction], number: int = 0) -> None:
        for do in what:
            match do:
                case BatchReady():
                    self._offer(number, do)
                case SendMessage(header, message):
                    if self.link is not None:
                        self._network.say(self.link, header, message)
                case OpenSocket():
                    self._connect()
                case Welcome():
                    self._greet(do)
                case SlotsGone(slots):
                    self._unmap(slots)
                case CreditNow(credit):
                    self._worth_ringing = compute_leases_per_report(credit)
                    self.handoff.set_credit(credit)
                    self._on_news()
                case ReceiptDue() | FailStream():
                    self._tell_loop(do)

    def _tell_loop(self, do: ReceiptDue | FailStream) -> None:
        if isinstance(do, ReceiptDue):
            self.handoff.put_receipt(do)
        else:
            self.handoff.set_error(do.error)
            if self.lifeline is not None:
                self._network.keep(self.lifeline, self.handoff.list_outstanding_leases())
        self._on_news()

    def _unmap(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self.slots.pop(slot, None)

    def _connect(self) -> None:
        self.disconnect()
        self._connection, cursor = self.handoff.reset_for_new_connection()
        self.session.held_sessions = tuple(each.session_key for each in self._held_over)
        self.link = self._network.connect(self)
        self._story.counts["connections"] += 1
        self._story.note(self.seat, "connects at {}:{}", cursor.epoch, cursor.next_base_index)
        self._do(self.session.handle_opened(cursor, self._agenda.now_s))

    def _greet(self, welcome: Welcome) -> None:
        if welcome.cursor is not None:
            self.handoff.move_cursor(welcome.cursor)
        boot, number = self._whose = self.session.session_key
        self.lifeline = self._network.pair(self, boot, number)
        if self.lifeline is None:
            self.lose()
            return
        self._pixel_id = welcome.spec.pixel_id
        self._worth_ringing = compute_leases_per_report(welcome.credit)
        counted = {(self._whose[0], session) for session in welcome.earlier}
        self.handoff.mark_session_open(
            welcome.credit, [each for each in self._held_over if each.session_key in counted]
        )
        self._on_news()

    def _offer(self, number: int, header: BatchReady) -> None:
        slot = self._mapped(header.slot)
        if slot is None:
            self.lose()
            return
        received = ReceivedBatch(number, header, self._connection, memoryview(slot), self._pixel_id)
        self.handoff.put_batches([received])
        self._on_news()

    def _mapped(self, serial: int) -> Slot | None:
        """The slot, fetched over the lifeline the first time; None when the daemon is gone, or does not answer."""
        if serial not in self.slots:
            lifeline = self.lifeline
            if lifeline is None or not lifeline.open or lifeline.server.process.stopped:
                return None
            slot = lifeline.server.engine.slots.get(serial)
            if slot is None:
                return None
            self.slots[serial] = slot
        return self.slots[serial]
