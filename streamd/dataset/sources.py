"""The settings of a stream's data: where the samples are, which labels they have, and which part the stream takes.

The configuration fills these in; no format depends on the library that parses it. Each format declares its own
`DataSource` in the `__init__` of its folder, and each field has the user's description of its key beside its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from streamd.core.spec import BoxUnit
from streamd.errors import suggest_name

Scalar = str | int | float | bool
Part = Literal["train", "validation", "all"]
BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
FrameEdge = Literal["repeat", "drop"]

IS_PATTERN: Final = object()  # marks a path that may have the wildcards * ? and []

FilePattern = Annotated[str, IS_PATTERN]
PartKey = Annotated[Part | None, "Which part of the split to take: train, validation or all."]
RangeKey = Annotated[
    tuple[float, float] | None,
    "The numbers that become 0 and 255, such as [0, 1]; needed for all types but uint8. Values outside are clipped.",
]

EncodingKey = Annotated[
    str | None,
    "The encoding of the text, such as cp1252. The default is UTF-8, or the encoding that a byte order mark in the "
    "file gives.",
]
_ENCODINGS: Final = ("utf-8", "utf-16", "cp1252", "latin-1", "cp1250", "cp1251", "cp932", "gbk", "big5", "euc-kr")


def find_encoding_mistakes(encoding: str | None) -> Iterator[tuple[str, str]]:
    """Yields the key and a sentence if Python does not know `encoding`."""
    try:
        b"  ".decode(encoding or "utf-8", "replace")  # for empty bytes Python would not look the encoding up
    except (LookupError, ValueError):
        near = suggest_name(str(encoding), _ENCODINGS)
        yield "encoding", f"found {encoding!r}; use a text encoding that Python knows, such as cp1252{near}"


class DataSource:
    """Where the samples of a stream are: a frozen dataclass for each `kind`, whose docstring users read.

    `part` None means all samples. The class variables describe every source of the kind.
    """

    kind: str
    path: Path | str
    part: str | None

    is_encoded: ClassVar[bool] = True
    """Samples are encoded images of any size, to be decoded; otherwise they are rows of arrays."""
    is_chunked: ClassVar[bool] = False
    """Neighbouring samples are read together, so an epoch is shuffled in chunks unless configured otherwise."""
    has_columns: ClassVar[bool] = False
    """Labels are columns or arrays of their own, and only configured ones exist."""
    has_own_boxes: ClassVar[bool] = False
    """Boxes come with a format, a unit and classes of their own, which the configuration cannot choose."""
    has_own_parts: ClassVar[bool] = False
    """Its parts are listed in the data, so that there is nothing to split."""
    has_own_images: ClassVar[bool] = False
    """The function that lists the samples also takes the images of a sample: columns, suffixes, or which files to leave
    out."""
    has_fields: ClassVar[bool] = False
    """Weights may stand beside each image, as labels do."""

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The files and folders of the source, patterns as they are written."""
        return (Path(self.path),)

    @property
    def label_files(self) -> tuple[Path, ...]:
        """The files that labels are taken from."""
        return (Path(self.path),)

    def find_setting_mistakes(self) -> Iterator[tuple[str, str]]:
        """Yields keys that do not go together, each with a sentence that says why."""
        return iter(())

    def copy_without_part(self) -> Self:
        """Returns the same source for all parts."""
        whole: Self = replace(cast("Any", self), part=None)
        return whole


@dataclass(frozen=True, slots=True)
class BoxRule:
    """How boxes or points stand in the data, and which of them a batch carries: at most `most` a sample.

    `format` is of boxes: left, top, right and bottom, or left and top or the centre with width and height. `image` is
    the image that they follow, empty for the first one. A box of which less than `min_visible` is left, as a part of
    its area, is not delivered. `has_own_form`: the source prescribes format and unit.
    """

    most: int
    format: BoxFormat = "xyxy"
    unit: BoxUnit = "pixel"
    min_visible: float = 0.0
    image: str = ""
    has_own_form: bool = False


@dataclass(frozen=True, slots=True)
class LabelSource:
    """Where one label comes from, or the weights.

    Without arguments: the label made of the classes of a folder or a list.

    `type` is `category`, `int`, `float`, `string`, `tags`, `boxes`, `points`, or `weight` for weights. `source` has the
    column or columns; None means the label's own name. `file` is the .npy file that holds the label, if one does.
    `classes` are in a fixed order; None means that the data decide. Boxes and points have a `boxes` rule.
    """

    type: str = "category"
    source: str | tuple[str, ...] | None = None
    file: Path | None = None
    classes: tuple[object, ...] | None = None
    boxes: BoxRule | None = None

    def list_columns(self, label: str) -> tuple[str, ...]:
        """Returns the columns, arrays or suffixes that `label` is made of: its own name unless others are given."""
        return self.source if isinstance(self.source, tuple) else (label if self.source is None else self.source,)


@dataclass(frozen=True, slots=True)
class RawNumbers:
    """What a stream in mode raw expects of arrays: their channels, and the name of their dtype."""

    channels: int
    dtype: str


@dataclass(frozen=True, slots=True)
class ClassNumbers:
    """What a stream in mode index expects of arrays: one whole number a pixel, of any type."""


ArrayForm = RawNumbers | ClassNumbers  # of arrays whose numbers are no pixels of 8 bits


@dataclass(frozen=True, slots=True)
class FrameRule:
    """Which rows of a table make the clip of a sample.

    Rows with equal values in the column `by` are a sequence, sorted by the column `order`. Each of `offsets` is a
    distance in it from the sample's own row, one frame each. Beyond an end of the sequence, `edge` repeat takes the
    nearest row, and drop leaves the sample out.
    """

    by: str
    order: str
    offsets: tuple[int, ...]
    edge: FrameEdge = "repeat"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where one image of every sample lies.

    `place` None means the picture that the source gives each sample; otherwise it is a column or a suffix, or a
    pattern of file names. File names are relative to `root`; None means the root of the source. Of arrays, it is the
    name of an array, or the path of .npy files; `form` is what they must hold, None for pixels of 8 bits. With a rule
    for `frames`, the image is a clip of several rows' pictures.
    """

    place: str | None
    root: Path | None = None
    is_pattern: bool = False
    # Lists that were made before these keys existed stay valid.
    form: ArrayForm | None = field(default=None, repr=False)
    frames: FrameRule | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a source is split in two: the fraction `validation`, above 0, is held out.

    Samples with equal values in the column `by` stay together; None splits by file name.
    """

    validation: float = 0.2
    seed: int = 0
    by: str | None = None


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """A request to list the samples of a stream.

    `labels` None means those that the source has by itself; empty means none at all. `weights` None means that all
    samples weigh 1. `images` None means one image a sample, which the source has by itself. `raw` None means that
    the arrays of this image are served as pixels of 8 bits.
    """

    name: str
    source: DataSource
    split: SplitRule | None = None
    labels: Mapping[str, LabelSource] | None = None
    weights: LabelSource | None = None
    images: Mapping[str, ImageSource] | None = None
    raw: ArrayForm | None = None


def build_images_key(stream: str, image: str) -> str:
    """Returns the configuration key that says where an image lies."""
    return f"streams.{stream}.images.{image}.from"
