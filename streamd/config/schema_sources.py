"""Where a stream's samples come from: one model a kind, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from streamd.config.fields import DataGlob, DataPath, Model, Scalar, Text

Part = Literal["train", "validation", "all"]


class FolderSource(Model):
    """Images in one sub-folder a class, or flat without labels."""

    kind: Literal["folder"]
    path: DataPath
    part: Part | None = None


class TableSource(Model):
    """A CSV, TSV or Parquet file; `image` is its column of file names, relative to `root` (None: the table's folder).

    `where` keeps only the rows whose columns have these values.
    """

    kind: Literal["table"]
    path: DataPath
    image: Text
    root: DataPath | None = None
    where: dict[str, Scalar] | None = None
    part: Part | None = None


class FilelistSource(Model):
    """A text file with lines `path label`; paths are relative to `root` (None: the list's folder)."""

    kind: Literal["filelist"]
    path: DataPath
    root: DataPath | None = None
    part: Part | None = None


class Hdf5Source(Model):
    """An array in an HDF5 file: PyTables EArrays or any other."""

    kind: Literal["hdf5"]
    path: DataPath
    images: Text
    part: Part | None = None


class LmdbSource(Model):
    """An LMDB environment in the ml-pyxis layout; `images` is the name of its images."""

    kind: Literal["lmdb"]
    path: DataPath
    images: Text
    part: Part | None = None


class NpySource(Model):
    """Memory-mapped pixels in an .npy file, with labels from `table`."""

    kind: Literal["npy"]
    path: DataPath
    table: DataPath | None = None
    part: Part | None = None


class TarSource(Model):
    """WebDataset shards; `path` may hold the wildcards * ? and []."""

    kind: Literal["tar"]
    path: DataGlob
    part: Part | None = None


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
