"""A stream's specification, and positions in a stream. Plain values, shared by daemon, workers and clients."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, NewType

import msgspec

from streamd.core.text import format_count

OrderId = NewType("OrderId", str)
PixelId = NewType("PixelId", str)

LabelType = Literal["category", "int", "float", "string", "tags", "boxes", "points"]
BoxUnit = Literal["pixel", "fraction"]  # of the numbers in the data; fractions are of the picture's width and height
Shuffle = Literal["full", "none", "chunk"]
RemainderPolicy = Literal["keep", "drop", "pad"]  # of the last batch; the configuration's false, true, pad
BadPolicy = Literal["substitute", "mask", "fail"]
Resize = Literal["stretch", "crop", "pad", "random_crop"]
UnevenPolicy = Literal["drop", "pad"]
ImageMode = Literal["RGB", "L", "RGBA", "index", "raw"]
PixelType = Literal["uint8", "uint16", "float32"]
ImageShape = tuple[int, ...]  # (height, width, channels); (height, width) in mode index; views or frames stand before

ONLY_IMAGE: Final = "image"  # the name of the image of a stream that is configured by `image`

_DROPPED: Final[Mapping[RemainderPolicy, str]] = {
    "keep": "false",
    "drop": "true",
    "pad": "pad",
}  # as the configuration writes it
_PIXEL_BYTES: Final[Mapping[PixelType, int]] = {"uint8": 1, "uint16": 2, "float32": 4}
_FIRST_IMAGE_SETTINGS: Final = ("height", "width", "channels", "resize", "exact", "scale", "ratio")
# Later settings that determine pixels, with the values that say nothing new: the channels tell RGB from L.
_LATER_IMAGE_SETTINGS: Final[Mapping[str, tuple[object, ...]]] = {
    "mode": ("RGB", "L"),
    "dtype": ("uint8",),
    "like": (None,),
    "fill": (0,),
    "views": (0,),
    "frames": (0,),
}
DIGEST_PATTERN: Final = re.compile(r"[0-9a-f]{32}")  # an order digest as text: two lanes of sixteen digits


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """One label of every sample. `width` is 0 for shape (B,), k for (B, k); tags have a column for each class.

    Category and tags have `classes`, and `counts`, the samples of each class. Int and float have `mean` and `std`, over
    all samples and all k numbers of a vector. `text_bytes` is the length of the longest string in UTF-8.

    Boxes have shape (B, rows, 5): left, top, right, bottom, in pixels of the delivered image, and the class. Points
    have shape (B, rows, 2). Both are -1 where there is no box or point. `rows` is the configuration's `max`. `image`
    names the image that they follow; empty means the first one. `unit` is that of the data. A box of which less than
    `min_visible` is left, as a part of its area, is not delivered. Boxes with named classes have `classes`, and in
    `counts` the boxes of each.
    """

    name: str
    type: LabelType
    width: int = 0
    classes: tuple[int | str, ...] = ()
    counts: tuple[int, ...] = ()
    mean: float | None = None
    std: float | None = None
    text_bytes: int = 0
    rows: int = 0
    image: str = ""
    unit: BoxUnit = "pixel"
    min_visible: float = 0.0

    @property
    def dtype(self) -> str:
        """The NumPy dtype in a slot: int64 for category and int, UTF-8 bytes for string, float32 for all others."""
        if self.type == "string":
            return f"S{max(self.text_bytes, 1)}"
        return "int64" if self.type in {"category", "int"} else "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's value: (), (k,), or (rows, 5) and (rows, 2) for boxes and points."""
        if self.rows:
            return (self.rows, self.width)
        return (self.width,) if self.width else ()

    @property
    def is_ragged(self) -> bool:
        """Whether samples have any number of boxes or points, of which the data hold only those that are there."""
        return self.type in {"boxes", "points"}

    @property
    def blank_value(self) -> int:
        """The number in rows without a sample."""
        return -1 if self.is_ragged else 0


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The form of one image of every sample. `height` and `width` are in pixels; `channels` is 3 for RGB, 1 for L.

    `mode` index holds class numbers as files store them, and raw holds numbers of any meaning. `like` names the image
    whose geometry this one follows. `fill` is what padding and masked rows hold. `normalize` is what models apply; in
    mode raw, `range` has the two numbers that `unit` maps to 0 and 1.

    For random crops, `scale` bounds the part of the picture's area, and `ratio` the width divided by the height.

    `views` is the number of geometries in which each picture is shown, and `frames` the number of pictures of a clip,
    which have one geometry. Either is 0 where the image has no such axis, and an image has one of them at most.
    """

    height: int
    width: int
    channels: int
    resize: Resize = "stretch"
    exact: bool = False
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    mode: ImageMode = "RGB"
    dtype: PixelType = "uint8"
    like: str | None = None
    fill: int = 0
    # A mapping cannot be hashed, and geometries are kept by their image.
    normalize: str | Mapping[str, list[float]] = field(default="none", hash=False)
    range: tuple[float, float] | None = None
    views: int = 0
    frames: int = 0

    def __post_init__(self) -> None:
        """Makes L of an image of one channel whose mode is left out."""
        if self.mode == "RGB" and self.channels == 1:
            object.__setattr__(self, "mode", "L")

    @property
    def picture_shape(self) -> ImageShape:
        """(height, width, channels) of one picture; (height, width) in mode index."""
        return (self.height, self.width) if self.mode == "index" else (self.height, self.width, self.channels)

    @property
    def pictures(self) -> int:
        """The number of views or frames; 0 for an image that is one picture, without an axis for several."""
        return self.views or self.frames

    @property
    def shape(self) -> ImageShape:
        """`picture_shape`; the number of views or frames stands before it, if there are any."""
        return (self.pictures, *self.picture_shape) if self.pictures else self.picture_shape

    @property
    def row_bytes(self) -> int:
        return max(1, self.pictures) * self.height * self.width * self.channels * _PIXEL_BYTES[self.dtype]

    def describe_pixels(self, *, leave_out: Container[str] = ()) -> str:
        """Returns the settings that determine pixels, as text for digests.

        Settings that were added later count only where they are given, so that the digests of earlier versions stay
        valid.
        """
        first = [name for name in _FIRST_IMAGE_SETTINGS if name not in leave_out]
        given = [name for name in _LATER_IMAGE_SETTINGS if getattr(self, name) not in _LATER_IMAGE_SETTINGS[name]]
        return f"ImageSpec({', '.join(f'{name}={getattr(self, name)!r}' for name in [*first, *given])})"


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """The facts from which an order_id is made. They travel with it, so that an error can say what differs."""

    samples: int
    content_id: str
    batch_size: int
    remainder: RemainderPolicy
    shuffle: Shuffle
    seed: int
    chunk: int = 0  # in samples; chunk and buffer are 0 unless shuffle is chunk
    buffer: int = 0  # in chunks

    def describe_difference(self, now: OrderFacts) -> str:
        """Returns how these facts differ from those of `now`, in the words of the configuration."""
        settings = [
            ("batch_size", self.batch_size, now.batch_size),
            ("drop_remainder", _DROPPED[self.remainder], _DROPPED[now.remainder]),
            ("shuffle.kind", self.shuffle, now.shuffle),
            ("shuffle.seed", self.seed, now.seed),
        ]
        if self.shuffle == now.shuffle:
            settings += [("shuffle.chunk", self.chunk, now.chunk), ("shuffle.buffer", self.buffer, now.buffer)]
        parts = [f"{key} was {before} and is {after}" for key, before, after in settings if before != after]
        if (self.content_id, self.samples) != (now.content_id, now.samples):
            parts.append(
                f"the files or labels differ: {format_count(self.samples, 'sample')} then, {now.samples:,} now"
            )
        return "; ".join(parts) or "another version of streamd made it"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Everything that a trainer may know about a stream before its first batch.

    `images` has the images of each sample, of which the first is `batch.images`; a stream with one image calls it
    `image`. `content_id` is the digest of the names, sizes, labels and weights of all samples. `chunk`, in samples, and
    `buffer`, in chunks, are 0 unless `shuffle` is chunk. `weighted`: samples have weights of their own.
    """

    name: str
    samples: int
    batch_size: int
    batches: int
    images: Mapping[str, ImageSpec]
    labels: Mapping[str, LabelSpec]
    normalize: str | Mapping[str, list[float]]
    shuffle: Shuffle
    seed: int
    remainder: RemainderPolicy
    bad_policy: BadPolicy
    order_id: OrderId
    pixel_id: PixelId
    content_id: str = ""
    chunk: int = 0
    buffer: int = 0
    weighted: bool = False

    @property
    def order_facts(self) -> OrderFacts:
        """The facts from which `order_id` is made."""
        settings = self.batch_size, self.remainder, self.shuffle, self.seed, self.chunk, self.buffer
        return OrderFacts(self.samples, self.content_id, *settings)

    def differing_fields(self, now: StreamSpec) -> list[str]:
        """Returns the names of the fields that differ `now`, except `pixel_id`, whose change a receipt records."""
        names = [each.name for each in fields(self) if each.name != "pixel_id"]
        # Compared as text, since a mean may be NaN, which does not equal itself.
        return [name for name in names if repr(getattr(self, name)) != repr(getattr(now, name))]

    @property
    def image(self) -> ImageSpec:
        """The first image of every sample."""
        return next(iter(self.images.values()))

    @property
    def image_shape(self) -> ImageShape:
        """The shape of the first image: (height, width, channels), unless it is class numbers, views or frames."""
        return self.image.shape

    @property
    def sample_bytes(self) -> int:
        """The bytes of all images of one sample."""
        return sum(image.row_bytes for image in self.images.values())

    def batch_rows(self, index: int) -> int:
        """Returns the rows of batch `index`. Those beyond the last, for `uneven="pad"`, are whole and have weight 0."""
        last_is_short = self.remainder == "keep" and index == self.batches - 1
        return self.samples - index * self.batch_size if last_is_short else self.batch_size


