"""The messages between client and daemon. Immutable values, and their bytes.

A client sends requests without a session (the messages Ask...) and, after Subscribe and Welcome, the messages of its
session. Within a connection messages keep their order and none is lost; a connection may end at any time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

import msgspec

from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.sampler import BadRow
from streamd.core.spec import Cursor, OrderFacts, StreamSpec, UnevenPolicy
from streamd.core.status import DaemonStatus
from streamd.errors import OtherVersionError, ProtocolError
from streamd.limits import MAX_CLIENT_FRAME_BYTES, MAX_COUNT, MAX_DIGEST_CHARS, MAX_NAME_CHARS, MAX_SESSIONS, MAX_SLOTS

Transport = Literal["shared", "inline"]
Refusal = Literal["unknown", "memory", "token", "busy", "usage"]

# What a client may send: a frame with any other number, text or tuple is malformed. A number that may be negative is
# refused by name where it is used, since users can write it.
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Number = Annotated[int, msgspec.Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
Digest = Annotated[str, msgspec.Meta(max_length=MAX_DIGEST_CHARS)]
# As many as a session may hold: each is in a slot of its own.
DeliveryNumbers = Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_SLOTS)]
EarlierSessions = Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=MAX_SESSIONS)]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message, on the wire an array: a tag, then the fields in order."""


# --- sent by a client


class AskStreams(_Message, frozen=True, tag=1):
    """Request the streams that are served. The answer is Streams."""


class AskStats(_Message, frozen=True, tag=2):
    """Request the daemon's counters and timings. The answer is Stats."""


class Subscribe(_Message, frozen=True, tag=3):
    """Open a session at `cursor`. `order_id` must match if given; `credit` and `transport` are requests.

    `live`: begin where the others are instead, and count `epochs` from there. `together`: send nothing before this many
    sessions of the stream exist. `resuming`: the client continues a stream that it was reading. `order` has the facts
    from which `order_id` was made. `earlier`: (boot, session) of ended sessions of the same process, of which it still
    holds batches.

    For the daemon's status alone: the trainer's `name` and process, the rows of its own steps (`batch_size`), and how
    many of them an epoch has for it (`steps`); 0 for unknown.
    """

    stream: Name
    rank: Number
    world: Number
    epochs: Number | None
    cursor: Cursor
    uneven: UnevenPolicy
    credit: Number
    transport: Transport
    order_id: Digest | None
    resuming: bool
    live: bool = False
    together: Number = 0
    order: OrderFacts | None = None
    earlier: EarlierSessions = ()
    name: Name = ""
    pid: Number = 0
    batch_size: Number = 0
    steps: Number = 0


class Progress(_Message, frozen=True, tag=4):
    """Deliveries numbered below `upto` may be sent; `released` leases have ended; the loop has taken `taken` in all.

    `retired`: those of `released` that a forked child of the trainer may still see. `waited_ns` is the time that the
    loop waited for batches since the last report.
    """

    upto: Count
    released: DeliveryNumbers
    taken: Count
    waited_ns: Count
    retired: DeliveryNumbers = ()


class ReceiptSeen(_Message, frozen=True, tag=5):
    """The result of comparing the client's account of an epoch with the daemon's, and where its time went."""

    epoch: Count
    digest: Digest
    ok: bool
    timing: EpochTiming | None = None


class Goodbye(_Message, frozen=True, tag=6):
    """End the session. Its trainer holds the deliveries `kept`, and reports on its lifeline when it drops them."""

    kept: DeliveryNumbers = ()


class AskNames(_Message, frozen=True, tag=7):
    """Request the names of these samples' files. The answer is Names."""

    stream: Name
    sample_ids: tuple[int, ...]


class AskStatus(_Message, frozen=True, tag=8):
    """Request the daemon's status: its trainers, their rates, and remedies. The answer is StatusNow."""


class Ping(_Message, frozen=True, tag=9):
    """Request the session as the daemon sees it, after the loop has waited long. The answer is Pong or NoSession."""


class AskMonitor(_Message, frozen=True, tag=10):
    """Request the dashboard's address and the token for its pictures. The answer is MonitorAt."""


# --- sent by the daemon


class Streams(_Message, frozen=True, tag=65):
    """The streams served, by name."""

    streams: dict[str, StreamSpec]


class Stats(_Message, frozen=True, tag=66):
    """Counters and timings, nested by stage and stream."""

    values: dict[str, dict[str, float]]


class Welcome(_Message, frozen=True, tag=67):
    """The session exists. `secret` pairs it with a connection to the descriptor socket beside the endpoint.

    The secret comes first, where a gate finds it. `cursor` is where a `live` session begins. Batches held of the ended
    sessions `earlier` count within the credit.
    """

    secret: bytes
    spec: StreamSpec
    credit: int
    transport: Transport
    cursor: Cursor | None = None
    earlier: tuple[int, ...] = ()


class Refused(_Message, frozen=True, tag=68):
    """The request is refused. Another attempt may succeed after `retry_s` seconds; None: it would not."""

    why: Refusal
    text: str
    retry_s: float | None = None


class BatchReady(_Message, frozen=True, tag=69):
    """One delivery: `rows` rows of batch epoch:index, in `slot` of `slot_bytes`, or in the next frame if inline."""

    epoch: int
    index: int
    rows: int
    slot: int
    slot_bytes: int
    inline: bool
    bad: tuple[BadRow, ...] = ()


