"""What the scheduler handles, and what it wants done. What exists for every batch is made in C: `msgspec.Struct`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from streamd.core.spec import BatchKey, Cursor, StreamShape, UnevenPolicy
from streamd.ipc.messages import Refusal


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A trainer subscribes to a stream from `cursor` on, for `epochs` epochs in total; None: without end.

    `live`: the session begins where the others are instead, and `epochs` counts from there. `together`: nothing is sent
    before this many sessions of the stream exist. `earlier`: ended sessions of which the trainer says that it still
    holds batches; they may be unknown, or another user's. `resuming`: the trainer goes on with a session that it had.
    `user` is the uid of its process.
    """

    session: int
    stream: str
    rank: int
    world: int
    uneven: UnevenPolicy
    epochs: int | None
    cursor: Cursor
    credit: int
    resuming: bool
    live: bool = False
    together: int = 0
    earlier: tuple[int, ...] = ()
    user: int = 0


class CreditGranted(msgspec.Struct, frozen=True, gc=False):
    """The session may be sent deliveries numbered below `upto`. The number is absolute: a repetition is harmless."""

    session: int
    upto: int


class LeaseReleased(msgspec.Struct, frozen=True, gc=False):
    """The trainer dropped the last views of these deliveries. The session may have ended before.

    `retired`: those of `numbers` whose memory a forked child of the trainer may still see.
    """

    session: int
    numbers: tuple[int, ...]
    retired: tuple[int, ...] = ()


class BatchProduced(msgspec.Struct, frozen=True, gc=False):
    """The batch in a slot is whole. Workers spent `busy_s` seconds on it; 0 if that is not known."""

    slot: int
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProductionFailed:
    """The batch in a slot cannot be made, and no single sample is the cause: its stream stops."""

    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotDenied:
    """The host has no memory or no descriptor for a new slot: its batch waits until another slot is free."""

    slot: int
    reason: str


class ProgressReported(msgspec.Struct, frozen=True, gc=False):
    """The session's loop has taken `taken` deliveries in all."""

    session: int
    taken: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session is gone and will release none of its leases: its slots may still be mapped somewhere."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session has ended. Its trainer still holds the deliveries `kept`, None for all, and will release them."""

    session: int
    kept: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class StreamChanged:
    """A stream was replaced (`shape`) or removed (None). Its trainers receive the reason."""

    stream: str
    shape: StreamShape | None
    reason: str = "its configuration changed"


@dataclass(frozen=True, slots=True)
class StreamPaused:
    """The data of a stream are away: the batches in production in `slots` are abandoned, and none is begun.

    Its trainers wait.
    """

    stream: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamResumed:
    """The data of a stream are back: production continues."""

    stream: str


@dataclass(frozen=True, slots=True)
class WorkersChanged:
    """There are `workers` decode processes from now on, at least 1. Each needs `tasks_ahead` tasks to be at work."""

    workers: int
    tasks_ahead: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The daemon is shutting down: no more batches are begun. Batches that are whole may still be sent."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that `Scheduler.next_deadline_s` returned has come."""


Event = (
    Subscribed
    | CreditGranted
    | LeaseReleased
    | BatchProduced
    | ProductionFailed
    | SlotDenied
    | ProgressReported
    | SessionLost
    | SessionClosed
    | StreamChanged
    | StreamPaused
    | StreamResumed
    | WorkersChanged
    | DrainRequested
    | TimePassed
)


# --- What the scheduler wants done. Actions are performed in the order in which they are returned.


@dataclass(frozen=True, slots=True)
class AdmitSession:
    """The session exists from now on, with this credit.

    `cursor` is where a session that joins others begins, None for any other session. `earlier` are ended sessions of
    the same trainer: the batches that it still holds of them count within the credit.
    """

    session: int
    credit: int
    cursor: Cursor | None = None
    earlier: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SetCredit:
    """From now on the session may hold `credit` batches."""

    session: int
    credit: int


@dataclass(frozen=True, slots=True)
class RefuseSession:
    """The session is refused. A new request may succeed after `retry_s` seconds; None: it would not."""

    session: int
    refusal: Refusal
    text: str
    retry_s: float | None


class ProduceBatch(msgspec.Struct, frozen=True, gc=False):
    """Make a batch in a slot. A serial that was not used before stands for a slot that has to be created."""

    key: BatchKey
    slot: int
    slot_bytes: int


class SendBatch(msgspec.Struct, frozen=True, gc=False):
    """Send the batch in a slot as delivery `number` of a session."""

    session: int
    number: int
    slot: int


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """The session has been sent the last batch of an epoch; `cursor` holds all steps of that epoch."""

    session: int
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class DropSlots:
    """Close and unmap these slots. Their serials are never used again.

    Their pages are given back at once, but those of slots that `may_be_read` by a forked child that no lease counts.
    """

    slots: tuple[int, ...]
    may_be_read: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StopStream:
    """The stream has ended for these sessions, for good. `changed`: because its configuration changed."""

    stream: str
    sessions: tuple[int, ...]
    reason: str
    changed: bool


@dataclass(frozen=True, slots=True)
class LogWarning:
    """A warning for the operator's log."""

    text: str


Action = (
    AdmitSession
    | SetCredit
    | RefuseSession
    | ProduceBatch
    | SendBatch
    | SendReceipt
    | DropSlots
    | StopStream
    | LogWarning
)