class BatchKey(msgspec.Struct, frozen=True, gc=False):
    """The identity of a batch. Its bytes are a function of this key and of the recorded verdicts.

    It is made and hashed in C, since every batch takes a dozen look-ups.
    """

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
    def next_base_index(self) -> int:
        """The base of the segment that follows."""
        return self.base + self.steps * self.world


@dataclass(frozen=True, slots=True)
class Cursor:
    """A session's position: in `epoch`, after the steps of `history`.

    `begin` is the batch at which its first step began: 0, except for a session that joined others within an epoch.
    """

    epoch: int = 0
    history: tuple[Segment, ...] = ()
    begin: int = 0

    @property
    def next_base_index(self) -> int:
        return self.history[-1].next_base_index if self.history else self.begin

    def after_step(self, rank: int, world: int) -> Cursor:
        """Returns the cursor after one more step of (rank, world)."""
        if self.history:
            last = self.history[-1]
            if (last.rank, last.world) == (rank, world):
                longer = Segment(last.base, last.steps + 1, rank, world)
                return Cursor(self.epoch, (*self.history[:-1], longer), self.begin)
        return Cursor(self.epoch, (*self.history, Segment(self.next_base_index, 1, rank, world)), self.begin)

    def at_next_epoch(self) -> Cursor:
        return Cursor(self.epoch + 1)


