"""What a stream is, and how a place in it is named. Plain values, shared by daemon, workers and clients."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NewType

import msgspec

from streamd.errors import TokenError
from streamd.limits import MAX_SEGMENTS

OrderId = NewType("OrderId", str)
PixelId = NewType("PixelId", str)

LabelType = Literal["category", "int", "float", "string", "tags"]
Shuffle = Literal["full", "none", "chunk"]
Remainder = Literal["keep", "drop", "pad"]  # of the last batch; the configuration's false, true, pad
BadPolicy = Literal["substitute", "mask", "fail"]
Resize = Literal["stretch", "crop", "pad"]
Uneven = Literal["drop", "pad"]

DIGEST: Final = re.compile(r"[0-9a-f]{32}")  # an order digest as text: two lanes of sixteen digits


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """One label of every sample. `width` is 0 for shape (B,), k for (B, k); tags have a column for each class.

    `classes` and `counts`, samples of each class, are those of category and tags. `mean` and `std` of int and float are
    taken over all samples, and over all k numbers of a vector. `text_bytes` is the longest string's, in UTF-8.
    """

    name: str
    type: LabelType
    width: int = 0
    classes: tuple[int | str, ...] = ()
    counts: tuple[int, ...] = ()
    mean: float | None = None
    std: float | None = None
    text_bytes: int = 0

    @property
    def dtype(self) -> str:
        """The NumPy dtype in a slot: int64 for category and int, float32 for float and tags, UTF-8 bytes for string."""
        if self.type == "string":
            return f"S{max(self.text_bytes, 1)}"
        return "float32" if self.type in {"float", "tags"} else "int64"


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """What every image becomes. `height` and `width` in pixels; `channels` 3 for RGB, 1 for L."""

    height: int
    width: int
    channels: int
    resize: Resize = "stretch"
    exact: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.height, self.width, self.channels)

    @property
    def row_bytes(self) -> int:
        return self.height * self.width * self.channels


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Everything a trainer may know about a stream before its first batch."""

    name: str
    samples: int
    batch_size: int
    batches: int
    image: ImageSpec
    labels: Mapping[str, LabelSpec]
    normalize: str | Mapping[str, list[float]]
    shuffle: Shuffle
    seed: int
    remainder: Remainder
    bad_policy: BadPolicy
    order_id: OrderId
    pixel_id: PixelId

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image."""
        return self.image.shape

    def rows(self, index: int) -> int:
        """Rows of batch `index`; beyond the last batch lie the whole, weightless ones of `uneven="pad"`."""
        last_is_short = self.remainder == "keep" and index == self.batches - 1
        return self.samples - index * self.batch_size if last_is_short else self.batch_size


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The name of a batch; its bytes are a function of this and of the recorded verdicts."""

    stream: str
    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of steps within one epoch: step k of it was batch base + k * world + rank."""

    base: int
    steps: int
    rank: int
    world: int

    @property
    def end(self) -> int:
        """The base of what follows."""
        return self.base + self.steps * self.world


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a session stands: in `epoch`, after the steps of `history`, the next step beginning at `base`.

    `begin` is where its first step began: 0, but for a session that joined others in the middle of an epoch.
    """

    epoch: int = 0
    history: tuple[Segment, ...] = ()
    begin: int = 0

    @property
    def base(self) -> int:
        return self.history[-1].end if self.history else self.begin

    def after_step(self, rank: int, world: int) -> Cursor:
        """The cursor when one more step of (rank, world) is done."""
        if self.history:
            last = self.history[-1]
            if (last.rank, last.world) == (rank, world):
                longer = Segment(last.base, last.steps + 1, rank, world)
                return Cursor(self.epoch, (*self.history[:-1], longer), self.begin)
        return Cursor(self.epoch, (*self.history, Segment(self.base, 1, rank, world)), self.begin)

    def next_epoch(self) -> Cursor:
        return Cursor(self.epoch + 1)


def steps_from(base: int, world: int, batches: int, uneven: Uneven) -> int:
    """Steps that remain of an epoch of `batches` when the next one begins at `base`."""
    left = max(0, batches - base)
    return -(-left // world) if uneven == "pad" else left // world


@dataclass(frozen=True, slots=True)
class Token:
    """A cursor with the stream's identity and the digest so far, as a trainer saves it.

    `rows` of the batch behind the cursor are done too, where a trainer takes batches in parts, and by each of the
    `world` ranks that it is one of.
    """

    stream: str
    order_id: str
    pixel_id: str
    cursor: Cursor
    digest: str
    samples: int = 0
    bad: int = 0
    version: int = 1
    rows: int = 0
    world: int = 1

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Token:
        """Reads what `to_json` wrote. Raises TokenError for anything else."""
        try:
            token = msgspec.json.decode(text, type=Token)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise TokenError(f"this is no streamd token: {error}") from error
        if token.version != 1:
            raise TokenError(f"a token of version {token.version}; this streamd reads version 1")
        if not DIGEST.fullmatch(token.digest):
            raise TokenError(f"this token is damaged: {token.digest[:40]!r} is no digest")
        return token


def read_token(text: str | bytes, spec: StreamSpec) -> Token:
    """A token for this stream. Raises TokenError when it belongs to another stream or order, or is damaged."""
    token = Token.from_json(text)
    if token.stream != spec.name:
        raise TokenError(f"this token is of stream {token.stream!r}, not {spec.name!r}")
    if token.order_id != spec.order_id:
        raise TokenError(
            f"stream {spec.name!r} has another order now (files, labels, batch_size, shuffle or seed differ): "
            f"the token was saved under {token.order_id[:12]}, {spec.order_id[:12]} is served"
        )
    check_cursor(token.cursor, spec.batches)
    if not 0 <= token.rows < spec.batch_size:
        raise TokenError(f"this token is damaged: {token.rows} rows of a batch of {spec.batch_size}")
    return token


def check_cursor(cursor: Cursor, batches: int = 1 << 40) -> None:
    """Raises TokenError unless the cursor could have come from a trainer of a stream of so many batches an epoch."""
    if not 0 <= cursor.epoch < 1 << 40 or len(cursor.history) > MAX_SEGMENTS:
        raise TokenError(f"a cursor at epoch {cursor.epoch} with {len(cursor.history)} segments is out of range")
    if not 0 <= cursor.begin < batches:
        raise TokenError(f"a cursor that begins at batch {cursor.begin} is out of range")
    base = cursor.begin
    for segment in cursor.history:
        sound = 0 <= segment.rank < segment.world < 1 << 20 and segment.steps > 0
        if not sound or segment.base != base or segment.end - segment.world >= batches:
            raise TokenError(f"the token's history does not add up at {segment}")
        base = segment.end


def identity(*parts: bytes | str | int) -> str:
    """A short digest over parts, each delimited by its length."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
