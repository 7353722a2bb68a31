"""Images in an array of an HDF5 file: `scan` lists them, with `arrays` to open the file and find the arrays in it.

`library_store` gathers rows: those that lie in the file unchanged from its mapping, compressed ones through a cache of
chunks. `chunk_grid` divides an array into chunks and computes what compressed ones cost (pure).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, PartKey, RangeKey


@dataclass(frozen=True)
class Hdf5Source(DataSource):
    """An array in an HDF5 file: PyTables EArrays or any other."""

    is_encoded: ClassVar[bool] = False
    is_chunked: ClassVar[bool] = True
    has_columns: ClassVar[bool] = True
    has_own_images: ClassVar[bool] = True

    kind: Literal["hdf5"] = field(default="hdf5", init=False)
    path: Annotated[Path, "The file."]
    images: Annotated[
        str | None,
        "The array of images in the file, such as /training_samples. Required unless the stream has the key images.",
    ] = None
    range: RangeKey = None
    part: PartKey = None
    names: Annotated[
        str | None,
        "The array that holds the name of each image, such as /names; default: the names that `streamd pack` saved.",
    ] = field(default=None, repr=False)
