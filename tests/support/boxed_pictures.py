"""Pictures with boxes: tables, a COCO file and a YOLO data set, in small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.sources import BoxRule, LabelSource

HEIGHT, WIDTH = 60, 80


def boxes(most: int = 4, classes: tuple[object, ...] | None = None, **rule: Any) -> LabelSource:
    """A label of boxes."""
    return LabelSource("boxes", classes=classes, boxes=BoxRule(most, **rule))


def points(most: int = 4, **rule: Any) -> LabelSource:
    """A label of points."""
    return LabelSource("points", boxes=BoxRule(most, **rule))


def column(cells: Any) -> Column:
    """A column of a table whose first row is line 2."""
    return Column(cells, "column 'b'", SourceRows(Path("all.csv"), lambda row: f"all.csv, line {row + 2}"), "labels.b")


def write_picture(path: Path, height: int = HEIGHT, width: int = WIDTH) -> Path:
    """Writes a PNG; its folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), 128, np.uint8)).save(path)
    return path


def write_coco(folder: Path, objects: Sequence[dict[str, Any]], pictures: int = 3, **changes: Any) -> Path:
    """Writes pictures 0.png and so on, whose ids count from 10, and instances.json; returns the latter."""
    for number in range(pictures):
        write_picture(folder / "images" / f"{number}.png")
    document = {
        "images": [{"id": 10 + number, "file_name": f"{number}.png"} for number in range(pictures)],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
        "annotations": [{"id": 100 + number, **each} for number, each in enumerate(objects)],
    }
    path = folder / "instances.json"
    path.write_text(json.dumps({**document, **changes}), encoding="utf-8")
    return path


def write_yolo(
    folder: Path, labels: Sequence[str | None], yaml: str = "train: images/train\nnames: [cat, dog]"
) -> Path:
    """Writes a picture with its text file, if it has one, for each of the labels; returns the data.yaml."""
    for number, text in enumerate(labels):
        write_picture(folder / "images" / "train" / f"{number}.png")
        if text is not None:
            place = folder / "labels" / "train" / f"{number}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    path = folder / "data.yaml"
    path.write_text(yaml, encoding="utf-8")
    return path
