"""Messages between check and its reading processes, as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from streamd.core.spec import StreamSpec
from streamd.ipc.worker_messages import TransformPlace

# The effect of a fault in a worker: a bad sample, a sample that a transform cannot use, another try, the end of the
# worker, or the end of the stream.
FaultEffect = Literal["verdict", "transform", "retry", "crash", "stop"]
# What is odd about a picture that is served: nothing of it is visible, it is all but black since it has few of its 16
# bits, or its EXIF data cannot be read, so that nothing says which way up it is.
PictureOddity = Literal["invisible", "dark", "unturned"]
# Faults that the daemon records as verdicts; their samples are substituted or masked.
RECORDED_EFFECTS: Final[frozenset[FaultEffect]] = frozenset({"verdict", "transform"})


@dataclass(frozen=True, slots=True)
class StreamToRead:
    """A stream to read. Groups refer to it by its position in the list that is sent first."""

    spec: StreamSpec
    manifest: str
    transform: TransformPlace | None = None


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples of one stream, to be read in this order. The class numbers of masks are counted for `counted` ids."""

    stream: int
    ids: list[int]
    counted: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A sample that cannot be made into an image, and the effect that it has in a worker.

    `of_this_host`: its file is missing here, forbidden, or not the listed one.
    """

    sample_id: int
    reason: str
    effect: FaultEffect
    of_this_host: bool = False


@dataclass(frozen=True, slots=True)
class OddBoxes:
    """What is odd about the boxes or points of a label, as `find_odd_rows` and `find_label_fits` name it.

    `counts` says how many there are of each kind, and `first` which sample is the first that has such.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def add_sample(self, sample_id: int, odd: Mapping[str, int]) -> OddBoxes:
        """Returns the sum of both."""
        there = {kind: count for kind, count in odd.items() if count}
        return self.add_odd_boxes(OddBoxes(there, dict.fromkeys(there, sample_id)))

    def add_odd_boxes(self, other: OddBoxes) -> OddBoxes:
        """Returns the sum of both."""
        first = {
            kind: min(each.first[kind] for each in (self, other) if kind in each.first)
            for kind in self.first | other.first
        }
        return OddBoxes(dict(Counter(self.counts) + Counter(other.counts)), first)


@dataclass(frozen=True, slots=True)
class SizeExample:
    """A sample in which an image has another size than its leader; sizes are (height, width) in pixels."""

    sample_id: int
    size: tuple[int, int]
    leader_size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class OddSizes:
    """The pictures of an image that have another size than its leader: `scaled` of the same proportions, `skewed` not.

    The examples are the first samples that have such.
    """

    scaled: int = 0
    skewed: int = 0
    scaled_example: SizeExample | None = None
    skewed_example: SizeExample | None = None

    def add_odd_sizes(self, other: OddSizes) -> OddSizes:
        """Returns the sum of both."""
        return OddSizes(
            self.scaled + other.scaled,
            self.skewed + other.skewed,
            _choose_first_example(self.scaled_example, other.scaled_example),
            _choose_first_example(self.skewed_example, other.skewed_example),
        )


def _choose_first_example(one: SizeExample | None, other: SizeExample | None) -> SizeExample | None:
    found = [each for each in (one, other) if each is not None]
    return min(found, key=lambda each: each.sample_id, default=None)


@dataclass(frozen=True, slots=True)
class ClassPixels:
    """The number of pixels of each class number in `masks` masks, as their files hold them."""

    masks: int = 0
    pixels: dict[int, int] = field(default_factory=dict)

    def add_class_pixels(self, other: ClassPixels) -> ClassPixels:
        """Returns the sum of both."""
        return ClassPixels(self.masks + other.masks, dict(Counter(self.pixels) + Counter(other.pixels)))


@dataclass(slots=True)
class GroupResult:
    """The result of reading a group. Times are in seconds.

    formats: the number of images by the format of their files; none for rows of arrays.
    sizes: the number of images by upright size, "heightxwidth".
    digests: hexadecimal, of all samples without a fault, in the group's order.
    enlarged: the number of images with fewer pixels than the stream's size requires.
    transparent: the number of images with an alpha channel or a transparent colour.
    odd_pictures: the samples with pictures that are served, and seldom meant so.
    odd_boxes: by label, boxes and points that cannot be right.
    odd_sizes: by image, pictures whose size is not that of the picture that they belong to.
    class_pixels: by image, the class numbers of the masks that were counted.
    pixel_id: the identity of the pixels that the process makes of the stream's samples.
    unpacked, unpack_s: the number of an array's chunks that were decompressed, and the part of `read_s` that it took.
    """

    stream: int
    ids: list[int]
    read_s: float = 0.0
    decode_s: float = 0.0
    formats: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    enlarged: int = 0
    digests: list[str] = field(default_factory=list)
    faults: list[SampleFault] = field(default_factory=list)
    unpacked: int = 0
    unpack_s: float = 0.0
    transparent: int = 0
    odd_pictures: dict[PictureOddity, list[int]] = field(default_factory=dict)
    odd_boxes: dict[str, OddBoxes] = field(default_factory=dict)
    odd_sizes: dict[str, OddSizes] = field(default_factory=dict)
    class_pixels: dict[str, ClassPixels] = field(default_factory=dict)
    pixel_id: str = ""
