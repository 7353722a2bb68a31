"""What can happen to the scheduler. What comes with every batch is made in C: `msgspec.Struct`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from streamd.core.spec import Cursor, StreamShape, UnevenPolicy


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A trainer wants a stream from `cursor` on; `epochs` counts in total, None runs on.

    `live`: from where the others are instead, and `epochs` counts from there. `together`: nothing before so many
    sessions of the stream are there. `earlier`: sessions of the same trainer that have ended, of which it still holds
    batches.
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


class CreditGranted(msgspec.Struct, frozen=True, gc=False):
    """The session may be sent deliveries numbered below `upto`. Absolute: repeating it is harmless."""

    session: int
    upto: int


class LeaseReleased(msgspec.Struct, frozen=True, gc=False):
    """The trainer dropped the last view of these deliveries, of a session that may have ended before.

    `retired`: those of `numbers` whose memory a forked child of the trainer may still see.
    """

    session: int
    numbers: tuple[int, ...]
    retired: tuple[int, ...] = ()


class BatchProduced(msgspec.Struct, frozen=True, gc=False):
    """The batch in a slot is whole."""

    slot: int


@dataclass(frozen=True, slots=True)
class ProductionFailed:
    """The batch in a slot cannot be made, for a reason that is not one sample's: its stream ends."""

    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotDenied:
    """The host has no memory or no descriptor for a new slot: its batch goes without, until one is free."""

    slot: int
    reason: str


class ProgressReported(msgspec.Struct, frozen=True, gc=False):
    """The session's loop has taken this many deliveries."""

    session: int
    taken: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """Nobody will say any more what becomes of this session's leases: its slots may still be mapped somewhere."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session has ended. Its trainer still holds the deliveries `kept`, and says when it drops them; None: all."""

    session: int
    kept: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class StreamChanged:
    """A stream was replaced (`shape`) or taken away (None). Its trainers are told the reason."""

    stream: str
    shape: StreamShape | None
    reason: str = "its configuration changed"


@dataclass(frozen=True, slots=True)
class StreamPaused:
    """The data of a stream are away: what is in production in `slots` comes to nothing, and nothing is begun.

    Its trainers wait.
    """

    stream: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamResumed:
    """The data of a stream are there again: it goes on."""

    stream: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Produce nothing more."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The deadline has come."""


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
    | DrainRequested
    | TimePassed
)
