"""Images in WebDataset shards: `scan` lists them; `shard_reader` reads each at its offset.

`samples` reads headers and groups the files of one key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, FilePattern, PartKey


@dataclass(frozen=True)
class TarSource(DataSource):
    """WebDataset shards, or other tars of images. Files whose names are the same up to the first dot are one sample.

    A label is the text of a file beside the image. The suffix of that file is the label's name, or what `from` says:
    `txt`, or `json:angle` for the field `angle` of a JSON file. `label` is also read from `.cls`, or is the folder of
    the images.
    """

    is_chunked: ClassVar[bool] = True
    has_fields: ClassVar[bool] = True
    has_own_images: ClassVar[bool] = True

    kind: Literal["tar"] = field(default="tar", init=False)
    path: Annotated[FilePattern, "The shards: one tar file, a folder of tar files, or a pattern such as shards/*.tar."]
    part: PartKey = None
