"""One subscription's protocol, without a socket, a clock or a thread: what was heard goes in, what to do comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from streamd.core.epoch_timing import EpochTiming
from streamd.core.spec import Cursor, StreamSpec, UnevenPolicy
from streamd.core.steps import RankSteps
from streamd.core.text import format_count
from streamd.errors import (
    RefusedError,
    StreamChangedError,
    StreamdError,
    StreamStoppedError,
    TokenError,
)
from streamd.ipc.frames import EMPTY_HEADER, FrameHeader
from streamd.ipc.messages import (
    BatchReady,
    ClientMessage,
    CreditNow,
    DaemonMessage,
    Draining,
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

_GRANTS_A_CREDIT: Final = 2  # releases are told together, this many times while the credit is used up once
_NO_MEMORY: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a trainer subscribed to; stays the same over every reconnection.

    But for `live`, which is how the first connection begins: where the others are, `epochs` counting from there.
    `together`: begin when so many sessions of the stream are there, 0 for at once. `name` and `pid` say whose it is;
    an epoch has `steps` of `batch_size` rows for the trainer.
    """

    stream: str
    rank: int
    world: int
    epochs: int | None
    uneven: UnevenPolicy
    credit: int
    transport: Transport
    live: bool = False
    together: int = 0
    name: str = ""
    pid: int = 0
    batch_size: int = 0
    steps: int = 0


# --- what the shell is asked to do


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """Drop the old socket and everything undelivered, open a new one, and call `handle_opened` with the loop's
    cursor.
    """


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message."""

    header: FrameHeader
    message: ClientMessage


@dataclass(frozen=True, slots=True)
class AcceptWelcome:
    """The session stands: pair the lifeline, show the welcome to whoever waits for it."""

    welcome: Welcome


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ReceivedBatch:
    """The next batch for the loop: its number within the connection, and what the daemon says of it.

    The I/O thread adds its connection, its memory and how its pixels were made. The lease ends with the object that has
    the memory: the lent images keep it, so the lease also ends where an interrupt falls before anything was lent.
    """

    number: int
    header: BatchReady
    connection: int = 0
    memory: memoryview = field(default=_NO_MEMORY, repr=False, compare=False)
    pixel_id: str = ""

    def with_mapped_memory(self, connection: int, memory: memoryview, pixel_id: str) -> ReceivedBatch:
        """The same batch, ready to be taken."""
        return ReceivedBatch(self.number, self.header, connection, memory, pixel_id)


@dataclass(frozen=True, slots=True)
class DeliverReceipt:
    """The daemon's word on an epoch."""

    receipt: ReceiptDue


