"""Where a stream's samples come from: one model a kind, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from streamd.config.fields import DataGlob, DataPath, Model, Scalar, Text, refused

Part = Literal["train", "validation", "all"]


class FolderSource(Model):
    """Images in one sub-folder a class, or flat without labels."""

    kind: Literal["folder"]
    path: DataPath
    """The folder."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


class TableSource(Model):
    """A CSV, TSV or Parquet file, one row a sample."""

    kind: Literal["table"]
    path: DataPath
    """The table: .csv, .tsv or .parquet."""
    image: Text
    """The column of file names."""
    root: DataPath | None = None
    """The folder that file names are relative to; without it the table's own."""
    where: dict[str, Scalar] | None = None
    """Keeps the rows whose columns have these values: {split: train}."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


class FilelistSource(Model):
    """A text file with lines `path label`."""

    kind: Literal["filelist"]
    path: DataPath
    """The list."""
    root: DataPath | None = None
    """The folder that paths are relative to; without it the list's own."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


class Hdf5Source(Model):
    """An array in an HDF5 file: PyTables EArrays or any other."""

    kind: Literal["hdf5"]
    path: DataPath
    """The file."""
    images: Text
    """The array of images in it, such as /training_samples."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


class LmdbSource(Model):
    """An LMDB environment in the ml-pyxis layout; `images` is the name of its images."""

    kind: Literal["lmdb"]
    path: DataPath
    """The environment."""
    images: Text
    """The name of its images, such as X."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


class NpySource(Model):
    """Memory-mapped pixels in .npy files, with labels from `table` or from other .npy files."""

    kind: Literal["npy"]
    path: DataGlob
    """An .npy file of uint8 (images, height, width, channels), a folder of such files, or several: pixels/*.npy."""
    table: DataPath | None = None
    """The table of labels, one row an image, in the order of the images: .csv, .tsv or .parquet."""
    where: dict[str, Scalar] | None = None
    """Keeps the rows whose columns in the table have these values: {split: train}."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""

    @model_validator(mode="after")
    def _conditions_need_a_table(self) -> Self:
        if self.where and self.table is None:
            raise refused((("where",), "asks for columns, and there is no table; add table: FILE, or leave where out"))
        return self


class TarSource(Model):
    """WebDataset shards; `path` may hold the wildcards * ? and []."""

    kind: Literal["tar"]
    path: DataGlob
    """The shards, such as shards/*.tar."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


Source = Annotated[
    FolderSource | TableSource | FilelistSource | Hdf5Source | LmdbSource | NpySource | TarSource,
    Field(discriminator="kind"),
]

SOURCES: Final[dict[str, type[Model]]] = {
    "folder": FolderSource,
    "table": TableSource,
    "filelist": FilelistSource,
    "hdf5": Hdf5Source,
    "lmdb": LmdbSource,
    "npy": NpySource,
    "tar": TarSource,
}
FILE_KINDS: Final = frozenset({"folder", "table", "filelist", "tar"})  # encoded images, of any size
