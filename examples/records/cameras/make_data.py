"""Draws a drive as three cameras see it, and writes the angle of the steering wheel beside them.

python make_data.py [FOLDER]    # writes left, centre, right and drive.csv; default: here
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

HEIGHT, WIDTH = 48, 96
SMOOTH = 2  # pictures are drawn so many times larger
CAMERAS = {"left": -0.6, "centre": 0.0, "right": 0.6}  # metres beside the middle of the car
SAMPLES = 320
BACK_PER_METRE = 6.0  # degrees that the wheel is turned to come back to the middle of the lane
PER_BEND = 25.0  # degrees for a bend of 1


def draw_road(bend: float, beside: float, rng: np.random.Generator) -> Image.Image:
    """Draws a road that turns to the right by `bend`, seen from so many metres to the right of its middle."""
    height, width = HEIGHT * SMOOTH, WIDTH * SMOOTH
    horizon = height * 2 // 5
    picture = np.empty((height, width, 3))
    picture[:horizon] = np.linspace((120, 165, 215), (215, 225, 235), horizon)[:, None]
    near = (np.arange(horizon, height) - horizon + 1)[:, None] / (height - horizon)  # 1 at the lowest row
    far = 1 / near  # metres, in a measure of the picture
    middle = width / 2 - beside * near * width / 5 + bend * (far - 1) ** 1.6 * near * width / 24
    metres = (np.arange(width) - middle) / (near * width / 5)
    ground = np.empty((height - horizon, width, 3))
    ground[:] = np.array((105, 135, 70)) * (0.85 + 0.15 * (np.floor(far * 2) % 2))[..., None]
    ground[np.abs(metres) < 2] = (92, 92, 98)
    ground[np.abs(np.abs(metres) - 1.9) < 0.1] = (235, 235, 235)
    dashes = (np.abs(metres) < 0.07) & (np.floor(far * 3 + rng.uniform(0, 2)) % 2 == 0)
    ground[dashes] = (235, 235, 235)
    picture[horizon:] = ground
    noisy = np.clip(picture + rng.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def draw_drive(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Returns for each moment the bend of the road and the metres that the car is beside its middle, (samples, 2)."""
    return np.stack([rng.uniform(-1, 1, SAMPLES), rng.normal(0, 0.35, SAMPLES)], axis=1)


def main(folder: Path) -> None:
    """Writes CAMERA/N.jpg, and a table that names them in a row for each moment."""
    rng = np.random.default_rng(0)
    for name in CAMERAS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / "drive.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*CAMERAS, "angle", "split"])
        for number, (bend, beside) in enumerate(draw_drive(rng).tolist()):
            names = {camera: f"{camera}/{number:03}.jpg" for camera in CAMERAS}
            for camera, name in names.items():
                draw_road(bend, beside + CAMERAS[camera], rng).save(folder / name, quality=90)
            angle = PER_BEND * bend - BACK_PER_METRE * beside
            table.writerow([*names.values(), f"{angle:.3f}", "train" if number % 5 else "validation"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
