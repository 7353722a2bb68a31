"""torch's DataLoader with processes that decode and resize by Pillow."""

from __future__ import annotations

from importlib.metadata import version

import contest
import numpy as np
import torch_folder
from PIL import Image

SIZE = (contest.SIDE, contest.SIDE)
SETTINGS = contest.Settings(
    library=f"torch {version('torch')}, Pillow {version('pillow')}",
    chosen=f"{torch_folder.CHOSEN}; Image.draft (reduced DCT scale), resize BILINEAR",
    source=f"{torch_folder.SOURCE}; Pillow: Image.draft",
)


def fill(path: str, row: contest.Images) -> None:
    """Decodes a JPEG into `row` (128, 128, 3), at the smallest DCT scale that covers it, and resizes the rest."""
    with Image.open(path) as picture:
        picture.draft("RGB", SIZE)
        rgb = picture.convert("RGB")
    row[:] = np.asarray(rgb if rgb.size == SIZE else rgb.resize(SIZE, Image.Resampling.BILINEAR))


def begin(options: contest.Options) -> contest.Epoch:
    return torch_folder.epochs(torch_folder.Folder(options, fill), options)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
