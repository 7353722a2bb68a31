"""Images in LMDB files that ml-pyxis wrote: `scan` lists them with the library, `open_store` copies them without it.

`pyxis_layout` reads and writes the format of their values, and tells whether a file is whole (pure).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, PartKey


@dataclass(frozen=True)
class LmdbSource(DataSource):
    """An LMDB environment in the ml-pyxis layout; `images` is the name of the value that holds the image."""

    is_encoded: ClassVar[bool] = False
    is_chunked: ClassVar[bool] = True
    has_columns: ClassVar[bool] = True
    has_own_images: ClassVar[bool] = True

    kind: Literal["lmdb"] = field(default="lmdb", init=False)
    path: Annotated[Path, "The folder that contains data.mdb, or a data file with another name."]
    images: Annotated[
        str | None,
        "The name of the value that holds the image, such as X. Required unless the stream has the key images.",
    ] = None
    range: Annotated[
        tuple[float, float] | None,
        "The values of black and of white, [0, 1] or [-1, 1]; needed if pixels are not uint8.",
    ] = None
    part: PartKey = None
    names: Annotated[
        str | None, "The array that holds the name of each image; default: the names that `streamd pack` saved."
    ] = field(default=None, repr=False)
