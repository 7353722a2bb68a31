"""What client and daemon say to each other. Immutable values; `frames` turns them into frames and back."""

from __future__ import annotations

from typing import Literal

import msgspec

from streamd.core.bad_samples import BadRow
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.spec import Cursor, OrderFacts, StreamSpec, UnevenPolicy
from streamd.core.status import DaemonStatus

Transport = Literal["shared", "inline"]
Refusal = Literal["unknown", "memory", "token", "busy", "usage"]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array on the wire: a tag, then the fields in order."""


# --- a client says


class AskStreams(_Message, frozen=True, tag=1):
    """What is served?"""


class AskStats(_Message, frozen=True, tag=2):
    """How is it going?"""


class Subscribe(_Message, frozen=True, tag=3):
    """Open a session at `cursor`. `order_id` must match when given; `credit` and `transport` are wishes.

    `live`: begin where the others are instead, and count `epochs` from there. `together`: send nothing before so many
    sessions of the stream are there. `order` is what `order_id` was made of. `earlier`: (boot, session) of the same
    process that have ended while it holds batches of them.

    For people who look at the daemon: the trainer's `name` and process, and of how many rows its own steps are and how
    many an epoch has for it; 0 for what is not known.
    """

    stream: str
    rank: int
    world: int
    epochs: int | None
    cursor: Cursor
    uneven: UnevenPolicy
    credit: int
    transport: Transport
    order_id: str | None
    resuming: bool
    live: bool = False
    together: int = 0
    order: OrderFacts | None = None
    earlier: tuple[tuple[int, int], ...] = ()
    name: str = ""
    pid: int = 0
    batch_size: int = 0
    steps: int = 0


class Progress(_Message, frozen=True, tag=4):
    """Deliveries below `upto` may be sent; `released` leases have ended; the loop has taken `taken` so far.

    `retired`: those of `released` that a forked child of the trainer may still see.
    """

    upto: int
    released: tuple[int, ...]
    taken: int
    waited_ns: int
    retired: tuple[int, ...] = ()


class ReceiptSeen(_Message, frozen=True, tag=5):
    """How the client's own account of an epoch compares, and where its time went."""

    epoch: int
    digest: str
    ok: bool
    timing: EpochTiming | None = None


class Goodbye(_Message, frozen=True, tag=6):
    """The session is over. Its trainer holds the deliveries `kept`, and says on its lifeline when it drops them."""

    kept: tuple[int, ...] = ()


class AskNames(_Message, frozen=True, tag=7):
    """What are the files of these samples called?"""

    stream: str
    sample_ids: tuple[int, ...]


class AskStatus(_Message, frozen=True, tag=8):
    """Who is reading, how fast, and what could be better?"""


class Ping(_Message, frozen=True, tag=9):
    """The loop has waited long: does this session exist, and do we agree on what was said?"""


class AskMonitor(_Message, frozen=True, tag=10):
    """Where is the dashboard, and what opens its pictures?"""


# --- the daemon says


class Streams(_Message, frozen=True, tag=65):
    """The streams served, by name."""

    streams: dict[str, StreamSpec]


class Stats(_Message, frozen=True, tag=66):
    """Counters and timings, nested by stage and stream."""

    values: dict[str, dict[str, float]]


class Welcome(_Message, frozen=True, tag=67):
    """The session exists. `descriptors` is the path of the descriptor socket, `secret` opens it for this session.

    `cursor` is where a `live` session begins. What is held of the sessions `earlier` counts within the credit.
    """

    spec: StreamSpec
    credit: int
    transport: Transport
    descriptors: str
    secret: bytes
    cursor: Cursor | None = None
    earlier: tuple[int, ...] = ()


class Refused(_Message, frozen=True, tag=68):
    """The request cannot be granted; asking again helps after `retry_s`, never when that is None."""

    why: Refusal
    text: str
    retry_s: float | None = None


class BatchReady(_Message, frozen=True, tag=69):
    """One delivery: `rows` of batch epoch:index, in slot `slot` of `slot_bytes`, or in the next frame when inline."""

    epoch: int
    index: int
    rows: int
    slot: int
    slot_bytes: int
    inline: bool
    bad: tuple[BadRow, ...] = ()


class ReceiptDue(_Message, frozen=True, tag=70):
    """What the digest of the session's epoch must be, computed from the plan, and the samples dropped at its end.

    `supply` is how its batches came.
    """

    epoch: int
    digest: str
    dropped: int
    supply: BatchSupply = BatchSupply()


class SlotsGone(_Message, frozen=True, tag=71):
    """These slots will not be used again: unmap them."""

    slots: tuple[int, ...]


class Stopped(_Message, frozen=True, tag=72):
    """The stream ended for good (`changed`: because its configuration did)."""

    text: str
    changed: bool


class Draining(_Message, frozen=True, tag=73):
    """The daemon is going away in good order; come back to the next one."""


class Pong(_Message, frozen=True, tag=76):
    """The session as the daemon sees it: batches and receipts sent, the credit's end, leases heard to have ended.

    `paused`: its stream waits for its data.
    """

    sent: int
    upto: int
    released: int
    receipts: int
    paused: bool = False


class NoSession(_Message, frozen=True, tag=77):
    """The session that the frame's header names is none of this daemon and this connection."""


class CreditNow(_Message, frozen=True, tag=78):
    """The session may hold so many batches from now on: others came, or left."""

    credit: int


class Names(_Message, frozen=True, tag=74):
    """The names asked for, relative to the stream's root, in the order asked."""

    names: tuple[str, ...]


class StatusNow(_Message, frozen=True, tag=75):
    """The daemon's own account of itself."""

    status: DaemonStatus


class MonitorAt(_Message, frozen=True, tag=79):
    """The address of the dashboard, and the token that shows its pictures."""

    url: str
    token: str


ClientMessage = (
    AskStreams | AskStats | AskNames | AskStatus | AskMonitor | Subscribe | Progress | ReceiptSeen | Goodbye | Ping
)
DaemonMessage = (
    Streams
    | Stats
    | Names
    | StatusNow
    | Welcome
    | Refused
    | BatchReady
    | ReceiptDue
    | SlotsGone
    | Stopped
    | Draining
    | Pong
    | NoSession
    | CreditNow
    | MonitorAt
)
