"""Draws drives along winding roads, frame by frame, and writes beside each how the wheel is turned a little later.

python make_data.py [FOLDER]    # writes DRIVE/N.jpg and frames.csv; default: here
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 32, 64
DRIVES, FRAMES = 50, 18
LATER = 4  # frames between the picture and the angle
PER_FRAME = 0.22  # radians of the winding
STRONGEST = 20.0  # degrees of the wheel


def compute_angle(phase: float, frame: int) -> float:
    """Returns how far the wheel is turned at a frame, in degrees, to the right above 0."""
    return STRONGEST * math.sin(phase + PER_FRAME * frame)


def draw_frame(angle: float, frame: int, rng: np.random.Generator) -> Image.Image:
    """Draws the road as the driver sees it: it leaves the picture's middle on the side to which the wheel is turned."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    near = (rows - HEIGHT // 3) / (HEIGHT - HEIGHT // 3)  # 1 at the lowest row, below 0 in the sky
    middle = WIDTH / 2 + angle / STRONGEST * (1 - near) ** 2 * WIDTH / 3
    beside = np.abs(columns - middle) / np.maximum(near, 0.05)
    picture = np.where(near[..., None] < 0, (170.0, 200.0, 235.0), (95.0, 135.0, 70.0))
    on_road = (near > 0) & (beside < WIDTH / 3)
    picture[on_road] = (90, 90, 95)
    stripe = on_road & (beside < 2) & (np.floor(6 / np.maximum(near, 0.1) + frame) % 2 == 0)
    picture[stripe] = (240, 240, 240)
    return Image.fromarray(np.clip(picture + rng.normal(0, 6, picture.shape), 0, 255).astype(np.uint8))


def main(folder: Path) -> None:
    """Writes the frames of each drive, and a table with a row for each of them."""
    rng = np.random.default_rng(0)
    with (folder / "frames.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["photo", "drive", "frame", "next_angle", "split"])
        for drive in range(DRIVES):
            phase = rng.uniform(0, 2 * math.pi)
            (folder / f"{drive:02}").mkdir(exist_ok=True)
            for frame in range(FRAMES):
                name = f"{drive:02}/{frame:02}.jpg"
                draw_frame(compute_angle(phase, frame), frame, rng).save(folder / name, quality=92)
                angle = compute_angle(phase, frame + LATER)
                table.writerow([name, drive, frame, f"{angle:.3f}", "train" if drive % 5 else "validation"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