class ReceiptDue(_Message, frozen=True, tag=70):
    """The digest that the session's epoch must have, computed from the plan, and the samples dropped at its end.

    `supply` says how its batches came to the trainer.
    """

    epoch: int
    digest: str
    dropped: int
    supply: BatchSupply = BatchSupply()


class SlotsGone(_Message, frozen=True, tag=71):
    """These slots are never used again: unmap them."""

    slots: tuple[int, ...]


class Stopped(_Message, frozen=True, tag=72):
    """The stream has ended for good, for the reason `text`. `changed`: because its configuration changed."""

    text: str
    changed: bool


class Draining(_Message, frozen=True, tag=73):
    """The daemon is shutting down: wait for the next one and subscribe to it."""


class Pong(_Message, frozen=True, tag=76):
    """The session as the daemon sees it: batches and receipts sent, the end of the credit, and leases released.

    `paused`: its stream waits for its data.
    """

    sent: int
    upto: int
    released: int
    receipts: int
    paused: bool = False


class NoSession(_Message, frozen=True, tag=77):
    """The session in the frame's header does not exist, or does not belong to this daemon and connection."""


class CreditNow(_Message, frozen=True, tag=78):
    """From now on the session may hold `credit` batches, since other sessions began or ended."""

    credit: int


class Names(_Message, frozen=True, tag=74):
    """The requested names, relative to the stream's root, in the order of the request."""

    names: tuple[str, ...]


class StatusNow(_Message, frozen=True, tag=75):
    """The daemon's status."""

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


# --- Frames: a fixed header, then one message as MessagePack. Nothing is parsed before length, magic, version agree.
#
# Several records travel as one bundle, since waking a process costs as much as writing a dozen of them. A daemon sends
# the frames that it has for a client at one time as one bundle.

MAGIC: Final = b"sd"
VERSION: Final = 10
_HEADER: Final = struct.Struct("<2sBxQQQ")  # magic, version, boot, session, number

# Encodes a message alone. A daemon that sends the same batch to several sessions does so once.
encode_message: Final[Callable[[ClientMessage | DaemonMessage], bytes]] = msgspec.msgpack.Encoder().encode
_decode_client: Final = msgspec.msgpack.Decoder(ClientMessage)
_decode_daemon: Final = msgspec.msgpack.Decoder(DaemonMessage)
_MARK: Final = b"\x08"  # the first byte of a bundle; no record begins with it
PIECE_MARK: Final = b"\x09"  # before each piece of a batch's pixels but the first; no record begins with it
_LENGTH: Final = struct.Struct("<I")


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """The session that a frame belongs to: the daemon's `boot`, its `session`, and a `number` within the session.

    Batches are numbered 0, 1, 2, ... as they are sent; every other frame carries 0.
    """

    boot: int
    session: int
    number: int


EMPTY_HEADER: Final = FrameHeader(0, 0, 0)


def build_frame(header: FrameHeader, encoded: bytes) -> bytes:
    """Returns one frame with an encoded message."""
    return _HEADER.pack(MAGIC, VERSION, header.boot, header.session, header.number) + encoded


def encode_frame(header: FrameHeader, message: ClientMessage | DaemonMessage) -> bytes:
    """Returns one frame with a message."""
    return build_frame(header, encode_message(message))


def _split_frame(data: bytes) -> tuple[FrameHeader, memoryview]:
    # The magic and the version are checked before the message is decoded, so that a peer of another version is reported
    # as such and not as a damaged frame.
    if len(data) < _HEADER.size:
        raise ProtocolError(f"a frame of {len(data)} bytes is shorter than its header")
    magic, version, boot, session, number = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"a frame begins with {magic!r}, not {MAGIC!r}: the other side is not streamd")
    if version != VERSION:
        raise OtherVersionError(version, VERSION)
    return FrameHeader(boot, session, number), memoryview(data)[_HEADER.size :]


def decode_client_frame(data: bytes) -> tuple[FrameHeader, ClientMessage]:
    """Returns the header and message of a client's frame. Raises ProtocolError for any other bytes."""
    if len(data) > MAX_CLIENT_FRAME_BYTES:
        raise ProtocolError(f"a client's frame of {len(data)} bytes is over {MAX_CLIENT_FRAME_BYTES}")
    header, rest = _split_frame(data)
    try:
        return header, _decode_client.decode(rest)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ProtocolError(f"a client's message makes no sense: {error}") from error


def decode_daemon_frame(data: bytes) -> tuple[FrameHeader, DaemonMessage]:
    """Returns the header and message of a daemon's frame. Raises ProtocolError for any other bytes."""
    header, rest = _split_frame(data)
    try:
        return header, _decode_daemon.decode(rest)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ProtocolError(f"the daemon's message makes no sense: {error}") from error


def bundle_records(records: Sequence[bytes]) -> bytes:
    """Returns one message with all records in order. A single record is returned as it is."""
    if len(records) == 1:
        return records[0]
    return _MARK + b"".join([_LENGTH.pack(len(record)) + record for record in records])


def split_records(data: bytes) -> list[bytes]:
    """Returns the records of a message. Raises ProtocolError for bytes that `bundle_records` did not make."""
    if not data.startswith(_MARK):
        return [data]
    records, at = [], len(_MARK)
    while at + _LENGTH.size <= len(data):
        start = at + _LENGTH.size
        at = start + int(_LENGTH.unpack_from(data, at)[0])
        records.append(data[start:at])
    if at != len(data) or not records:
        raise ProtocolError(f"a bundle of {len(records)} records ends at {at} of {len(data)} bytes")
    return records
