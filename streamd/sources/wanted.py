"""The seams of a source: what it is asked for and what it gives back.

What is asked for comes as structural types, so that no source knows the library that reads the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamd.spec import LabelSpec

Scalar = str | int | float | bool
Int64s = npt.NDArray[np.int64]
LabelValues = npt.NDArray[np.int64] | npt.NDArray[np.float32] | npt.NDArray[np.uint8] | npt.NDArray[np.bytes_]
Place = Callable[[int], str]  # a row's number -> where a person finds it, such as "labels.csv, line 7"


class WantedLabel(Protocol):
    """One configured label."""

    @property
    def type(self) -> str:
        """`category`, `int`, `float`, `string` or `tags`."""

    @property
    def source(self) -> object:
        """The column or columns it is taken from; None means the label's own name."""

    @property
    def classes(self) -> tuple[object, ...] | None:
        """The classes in their fixed order; None means that the data decide."""


@dataclass(frozen=True, slots=True)
class DefaultLabel:
    """What folders and lists that name classes have where no label is configured: `label`, a category."""

    type: str = "category"
    source: object = None
    classes: tuple[object, ...] | None = None


class WantedSource(Protocol):
    """Where the samples are; `kind` says which of the protocols below it also fits."""

    @property
    def kind(self) -> str: ...

    @property
    def part(self) -> str | None:
        """`train`, `validation` or `all`; None is all."""


class WantedFolder(WantedSource, Protocol):
    """`kind: folder`."""

    @property
    def path(self) -> Path: ...


class WantedTable(WantedSource, Protocol):
    """`kind: table`."""

    @property
    def path(self) -> Path: ...

    @property
    def image(self) -> str:
        """The column that holds file names."""

    @property
    def root(self) -> Path | None:
        """What file names are relative to; None means the table's own folder."""

    @property
    def where(self) -> Mapping[str, Scalar] | None:
        """The values that columns must have in the rows that are taken; None takes all rows."""


class WantedFilelist(WantedSource, Protocol):
    """`kind: filelist`."""

    @property
    def path(self) -> Path: ...

    @property
    def root(self) -> Path | None:
        """What file names are relative to; None means the list's own folder."""


class WantedSplit(Protocol):
    """How a source is split in two."""

    @property
    def validation(self) -> float:
        """The fraction held back, above 0."""

    @property
    def seed(self) -> int: ...

    @property
    def by(self) -> str | None:
        """The column whose equal values stay together; None splits by file name."""


class WantedStream(Protocol):
    """One configured stream, as far as sources care."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> WantedSource: ...

    @property
    def split(self) -> WantedSplit | None: ...

    @property
    def labels(self) -> Mapping[str, WantedLabel] | None:
        """None: those that the source has by itself; empty: none at all."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The samples of one stream, as the disk showed them; position i everywhere is sample id i.

    `files` are relative to `root`, as the file system spells them. `sizes` (n,) int64 in bytes, `mtimes_ns` (n,) int64.
    `labels` hold one array each: int64 for category and int, float32 for float, (n,) or (n, k); UTF-8 bytes of fixed
    width for string, (n,); packed bits for tags, see `tags`. `fixed` names the labels whose classes the configuration
    lists; their order is not ours to change. `groups` (n) is what the split goes by where that is not the file name.
    """

    root: Path
    files: list[bytes]
    sizes: Int64s
    mtimes_ns: Int64s
    labels: dict[str, LabelValues]
    specs: dict[str, LabelSpec]
    fixed: frozenset[str] = frozenset()
    groups: list[bytes] | None = None
