"""Pictures with the boxes of a YOLO data set: `data_yaml` reads its file, `scan` lists the pictures and their boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from streamd.dataset.sources import DataSource

YoloPart = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class YoloSource(DataSource):
    """Pictures with boxes in text files, as the data.yaml of a YOLO data set names them."""

    has_own_boxes: ClassVar[bool] = True
    has_own_parts: ClassVar[bool] = True

    kind: Literal["yolo"] = field(default="yolo", init=False)
    path: Annotated[Path, "The data.yaml."]
    part: Annotated[YoloPart, "The pictures to take: those under train, val or test in the data.yaml."]

    def copy_without_part(self) -> Self:
        """Returns the source as it is: each part is a list of its own."""
        return self
