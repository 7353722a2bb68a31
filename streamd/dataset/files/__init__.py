"""Images in files of their own: listed from a `folder`, a `table` or a `filelist`.

`lookup` finds the files that a table or a list names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, EncodingKey, PartKey, Scalar, find_encoding_mistakes

DecimalKey = Annotated[
    Literal[".", ","] | None,
    "The decimal mark of numbers in text. By default, a point is one, and so is a comma where it separates neither "
    "cells nor two numbers; what could be either is refused.",
]


@dataclass(frozen=True)
class FolderSource(DataSource):
    """Images in one sub-folder per class, or without sub-folders and labels."""

    has_own_images: ClassVar[bool] = True

    kind: Literal["folder"] = field(default="folder", init=False)
    path: Annotated[Path, "The folder."]
    part: PartKey = None

    @property
    def label_files(self) -> tuple[Path, ...]:
        """None, since the names of the sub-folders are the labels."""
        return ()


class _TextFileSource(DataSource):
    """A text file that names images below a `root`."""

    path: Path
    root: Path | None
    encoding: str | None

    def find_setting_mistakes(self) -> Iterator[tuple[str, str]]:
        """Yields `encoding` if Python knows no such encoding."""
        return find_encoding_mistakes(self.encoding)

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The file, and the folder of the images."""
        return (self.path,) if self.root is None else (self.path, self.root)


@dataclass(frozen=True)
class TableSource(_TextFileSource):
    """A CSV, TSV or Parquet file, one row per sample."""

    has_columns: ClassVar[bool] = True
    has_own_images: ClassVar[bool] = True

    kind: Literal["table"] = field(default="table", init=False)
    path: Annotated[Path, "The table: .csv, .tsv or .parquet."]
    image: Annotated[str | None, "The column of file names; left out where `images` names columns."] = None
    root: Annotated[Path | None, "The folder that file names are relative to; default: the table's folder."] = None
    where: Annotated[Mapping[str, Scalar] | None, "Keeps the rows whose columns have these values: {split: train}."] = (
        None
    )
    part: PartKey = None
    separator: Annotated[
        Literal[",", ";", "|", "tab"] | None,
        "What separates the cells of a text table; default: detected from the header and the first rows.",
    ] = field(default=None, repr=False)
    encoding: EncodingKey = field(default=None, repr=False)
    decimal: DecimalKey = field(default=None, repr=False)


@dataclass(frozen=True)
class FilelistSource(_TextFileSource):
    """A text file with one line `path label` per image."""

    kind: Literal["filelist"] = field(default="filelist", init=False)
    path: Annotated[Path, "The list."]
    root: Annotated[Path | None, "The folder that paths are relative to; default: the list's folder."] = None
    part: PartKey = None
    encoding: EncodingKey = field(default=None, repr=False)
    decimal: DecimalKey = field(default=None, repr=False)
