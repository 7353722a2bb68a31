"""Images that are rows of arrays: `npy_scan` lists them, also further images of a sample in .npy files.

The folder also holds what all stores of rows share: which numbers are `pixels`; and in `store` what any store does,
requests to the disk before rows are needed, the base class that checks for changed files, and the conversion of other
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, FilePattern, PartKey, RangeKey, Scalar


@dataclass(frozen=True)
class NpySource(DataSource):
    """Memory-mapped pixels in .npy files, with labels from `table` or from other .npy files."""

    is_encoded: ClassVar[bool] = False
    has_columns: ClassVar[bool] = True
    has_own_images: ClassVar[bool] = True

    kind: Literal["npy"] = field(default="npy", init=False)
    path: Annotated[
        FilePattern,
        "A .npy file of images (channels last or first), a folder of such files, or a pattern such as pixels/*.npy.",
    ]
    range: RangeKey = None
    table: Annotated[
        Path | None, "The table of labels (.csv, .tsv or .parquet), one row per image, in the order of the images."
    ] = None
    where: Annotated[
        Mapping[str, Scalar] | None, "Keeps the rows whose columns in the table have these values: {split: train}."
    ] = None
    part: PartKey = None
    names: Annotated[
        str | None,
        "The column of `table` that holds the name of each image; default: the names that `streamd pack` saved.",
    ] = field(default=None, repr=False)

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The path of the arrays, and the table of labels."""
        return (Path(self.path), *self.label_files)

    @property
    def label_files(self) -> tuple[Path, ...]:
        """The table of labels, if there is one. Arrays of labels are named in the labels themselves."""
        return () if self.table is None else (self.table,)

    def find_setting_mistakes(self) -> Iterator[tuple[str, str]]:
        """Yields `names` and `where` if there is no table, since both refer to its columns."""
        if self.names and self.table is None:
            yield "names", "is a column, but the source has no table; add table: FILE, or remove names:"
        if self.where and self.table is None:
            yield "where", "asks for columns, but the source has no table; add table: FILE, or remove where:"
