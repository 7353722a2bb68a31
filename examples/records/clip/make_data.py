"""Films pendulums, and writes beside each frame the angle that the pendulum has four frames later.

    python make_data.py [FOLDER]    # writes a folder for each swing and frames.csv; default: here

A single frame does not say which way the pendulum moves, or how fast: the frames before it do.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

HEIGHT, WIDTH = 32, 48
SMOOTH = 4  # frames are drawn so many times larger
SWINGS, FRAMES = 15, 32
LATER = 4


def draw_frame(degrees: float, colour: tuple[int, int, int], wall: Image.Image) -> Image.Image:
    """Draws a pendulum that hangs at an angle; 0 is straight down, and angles to the right are positive."""
    frame = wall.resize((WIDTH * SMOOTH, HEIGHT * SMOOTH), Image.Resampling.BICUBIC)
    draw, middle, length = ImageDraw.Draw(frame), frame.width / 2, frame.height * 0.72
    x, y = middle + length * np.sin(np.radians(degrees)), 4 + length * np.cos(np.radians(degrees))
    draw.line([(middle, 4), (x, y)], fill=(70, 60, 55), width=5)
    draw.ellipse([x - 17, y - 17, x + 17, y + 17], fill=colour)
    draw.ellipse([x - 11, y - 12, x - 1, y - 2], fill=tuple(min(255, level + 70) for level in colour))
    return frame.resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def main(folder: Path) -> None:
    """Writes SWING/FRAME.jpg, and a row for each frame."""
    rng = np.random.default_rng(0)
    with (folder / "frames.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "swing", "frame", "next_angle", "split"])
        for swing in range(SWINGS):
            (folder / f"swing-{swing:02}").mkdir(parents=True, exist_ok=True)
            widest, period, begin = rng.uniform(25, 55), rng.uniform(18, 30), rng.uniform(0, 2 * np.pi)
            angles = widest * np.sin(begin + 2 * np.pi * np.arange(FRAMES + LATER) / period)
            colour: tuple[int, int, int] = tuple(rng.integers(40, 190, 3).tolist())
            wall = Image.fromarray(rng.integers(205, 245, (3, 4, 3), dtype=np.uint8))
            for frame in range(FRAMES):
                path = f"swing-{swing:02}/{frame:03}.jpg"
                draw_frame(float(angles[frame]), colour, wall).save(folder / path, quality=90)
                split = "train" if swing % 5 else "validation"
                table.writerow([path, swing, frame, f"{angles[frame + LATER]:.3f}", split])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
