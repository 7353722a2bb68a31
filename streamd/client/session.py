"""The protocol of one subscription, without socket, clock or thread: messages go in, actions come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec.structs import replace

from streamd.core.epoch_timing import EpochTiming
from streamd.core.spec import Cursor, RankSteps, StreamSpec
from streamd.core.text import format_count
from streamd.errors import (
    RefusedError,
    StreamChangedError,
    StreamdError,
    StreamStoppedError,
    TokenError,
)
from streamd.ipc.messages import (
    EMPTY_HEADER,
    BatchReady,
    ClientMessage,
    CreditNow,
    DaemonMessage,
    Draining,
    FrameHeader,
    Goodbye,
    NoSession,
    Ping,
    Pong,
    Progress,
    ReceiptDue,
    ReceiptSeen,
    Refused,
    SlotsGone,
    Stopped,
    Subscribe,
    Transport,
    Welcome,
)
from streamd.limits import ANSWER_TIMEOUT_S, BACKOFF_MAX_S, BACKOFF_MIN_S, PROGRESS_DELAY_S

_GRANTS_A_CREDIT: Final = 2  # Progress messages sent while the loop takes as many batches as the credit allows
_REMOTE_GRANTS_A_CREDIT: Final = 4  # ... by a trainer on another host, where each takes a while to get there


# --- what the shell is asked to do
#
# A daemon's message that the session has accepted is itself an action if the shell has to act on it. `Welcome`:
# connect the lifeline, and wake threads that wait for the session. `BatchReady`: map the batch's memory, and hand it to
# the loop. `ReceiptDue`: give the receipt to the loop. `SlotsGone`: unmap these slots, which the daemon will not use
# again. `CreditNow`: let the loop hold this many batches at a time from now on.


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """Discard the old socket and all untaken batches, open a new socket, and call `handle_opened` with the cursor."""


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message."""

    header: FrameHeader
    message: ClientMessage


@dataclass(frozen=True, slots=True)
class FailStream:
    """End the subscription with this error."""

    error: StreamdError


ClientAction = OpenSocket | SendMessage | FailStream | Welcome | BatchReady | ReceiptDue | SlotsGone | CreditNow
ProtocolState = Literal["away", "asking", "active", "over"]


