"""What a stream asks of its data: where the samples are, which labels they have, and which part of them it takes.

The configuration fills these; no format knows the library that reads it. A format declares a `DataSource` of its own
in its folder's `__init__`, and each field says beside its type what a user should know of the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from streamd.errors import suggest_name

Scalar = str | int | float | bool
Part = Literal["train", "validation", "all"]

IS_PATTERN: Final = object()  # marks a path that may have the wildcards * ? and []

FilePattern = Annotated[str, IS_PATTERN]
PartKey = Annotated[Part | None, "Which side of the split: train, validation or all."]
RangeKey = Annotated[
    tuple[float, float] | None,
    "The numbers that become 0 and 255, such as [0, 1]; needed for all but uint8. What lies beyond is cut off.",
]

EncodingKey = Annotated[
    str | None,
    "The encoding of the text, such as cp1252; without it UTF-8, or what a byte order mark at its beginning says.",
]
_ENCODINGS: Final = ("utf-8", "utf-16", "cp1252", "latin-1", "cp1250", "cp1251", "cp932", "gbk", "big5", "euc-kr")


def find_encoding_mistakes(encoding: str | None) -> Iterator[tuple[str, str]]:
    """The key and a sentence where `encoding` is none that Python knows."""
    try:
        b"  ".decode(encoding or "utf-8", "replace")  # of nothing, nobody would look the encoding up
    except (LookupError, ValueError):
        near = suggest_name(str(encoding), _ENCODINGS)
        yield "encoding", f"found {encoding!r}; use an encoding of text that Python knows, such as cp1252{near}"


class DataSource:
    """Where the samples of a stream are: a frozen dataclass for each `kind`, whose docstring users read.

    `part` None means all samples. The class variables say what is true of every source of the kind.
    """

    kind: str
    path: Path | str
    part: Part | None

    is_encoded: ClassVar[bool] = True
    """Samples are encoded images of any size, to be decoded; else they are rows of arrays, served as they are."""
    is_chunked: ClassVar[bool] = False
    """What lies together is read together, so an epoch mixes chunks unless the configuration says otherwise."""
    has_columns: ClassVar[bool] = False
    """Labels are columns or arrays of their own, and there are none but those that are configured."""
    has_fields: ClassVar[bool] = False
    """Weights may stand beside each image, as labels do."""

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The files and folders that it names, patterns as they are written."""
        return (Path(self.path),)

    @property
    def label_files(self) -> tuple[Path, ...]:
        """The files that labels are taken from."""
        return (Path(self.path),)

    def find_setting_mistakes(self) -> Iterator[tuple[str, str]]:
        """Keys that do not go together: each key, and a sentence that says why."""
        return iter(())

    def copy_without_part(self) -> Self:
        """The same source, whatever part of it a stream takes."""
        whole: Self = replace(cast("Any", self), part=None)
        return whole


@dataclass(frozen=True, slots=True)
class LabelSource:
    """Where one label is, or the weights; without arguments the one that classes of a folder or a list make.

    `type` is `category`, `int`, `float`, `string`, `tags`, or `weight` for weights. `source` is the column or columns
    it is taken from; None means the label's own name. `file` is the .npy file it is taken from, if it is from one.
    `classes` have a fixed order; None means that the data decide.
    """

    type: str = "category"
    source: object = None
    file: Path | None = None
    classes: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a source is split in two: the fraction `validation`, above 0, is held back.

    Samples with equal values in the column `by` stay together; None splits by file name.
    """

    validation: float = 0.2
    seed: int = 0
    by: str | None = None


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """The samples that a stream wants listed.

    `labels` None: those that the source has by itself; empty: none at all. `weights` None: all samples weigh 1.
    """

    name: str
    source: DataSource
    split: SplitRule | None = None
    labels: Mapping[str, LabelSource] | None = None
    weights: LabelSource | None = None
