"""Prints cloth in four patterns, each piece in colours, widths and a direction of its own.

python make_data.py [FOLDER]    # writes train and validation there, with a folder for each pattern; default: here
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 56
PATTERNS = ("checks", "dots", "rings", "stripes")

Levels = npt.NDArray[np.float64]  # (SIDE, SIDE), from 0 to 1: how much of the second colour


def draw_pattern(name: str, across: Levels, down: Levels) -> Levels:
    """Returns a pattern over coordinates in repeats."""
    if name == "stripes":
        wave = np.sin(2 * np.pi * across)
    elif name == "checks":
        wave = np.sin(2 * np.pi * across) * np.sin(2 * np.pi * down) * 2
    else:
        far = np.hypot(across - np.round(across), down - np.round(down))
        wave = (0.3 - far) * 6 if name == "dots" else np.sin(2 * np.pi * (4 * far - 0.5))
    return np.clip(0.5 + 2 * wave, 0, 1)


def print_cloth(name: str, rng: np.random.Generator) -> Image.Image:
    """Returns a piece of cloth with this pattern."""
    turn, repeat = rng.uniform(0, np.pi), rng.uniform(9, 15)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / repeat
    across = x * np.cos(turn) + y * np.sin(turn) + rng.uniform()
    down = y * np.cos(turn) - x * np.sin(turn) + rng.uniform()
    share = draw_pattern(name, across, down)[..., None]
    ground = rng.uniform(20, 235, 3)
    ink = (ground + rng.uniform(70, 185, 3)) % 255
    levels = (1 - share) * ground + share * ink + rng.normal(0, 6, (SIDE, SIDE, 1))
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))


def main(folder: Path) -> None:
    """Writes PATTERN/N.jpg for both parts."""
    for part, count in (("train", 96), ("validation", 32)):
        rng = np.random.default_rng(len(part))
        for name in PATTERNS:
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                print_cloth(name, rng).save(folder / part / name / f"{number:03}.jpg", quality=90)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
