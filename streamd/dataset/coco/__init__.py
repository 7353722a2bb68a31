"""Pictures with the boxes and key points of a COCO file: `scan` reads it and lists the samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from streamd.dataset.sources import DataSource, PartKey


@dataclass(frozen=True)
class CocoSource(DataSource):
    """Pictures with boxes, as a COCO file lists them: instances.json or person_keypoints.json."""

    has_own_boxes: ClassVar[bool] = True

    kind: Literal["coco"] = field(default="coco", init=False)
    path: Annotated[Path, "The file of annotations, such as instances.json."]
    root: Annotated[Path, "The folder that the names of the pictures are relative to."]
    crowd: Annotated[
        Literal["drop", "keep"], "Whether boxes around a crowd (iscrowd: 1) are left out: drop, or keep."
    ] = "drop"
    part: PartKey = None

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The file, and the folder of the pictures."""
        return (self.path, self.root)
