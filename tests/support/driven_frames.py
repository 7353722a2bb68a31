"""Drives: pictures that follow each other, each of which shows in its pixels which one it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

HEIGHT, WIDTH = 24, 32
LENGTHS: Final = {"north": 5, "south": 3}  # rows of each drive; the table lists them in another order
OFFSETS: Final = [-2, -1, 0]


def build_frame(number: int) -> npt.NDArray[np.uint8]:
    """The picture of a row, in which each pixel depends on the row's number, (HEIGHT, WIDTH, 3)."""
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([down * 8 + number, across * 6 + number, np.full_like(down, 20 * number)], axis=2).astype(np.uint8)


def write_drives(folder: Path) -> Path:
    """Makes `N.png` and `mask/N.png` for the eight rows of `frames.csv`. Returns the folder.

    The table lists the last frames first, and the drives in turns.
    """
    (folder / "mask").mkdir(parents=True)
    rows = sorted(((frame, drive) for drive, frames in LENGTHS.items() for frame in range(frames)), reverse=True)
    lines = ["photo,mask,drive,frame,angle,part"]
    for number, (frame, drive) in enumerate(rows):
        Image.fromarray(build_frame(number)).save(folder / f"{number}.png")
        Image.fromarray(np.full((HEIGHT, WIDTH), number, np.uint8)).save(folder / "mask" / f"{number}.png")
        lines.append(
            f"{number}.png,mask/{number}.png,{drive},{frame},{number / 10},{'held' if number == 6 else 'kept'}"
        )
    (folder / "frames.csv").write_text("\n".join([*lines, ""]))
    return folder


def list_rows(drive: str) -> list[int]:
    """The rows of a drive, in the order of its frames."""
    rows = sorted(((frame, name) for name, frames in LENGTHS.items() for frame in range(frames)), reverse=True)
    return sorted((row for row, (_, name) in enumerate(rows) if name == drive), key=lambda row: rows[row][0])


def clip_config(folder: Path, rule: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A stream of the clips of the folder's table; `rule` has changes of its `frames`."""
    frames = {"by": "drive", "order": "frame", "offsets": OFFSETS} | (rule or {})
    source = {"kind": "table", "path": str(folder / "frames.csv")}
    clip = {"from": "photo", "size": [HEIGHT, WIDTH], "frames": frames}
    return {"source": source, "labels": {"angle": "float"}, "images": {"clip": clip}, "batch_size": 3} | changes