@dataclass(frozen=True, slots=True)
class DropMappings:
    """These slots are over."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangeCredit:
    """The loop may hold so many batches at a time from now on."""

    credit: int


@dataclass(frozen=True, slots=True)
class FailStream:
    """The subscription is over, for this reason."""

    error: StreamdError


ClientAction = (
    OpenSocket | SendMessage | AcceptWelcome | ReceivedBatch | DeliverReceipt | DropMappings | ChangeCredit | FailStream
)
ProtocolState = Literal["away", "asking", "active", "over"]


def compute_leases_per_report(credit: int) -> int:
    """Released leases that are worth a message of their own."""
    return max(1, credit // _GRANTS_A_CREDIT)


def _build_stream_changed_error(spec: StreamSpec, others: list[str]) -> StreamChangedError:
    """Batches of it would be misread; a daemon that finds the order another one has refused it before."""
    return StreamChangedError(
        f"stream {spec.name!r} changed in {', '.join(others)}; subscribe again: its order is the same, and tokens of "
        "it fit"
    )


@dataclass(slots=True)
class ClientSession:
    """`away`: waiting to try again; `asking`: subscribed, no answer yet; `active`; `over`: failed or closed.

    `spec` is what the trainer knows of the stream, which every daemon must serve. `resuming`: the stream is running, so
    its memory is waited for, and whatever makes it another stream has changed since.
    """

    subscription: Subscription
    spec: StreamSpec | None = None
    resuming: bool = False
    state: ProtocolState = "away"
    stale_frames: int = 0
    gaps: int = 0
    reconnects: int = -1
    refusal: str | None = None  # why the daemon put it off when last asked
    held_sessions: tuple[tuple[int, int], ...] = ()  # (boot, session) of which its process still holds batches
    _header: FrameHeader = EMPTY_HEADER
    _keys: Iterator[tuple[int, int]] = field(default_factory=lambda: iter(()))
    _expected: int = 0
    _credit: int = 0
    _released: list[int] = field(default_factory=list)
    _retired: list[int] = field(default_factory=list)
    _released_total: int = 0
    _told_upto: int = 0
    _receipts: int = 0
    _paused: bool = False  # by the daemon's last answer
    _pinged_with: tuple[int, int] | None = None  # credit's end and released leases, as told when the daemon was pinged
    _answer_due_s: float | None = None
    _taken: int = 0
    _waited_ns: int = 0
    _due_s: float | None = 0.0  # when to try again, to ask again, or to tell progress
    _backoff_s: float = BACKOFF_MIN_S
    _cursor: Cursor = field(default_factory=Cursor)

    @property
    def session_key(self) -> tuple[int, int]:
        """The boot and the number by which the daemon knows it."""
        return self._header.boot, self._header.session

    @property
    def next_subscription(self) -> Subscription:
        """What the next connection asks for: who has begun in company does not wait for it again."""
        return replace(self.subscription, together=0) if self._expected else self.subscription

    def describe_daemon_wait(self) -> str:
        """Whom or what the daemon waits for before it sends anything more; "" for nothing."""
        subscription = self.subscription
        if self.state == "active" and self._paused:
            return f"the data of stream {subscription.stream!r}"
        if self.state != "active" or self._expected or not subscription.together:
            return ""
        return f"{format_count(subscription.together, 'trainer')} of stream {subscription.stream!r}"

    # --- from the shell

    def next_deadline_s(self) -> float | None:
        """When `handle_deadline` is due."""
        due_s, answer_due_s = self._due_s, self._answer_due_s
        if due_s is None or answer_due_s is None:
            return due_s if answer_due_s is None else answer_due_s
        return min(due_s, answer_due_s)

    def handle_deadline(self, now_s: float) -> list[ClientAction]:
        """The deadline has come."""
        if self._answer_due_s is not None and now_s >= self._answer_due_s:
            return self.handle_lost(now_s)
        match self.state:
            case "away":
                return [OpenSocket()]
            case "asking":
                self.refusal = None
                return self.handle_lost(now_s)
            case "active":
                return self._report_progress(now_s)
            case "over":
                self._mark_session_over()
        return []

    def handle_opened(self, cursor: Cursor, now_s: float) -> list[ClientAction]:
        """A new socket is there; `cursor` lies behind the last batch that the loop took."""
        subscription = self.subscription = self.next_subscription
        self.state, self._due_s, self._cursor = "asking", now_s + ANSWER_TIMEOUT_S, cursor
        self._header, self._expected = EMPTY_HEADER, 0
        self._released, self._retired, self._released_total = [], [], 0
        self._told_upto, self._taken, self._receipts = 0, 0, 0
        subscribe = Subscribe(
            subscription.stream,
            subscription.rank,
            subscription.world,
            subscription.epochs,
            cursor,
            subscription.uneven,
            subscription.credit,
            subscription.transport,
            self.spec.order_id if self.spec else None,
            self.resuming,
            subscription.live,
            subscription.together,
            self.spec.order_facts if self.spec else None,
            self.held_sessions,
            subscription.name,
            subscription.pid,
            subscription.batch_size,
            subscription.steps,
        )
        return [SendMessage(EMPTY_HEADER, subscribe)]

    def handle_lost(self, now_s: float) -> list[ClientAction]:
        """The connection is gone, or no use: try again after a pause."""
        if self.state in {"away", "over"}:
            return []  # nothing is left to lose, and the pause is not doubled for one loss heard of twice
        self.state, self._header = "away", EMPTY_HEADER
        self._pinged_with, self._answer_due_s = None, None
        self._due_s = now_s + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        return []

    def handle_released_leases(
        self, numbers: list[int], taken: int, waited_ns: int, now_s: float, retired: Sequence[int] = ()
    ) -> list[ClientAction]:
        """Leases of this connection ended; the loop has taken `taken` and waited `waited_ns` since last told.

        Of `numbers`, a forked child may still see those `retired`.
        """
        if self.state != "active":
            return []
        self._released += numbers
        self._retired += retired
        self._released_total += len(numbers)
        self._taken, self._waited_ns = taken, self._waited_ns + waited_ns
        if len(self._released) >= compute_leases_per_report(self._credit):
            return self._report_progress(now_s)
        if self._due_s is None:
            self._due_s = now_s + PROGRESS_DELAY_S
        return []

    def ping_daemon(self, now_s: float) -> list[ClientAction]:
        """The loop has waited long: is the daemon there, does it know this session, has nothing been lost?

        Without an answer in time, or when the two accounts differ, the session begins anew at the loop's cursor.
        """
        if self.state != "active" or self._pinged_with is not None:
            return []
        said = self._report_progress(now_s)
        self._pinged_with, self._answer_due_s = (self._told_upto, self._released_total), now_s + ANSWER_TIMEOUT_S
        return [*said, SendMessage(self._header, Ping())]

    def report_receipt_check(
        self, epoch: int, digest: str, *, ok: bool, timing: EpochTiming | None = None
    ) -> list[ClientAction]:
        """The loop has compared an epoch's receipt, and knows where its time went."""
        return [SendMessage(self._header, ReceiptSeen(epoch, digest, ok, timing))] if self.state == "active" else []

    def close_session(self, kept: tuple[int, ...] = ()) -> list[ClientAction]:
        """The trainer is done; it goes on to hold the deliveries `kept`."""
        said: list[ClientAction] = [SendMessage(self._header, Goodbye(kept))] if self.state == "active" else []
        self._mark_session_over()
        return said

    def handle_message(self, header: FrameHeader, message: DaemonMessage, now_s: float) -> list[ClientAction]:
        """A frame of the daemon."""
        match message:
            case Welcome() if self.state == "asking":
                return self._handle_welcome(header, message)
            case Refused(why, text, retry_s) if self.state == "asking":
                return self._handle_refusal(why, text, retry_s, now_s)
        if self.state != "active" or (header.boot, header.session) != (self._header.boot, self._header.session):
            self.stale_frames += 1
            return []
        return self._handle_session_message(header, message, now_s)

    # --- inside

    def _handle_session_message(self, header: FrameHeader, message: DaemonMessage, now_s: float) -> list[ClientAction]:
        answer: list[ClientAction] = []
        match message:
            case BatchReady():
                answer = self._accept_batch(header.number, message, now_s)
            case ReceiptDue():
                self._receipts += 1
                answer = [DeliverReceipt(message)]
            case SlotsGone(slots):
                answer = [DropMappings(slots)]
            case CreditNow(credit):
                self._credit = credit
                answer = [ChangeCredit(credit), *self._report_progress(now_s)]
            case Pong():
                answer = self._handle_pong(message, now_s)
            case Draining() | NoSession():
                answer = self.handle_lost(now_s)
            case Stopped(text, changed):
                answer = self._fail_session(StreamChangedError(text) if changed else StreamStoppedError(text))
        return answer

    def _handle_welcome(self, header: FrameHeader, welcome: Welcome) -> list[ClientAction]:
        spec = welcome.spec
        if others := self.spec.differing_fields(spec) if self.spec else None:
            return [
                SendMessage(FrameHeader(header.boot, header.session, 0), Goodbye()),
                *self._fail_session(_build_stream_changed_error(spec, others)),
            ]
        self.spec = spec
        self.state, self._due_s, self.refusal = "active", None, None
        self.reconnects += 1
        self.resuming = True
        self._header = FrameHeader(header.boot, header.session, 0)
        self._credit = welcome.credit
        if self.subscription.live and welcome.cursor is not None:
            self._set_live_session_cursor(welcome.cursor)
        subscription = self.subscription
        self._keys = RankSteps(
            spec.batches, subscription.rank, subscription.world, subscription.uneven, subscription.epochs
        ).iterate_batches(self._cursor)
        self._told_upto = welcome.credit
        return [AcceptWelcome(welcome), SendMessage(self._header, Progress(welcome.credit, (), 0, 0))]

    def _set_live_session_cursor(self, cursor: Cursor) -> None:
        """A live session has its place: from now on it is like any other."""
        epochs = None if self.subscription.epochs is None else cursor.epoch + self.subscription.epochs
        self.subscription = replace(self.subscription, live=False, epochs=epochs)
        self._cursor = cursor

    def _handle_refusal(self, why: str, text: str, retry_s: float | None, now_s: float) -> list[ClientAction]:
        if retry_s is None:
            return self._fail_session(self._build_refusal_error(why, text))
        self.refusal = text
        self._backoff_s = max(self._backoff_s, retry_s)
        return self.handle_lost(now_s)

    def _build_refusal_error(self, why: str, text: str) -> StreamdError:
        """What a refusal for good means."""
        if self.resuming and why in {"token", "unknown"}:
            return StreamChangedError(text)
        return TokenError(text) if why == "token" else RefusedError(text)

    def _accept_batch(self, number: int, batch: BatchReady, now_s: float) -> list[ClientAction]:
        """Accepts a batch that is the next in every respect; anything else ends the connection, never the data."""
        if number != self._expected or (batch.epoch, batch.index) != next(self._keys, None):
            self.gaps += 1
            return self.handle_lost(now_s)
        self._expected += 1
        self._backoff_s = BACKOFF_MIN_S  # not with the welcome: what comes of it may fail each time
        return [ReceivedBatch(number, batch)]

    def _report_progress(self, now_s: float) -> list[ClientAction]:
        del now_s  # progress is told whole: nothing of it stays to be told later
        upto = max(self._told_upto, self._released_total + self._credit)
        progress = Progress(upto, tuple(self._released), self._taken, self._waited_ns, tuple(self._retired))
        self._released, self._retired, self._waited_ns, self._told_upto, self._due_s = [], [], 0, upto, None
        return [SendMessage(self._header, progress)]

    def _handle_pong(self, pong: Pong, now_s: float) -> list[ClientAction]:
        """Compares accounts: frames keep their order, so whatever only one side knows of was lost on the way."""
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
