"""Images in WebDataset shards: `scan` lists them by their `headers`; `shard_reader` reads each at its offset.

`samples` groups the files of one key, `labels` reads the files beside an image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, FilePattern, PartKey


@dataclass(frozen=True)
class TarSource(DataSource):
    """WebDataset shards, or other tars of images. What is called the same up to the first dot is one sample.

    A label is the text of the file beside the image whose suffix is the label's name, or what `from` says: `txt`, or
    `json:angle` for a field of what is JSON in it. `label` is found in `.cls`, too, or is the folder of the images.
    """

    is_chunked: ClassVar[bool] = True
    has_fields: ClassVar[bool] = True

    kind: Literal["tar"] = field(default="tar", init=False)
    path: Annotated[FilePattern, "The shards: one tar, a folder of them, or several: shards/*.tar."]
    part: PartKey = None
