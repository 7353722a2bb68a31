"""What the scheduler wants done, in this order. What comes with every batch is made in C: `msgspec.Struct`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from streamd.core.spec import BatchKey, Cursor
from streamd.ipc.messages import Refusal


@dataclass(frozen=True, slots=True)
class AdmitSession:
    """The session exists, with this credit; `cursor` is where one that joins others begins.

    What its trainer holds of the sessions `earlier`, which have ended, counts within the credit.
    """

    session: int
    credit: int
    cursor: Cursor | None = None
    earlier: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SetCredit:
    """The session may hold so many batches from now on."""

    session: int
    credit: int


@dataclass(frozen=True, slots=True)
class RefuseSession:
    """The session does not come to be; asking again may help after `retry_s`."""

    session: int
    refusal: Refusal
    text: str
    retry_s: float | None


class ProduceBatch(msgspec.Struct, frozen=True, gc=False):
    """Make a batch in a slot. A serial not seen before is a slot to be made."""

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
    """The session has been sent the last batch of an epoch; `cursor` holds all its steps."""

    session: int
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class DropSlots:
    """These slots are over: close, unmap, never use their serials again."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopStream:
    """These sessions' stream has ended for good."""

    stream: str
    sessions: tuple[int, ...]
    reason: str
    changed: bool


@dataclass(frozen=True, slots=True)
class LogWarning:
    """Something a person should know."""

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
