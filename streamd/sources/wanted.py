"""The seams of a source: what it is asked for and what it gives back.

What is asked for comes as structural types, so that no source knows the library that reads the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamd.spec import LabelSpec

Int64s = npt.NDArray[np.int64]
LabelValues = npt.NDArray[np.int64] | npt.NDArray[np.float32]


class WantedLabel(Protocol):
    """One configured label."""

    @property
    def type(self) -> str:
        """`category`, `int` or `float`."""

    @property
    def source(self) -> object:
        """The column it is taken from; None means the label's own name."""

    @property
    def classes(self) -> tuple[object, ...] | None:
        """The classes in their fixed order; None means that the data decide."""


class WantedSource(Protocol):
    """Where the samples are; `kind` says which of the protocols below it also fits."""

    @property
    def kind(self) -> str: ...


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


class WantedStream(Protocol):
    """One configured stream, as far as sources care."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> WantedSource: ...

    @property
    def labels(self) -> Mapping[str, WantedLabel]: ...


@dataclass(frozen=True, slots=True)
class Scanned:
    """The samples of one stream, as the disk showed them; position i everywhere is sample id i.

    `files` are relative to `root`, as the file system spells them. `sizes` (n,) int64 in bytes, `mtimes_ns` (n,) int64.
    `labels` hold one array (n,) each: int64 for category and int, float32 for float. `fixed` names the labels whose
    classes the configuration lists; their order is not ours to change.
    """

    root: Path
    files: list[bytes]
    sizes: Int64s
    mtimes_ns: Int64s
    labels: dict[str, LabelValues]
    specs: dict[str, LabelSpec]
    fixed: frozenset[str] = frozenset()