def count_steps_left(base: int, world: int, batches: int, uneven: UnevenPolicy) -> int:
    """Returns the steps that remain of an epoch of `batches` if the next one begins at `base`."""
    left = max(0, batches - base)
    return -(-left // world) if uneven == "pad" else left // world


def compute_identity(*parts: bytes | str | int) -> str:
    """Returns a short digest over parts, each preceded by its length."""
    digest = IdentityDigest()
    for part in parts:
        digest.add_part(part)
    return digest.hex_text()


class IdentityDigest:
    """Computes what `compute_identity` returns, from parts that are added one by one."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)

    def add_part(self, part: bytes | str | int) -> None:
        data = part if isinstance(part, bytes) else str(part).encode()
        self.add_part_in_pieces(len(data), [data])

    def add_part_in_pieces(self, part_bytes: int, pieces: Iterable[bytes | memoryview]) -> None:
        """Adds one part of `part_bytes` bytes in pieces, so that it need not be in memory as a whole."""
        self._digest.update(part_bytes.to_bytes(8, "little"))
        for piece in pieces:
            self._digest.update(piece)

    def hex_text(self) -> str:
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The facts about a stream that the scheduler needs; `tasks` is the number of worker tasks of one batch."""

    name: str
    batches: int
    slot_bytes: int
    tasks: int


# --- The batches of one rank of a stream, step by step and epoch by epoch. Scheduler and client share this arithmetic.


class StepPosition(msgspec.Struct, frozen=True, gc=False):
    """A rank's position: step `step` of the `steps` from `base` on in `epoch`; at the epoch's end they are equal."""

    epoch: int
    base: int
    step: int
    steps: int

    @property
    def is_at_epoch_end(self) -> bool:
        return self.step >= self.steps


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of rank `rank` of `world`: in step k it takes batch base + k * world + rank.

    An epoch has `batches` batches. `epochs` is the number of epochs in total, None without end.
    """

    batches: int
    rank: int
    world: int
    uneven: UnevenPolicy
    epochs: int | None

    def step_after(self, cursor: Cursor) -> StepPosition:
        """Returns the first step after the cursor's history."""
        return StepPosition(
            cursor.epoch,
            cursor.next_base_index,
            0,
            count_steps_left(cursor.next_base_index, self.world, self.batches, self.uneven),
        )

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of a whole epoch."""
        return count_steps_left(0, self.world, self.batches, self.uneven)

    def batch_index(self, step: StepPosition) -> int:
        return step.base + step.step * self.world + self.rank

    def start_of_next_epoch(self, step: StepPosition) -> StepPosition:
        return StepPosition(step.epoch + 1, 0, 0, self.steps_per_epoch)

    def next_step(self, step: StepPosition) -> StepPosition:
        """Returns the next step, the first of the next epoch at an epoch's end; it may lie beyond the last epoch."""
        after = StepPosition(step.epoch, step.base, step.step + 1, step.steps)
        return self.start_of_next_epoch(after) if after.is_at_epoch_end else after

    def iterate_batches(self, cursor: Cursor) -> Iterator[tuple[int, int]]:
        """Yields (epoch, index) of every batch from the cursor on, in order."""
        step = self.step_after(cursor)
        # A world that is larger than the epoch has no steps at all. Without this test it would go through empty epochs
        # for ever.
        while not self.is_beyond_end(step) and (self.steps_per_epoch or not step.is_at_epoch_end):
            for number in range(step.step, step.steps):
                yield step.epoch, step.base + number * self.world + self.rank
            step = self.start_of_next_epoch(step)

    def is_beyond_end(self, step: StepPosition) -> bool:
        return self.epochs is not None and step.epoch >= self.epochs

    def count_steps_to(self, here: StepPosition, epoch: int, index: int) -> int | None:
        """Returns the steps from `here` to batch epoch:index; None if it is behind, past the end, or another rank's."""
        if epoch < here.epoch or (self.epochs is not None and epoch >= self.epochs):
            return None
        # In step k a rank takes batch base + k * world + rank, so the index gives the step, and a remainder shows that
        # the batch is another rank's. Only the present epoch may begin at another base than 0.
        same = epoch == here.epoch
        step, other = divmod(index - (here.base if same else 0) - self.rank, self.world)
        if other or not (here.step if same else 0) <= step < (here.steps if same else self.steps_per_epoch):
            return None
        if same:
            return step - here.step
        return (here.steps - here.step) + (epoch - here.epoch - 1) * self.steps_per_epoch + step


def count_own_steps(step: int, steps: int, batch_size: int, own_size: int, own_steps: int) -> int:
    """Returns the steps of `own_size` rows that a trainer has done after `step` of an epoch's `steps` batches."""
    return own_steps if step >= steps else min(own_steps, step * batch_size // own_size)
