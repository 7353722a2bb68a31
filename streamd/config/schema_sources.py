"""Where a stream's samples come from: one model a kind, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from streamd.config.fields import DataGlob, DataPath, Model, PixelRange, Scalar, Text, refused

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
    range: PixelRange | None = None
    """The numbers that become 0 and 255, such as [0, 1]; needed for all but uint8. What lies beyond is cut off."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


class LmdbSource(Model):
    """An LMDB environment in the ml-pyxis layout; `images` is the name of its images."""

    kind: Literal["lmdb"]
    path: DataPath
    """The folder of data.mdb, or a data file of another name."""
    images: Text
    """The name of its images, such as X."""
    range: PixelRange | None = None
    """The numbers of black and of white, [0, 1] or [-1, 1], where pixels are no uint8."""
    part: Part | None = None
    """Which side of the split: train, validation or all."""


class NpySource(Model):
    """Memory-mapped pixels in .npy files, with labels from `table` or from other .npy files."""

    kind: Literal["npy"]
    path: DataGlob
    """An .npy file of images, channels last or first, a folder of such files, or several: pixels/*.npy."""
    range: PixelRange | None = None
    """The numbers that become 0 and 255, such as [0, 1]; needed for all but uint8. What lies beyond is cut off."""
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
    """WebDataset shards, or other tars of images. What is called the same up to the first dot is one sample.

    A label is the text of the file beside the image whose suffix is the label's name, or what `from` says: `txt`, or
    `json:angle` for a field of what is JSON in it. `label` is found in `.cls`, too, or is the folder of the images.
    """

    kind: Literal["tar"]
    path: DataGlob
    """The shards: one tar, a folder of them, or several: shards/*.tar."""
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
CHUNKED_KINDS: Final = frozenset({"hdf5", "lmdb", "tar"})  # what lies together is read together: mixed in chunks
FILE_KINDS: Final = frozenset({"folder", "table", "filelist", "tar"})  # encoded images, of any size
