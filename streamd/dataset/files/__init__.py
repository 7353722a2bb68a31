"""Images in files of their own: listed from a `folder`, a `table` or a `filelist`.

`lookup` finds the files that a table or a list names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, EncodingKey, PartKey, Scalar, find_encoding_mistakes


@dataclass(frozen=True)
class FolderSource(DataSource):
    """Images in one sub-folder a class, or flat without labels."""

    kind: Literal["folder"] = field(default="folder", init=False)
    path: Annotated[Path, "The folder."]
    part: PartKey = None

    @property
    def label_files(self) -> tuple[Path, ...]:
        """None, since the names of the sub-folders are the labels."""
        return ()


@dataclass(frozen=True)
class TableSource(DataSource):
    """A CSV, TSV or Parquet file, one row per sample."""

    has_columns: ClassVar[bool] = True

    kind: Literal["table"] = field(default="table", init=False)
    path: Annotated[Path, "The table: .csv, .tsv or .parquet."]
    image: Annotated[str, "The column of file names."]
    root: Annotated[Path | None, "The folder that file names are relative to; without it the table's own."] = None
    where: Annotated[Mapping[str, Scalar] | None, "Keeps the rows whose columns have these values: {split: train}."] = (
        None
    )
    part: PartKey = None
    separator: Annotated[
        Literal[",", ";", "|", "tab"] | None,
        "What separates the cells of a text table; without it what its header and its first rows show.",
    ] = field(default=None, repr=False)
    encoding: EncodingKey = field(default=None, repr=False)
    decimal: Annotated[
        Literal[".", ","] | None,
        "What stands before the digits of a fraction in a text table; without it a comma where cells are separated by "
        "something else, and the point in any case.",
    ] = field(default=None, repr=False)

    @property
    def separator_mark(self) -> str | None:
        """The separator as it is written in the file."""
        return "\t" if self.separator == "tab" else self.separator

    def find_setting_mistakes(self) -> Iterator[tuple[str, str]]:
        """Yields `encoding` if Python knows no such encoding."""
        return find_encoding_mistakes(self.encoding)

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The table, and the folder of the images."""
        return (self.path,) if self.root is None else (self.path, self.root)


@dataclass(frozen=True)
class FilelistSource(DataSource):
    """A text file with lines `path label`."""

    kind: Literal["filelist"] = field(default="filelist", init=False)
    path: Annotated[Path, "The list."]
    root: Annotated[Path | None, "The folder that paths are relative to; without it the list's own."] = None
    part: PartKey = None
    encoding: EncodingKey = field(default=None, repr=False)

    def find_setting_mistakes(self) -> Iterator[tuple[str, str]]:
        """Yields `encoding` if Python knows no such encoding."""
        return find_encoding_mistakes(self.encoding)

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The list, and the folder of the images."""
        return (self.path,) if self.root is None else (self.path, self.root)