def compute_leases_per_report(credit: int, transport: Transport = "shared") -> int:
    """Returns how many ended leases are reported together in one message."""
    return max(1, credit // (_GRANTS_A_CREDIT if transport == "shared" else _REMOTE_GRANTS_A_CREDIT))


@dataclass(slots=True)
class ClientSession:
    """The state of one subscription's protocol.

    States: `away` waits before it tries again; `asking` has subscribed and has no answer yet; `active` receives
    batches; `over` has failed or was closed. From any state but `over`, a lost connection leads to `away`.

    subscription: what each connection asks for. Its `cursor`, `order_id`, `order`, `resuming` and `earlier` are
        placeholders, which are filled in when it is sent. The rest stays the same across reconnections, except that
        `live` applies to the first connection only (`epochs` then counts from where it began), `together` until the
        first batch, and that `transport` becomes inline where memory cannot be shared.
    spec: the stream as the trainer knows it; every later daemon must serve the same.
    resuming: the stream has run before, so the daemon makes it wait for memory rather than refuse it, and a refusal
        because of its order means that the stream changed.
    """

    subscription: Subscribe
    spec: StreamSpec | None = None
    resuming: bool = False
    state: ProtocolState = "away"
    stale_frames: int = 0
    gaps: int = 0
    reconnects: int = -1
    refusal: str | None = None  # why the daemon put off the last subscription
    held_sessions: tuple[tuple[int, int], ...] = ()  # (boot, session) of ended sessions whose batches are still held
    _header: FrameHeader = EMPTY_HEADER
    _keys: Iterator[tuple[int, int]] = field(default_factory=lambda: iter(()))  # (epoch, index) of batches to come
    _expected: int = 0  # the number of the next delivery
    _credit: int = 0
    _released: list[int] = field(default_factory=list)
    _retired: list[int] = field(default_factory=list)
    _released_total: int = 0
    _told_upto: int = 0
    _receipts: int = 0
    _paused: bool = False  # the daemon's last pong reported that the stream waits for its data
    _pinged_with: tuple[int, int] | None = None  # the end of the credit and the released leases reported with the ping
    _answer_due_s: float | None = None
    _taken: int = 0
    _waited_ns: int = 0
    _due_s: float | None = 0.0  # when to connect again, to give up waiting for a welcome, or to report progress
    _backoff_s: float = BACKOFF_MIN_S
    _cursor: Cursor = field(default_factory=Cursor)

    def __repr__(self) -> str:
        received = f", {self._expected} of {self._told_upto} batches received" if self.state == "active" else ""
        return f"<ClientSession of {self.subscription.stream!r}, {self.state}{received}>"

    @property
    def session_key(self) -> tuple[int, int]:
        """The boot and the session number by which the daemon knows this session."""
        return self._header.boot, self._header.session

    @property
    def subscription_to_reconnect(self) -> Subscribe:
        """The subscription for the next connection: once a batch has arrived, it no longer waits for other sessions."""
        return replace(self.subscription, together=0) if self._expected else self.subscription

    def describe_daemon_wait(self) -> str:
        """Describes what the daemon waits for before it sends another batch; "" if it waits for nothing."""
        subscription = self.subscription
        if self.state == "active" and self._paused:
            return f"the data of stream {subscription.stream!r}"
        if self.state != "active" or self._expected or not subscription.together:
            return ""
        return f"{format_count(subscription.together, 'trainer')} of stream {subscription.stream!r}"

    # --- from the shell

    def next_deadline_s(self) -> float | None:
        """Returns the monotonic time in seconds at which `handle_deadline` is due; None for never."""
        due_s, answer_due_s = self._due_s, self._answer_due_s
        if due_s is None or answer_due_s is None:
            return due_s if answer_due_s is None else answer_due_s
        return min(due_s, answer_due_s)

    def handle_deadline(self, now_s: float) -> list[ClientAction]:
        """Handles a deadline that is due, according to the state."""
        # The daemon did not answer a ping in time: the connection is of no use.
        if self._answer_due_s is not None and now_s >= self._answer_due_s:
            return self.handle_lost(now_s)
        match self.state:
            case "away":
                return [OpenSocket()]
            case "asking":
                self.refusal = None
                return self.handle_lost(now_s)
            case "active":
                return self._report_progress()
            case "over":
                self._mark_session_over()
        return []

    def handle_opened(self, cursor: Cursor, now_s: float) -> list[ClientAction]:
        """Subscribes on a new socket; `cursor` is the position after the last batch that the loop took."""
        # Counters of deliveries and leases belong to a connection, so each one starts from zero on both sides.
        subscription = self.subscription = self.subscription_to_reconnect
        self.state, self._due_s, self._cursor = "asking", now_s + ANSWER_TIMEOUT_S, cursor
        self._header, self._expected = EMPTY_HEADER, 0
        self._released, self._retired, self._released_total = [], [], 0
        self._told_upto, self._taken, self._receipts = 0, 0, 0
        spec = self.spec
        subscribe = replace(
            subscription,
            cursor=cursor,
            order_id=spec.order_id if spec else None,
            order=spec.order_facts if spec else None,
            resuming=self.resuming,
            earlier=self.held_sessions,
        )
        return [SendMessage(EMPTY_HEADER, subscribe)]

    def handle_lost(self, now_s: float) -> list[ClientAction]:
        """Gives up the connection, and schedules the next attempt with exponential back-off."""
        # A loss may be reported twice, by the socket monitor and by the lifeline; the pause is doubled once.
        if self.state in {"away", "over"}:
            return []
        self.state, self._header = "away", EMPTY_HEADER
        self._pinged_with, self._answer_due_s = None, None
        self._due_s = now_s + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        return []

    def handle_unreachable(self, refusal: str | None, now_s: float) -> None:
        """Schedules the next attempt after one that found no daemon, or one whose door gave this `refusal`.

        A daemon that is not there may be back at any moment, so it is looked for at the shortest interval.
        """
        if self.state != "away":
            return
        self.refusal = refusal
        self._due_s = now_s + (BACKOFF_MIN_S if refusal is None else self._backoff_s)
        if refusal is not None:
            self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)

    def handle_released_leases(
        self, numbers: list[int], taken: int, waited_ns: int, now_s: float, retired: Sequence[int] = ()
    ) -> list[ClientAction]:
        """Records ended leases of this connection, and reports them once there are enough, or after a short delay.

        numbers: the deliveries whose leases have ended.
        taken: how many batches of this connection the loop has taken so far.
        waited_ns: how long the loop has waited since the last call.
        retired: those of `numbers` that a forked child may still see.
        """
        if self.state != "active":
            return []
        self._released += numbers
        self._retired += retired
        self._released_total += len(numbers)
        self._taken, self._waited_ns = taken, self._waited_ns + waited_ns
        if len(self._released) >= compute_leases_per_report(self._credit, self.subscription.transport):
            return self._report_progress()
        if self._due_s is None:
            self._due_s = now_s + PROGRESS_DELAY_S
        return []

    def ping_daemon(self, now_s: float) -> list[ClientAction]:
        """Pings the daemon after a long wait, to learn whether it is there, knows this session and has lost nothing.

        If there is no answer in time, or the two accounts differ, the session begins anew at the loop's cursor.
        """
        if self.state != "active" or self._pinged_with is not None:
            return []
        # Progress goes first, so that the pong's account covers everything that this side has reported.
        said = self._report_progress()
        self._pinged_with, self._answer_due_s = (self._told_upto, self._released_total), now_s + ANSWER_TIMEOUT_S
        return [*said, SendMessage(self._header, Ping())]

    def note_arrival(self, now_s: float) -> None:
        """Waits for the answer to a ping anew: pixels have arrived, and the answer is in the queue behind them."""
        if self._answer_due_s is not None:
            self._answer_due_s = now_s + ANSWER_TIMEOUT_S

    def report_receipt_check(
        self, epoch: int, digest: str, *, ok: bool, timing: EpochTiming | None = None
    ) -> list[ClientAction]:
        """Reports the result of an epoch's receipt, and where the epoch's time went."""
        return [SendMessage(self._header, ReceiptSeen(epoch, digest, ok, timing))] if self.state == "active" else []

    def close_session(self, kept: tuple[int, ...] = ()) -> list[ClientAction]:
        """Ends the session; the goodbye names the deliveries `kept`, which the trainer still holds."""
        said: list[ClientAction] = [SendMessage(self._header, Goodbye(kept))] if self.state == "active" else []
        self._mark_session_over()
        return said

    def handle_message(self, header: FrameHeader, message: DaemonMessage, now_s: float) -> list[ClientAction]:
        """Handles a message of the daemon, and returns what to do."""
        match message:
            case Welcome() if self.state == "asking":
                return self._handle_welcome(header, message)
            case Refused(why, text, retry_s) if self.state == "asking":
                if retry_s is not None:
                    self.refusal = text
                    self._backoff_s = max(self._backoff_s, retry_s)
                    return self.handle_lost(now_s)
                # A refusal that the daemon will not lift.
                if self.resuming and why in {"token", "unknown"}:
                    return self._fail_session(StreamChangedError(text))
                return self._fail_session(TokenError(text) if why == "token" else RefusedError(text))
        # Frames of an earlier daemon or session are counted and dropped.
        if self.state != "active" or (header.boot, header.session) != (self._header.boot, self._header.session):
            self.stale_frames += 1
            return []
        answer: list[ClientAction] = []
        match message:
            case BatchReady():
                # It has to be the next one by number and by plan. If it is not, the connection is given up, and the
                # next one begins at the loop's cursor, so no batch is lost or repeated.
                if header.number != self._expected or (message.epoch, message.index) != next(self._keys, None):
                    self.gaps += 1
                    return self.handle_lost(now_s)
                self._expected += 1
                # The back-off ends with a batch and not with the welcome: what follows a welcome may fail each time.
                self._backoff_s = BACKOFF_MIN_S
                answer = [message]
            case ReceiptDue():
                self._receipts += 1
                answer = [message]
            case SlotsGone():
                answer = [message]
            case CreditNow(credit):
                self._credit = credit
                answer = [message, *self._report_progress()]
            case Pong():
                answer = self._handle_pong(message, now_s)
            case Draining() | NoSession():
                answer = self.handle_lost(now_s)
            case Stopped(text, changed):
                answer = self._fail_session(StreamChangedError(text) if changed else StreamStoppedError(text))
        return answer

    # --- inside

    def _handle_welcome(self, header: FrameHeader, welcome: Welcome) -> list[ClientAction]:
        spec = welcome.spec
        # The daemon has compared the order; every other field is compared here, since a trainer would misread batches
        # of another layout. The goodbye frees what the daemon has reserved for this session.
        if others := self.spec.differing_fields(spec) if self.spec else None:
            return [
                SendMessage(FrameHeader(header.boot, header.session, 0), Goodbye()),
                *self._fail_session(
                    StreamChangedError(
                        f"stream {spec.name!r} changed in {', '.join(others)}; subscribe again: its order is the same, "
                        "and its tokens remain valid"
                    )
                ),
            ]
        self.spec = spec
        self.state, self._due_s, self.refusal = "active", None, None
        self.reconnects += 1
        self.resuming = True
        self._header = FrameHeader(header.boot, header.session, 0)
        self._credit = welcome.credit
        if self.subscription.live and welcome.cursor is not None:
            # The daemon chose the position of a live session, which is an ordinary one from now on.
            epochs = None if self.subscription.epochs is None else welcome.cursor.epoch + self.subscription.epochs
            self.subscription = replace(self.subscription, live=False, epochs=epochs)
            self._cursor = welcome.cursor
        subscription = self.subscription
        self._keys = RankSteps(
            spec.batches, subscription.rank, subscription.world, subscription.uneven, subscription.epochs
        ).iterate_batches(self._cursor)
        self._told_upto = welcome.credit
        return [welcome, SendMessage(self._header, Progress(welcome.credit, (), 0, 0))]

    def _report_progress(self) -> list[ClientAction]:
        # A report is complete, so it leaves no later deadline.
        # The end of the credit never moves back: the daemon may already have sent up to the old one.
        upto = max(self._told_upto, self._released_total + self._credit)
        progress = Progress(upto, tuple(self._released), self._taken, self._waited_ns, tuple(self._retired))
        self._released, self._retired, self._waited_ns, self._told_upto, self._due_s = [], [], 0, upto, None
        return [SendMessage(self._header, progress)]

    def _handle_pong(self, pong: Pong, now_s: float) -> list[ClientAction]:
        """Compares the daemon's account with this one; gives the connection up when they differ.

        Frames keep their order within a connection, so anything that only one side knows of was lost.
        """
        asked, self._pinged_with, self._answer_due_s = self._pinged_with, None, None
        self._paused = pong.paused
        if (pong.upto, pong.released) == asked and (pong.sent, pong.receipts) == (self._expected, self._receipts):
            return []
        self.gaps += 1
        return self.handle_lost(now_s)

    def _fail_session(self, error: StreamdError) -> list[ClientAction]:
        self._mark_session_over()
        return [FailStream(error)]

    def _mark_session_over(self) -> None:
        self.state, self._due_s, self._answer_due_s = "over", None, None
