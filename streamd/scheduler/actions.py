"""What the scheduler wants done. Actions are performed in the order in which they are returned.

Actions that exist for every batch are made in C: `msgspec.Struct`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from streamd.core.spec import BatchKey, Cursor
from streamd.ipc.messages import Refusal


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
