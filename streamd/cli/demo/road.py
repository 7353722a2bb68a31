"""Pictures of roads with the steering angle that each asks for: a driving set that needs no download.

A camera looks over flat ground at a road whose centre lies at x(z) = offset + heading * z + curvature * z^2 metres to
the right, z metres ahead. Each image row below the horizon sees one depth z, so everything on the ground is drawn by
comparing a pixel's distance from the centre line, in metres, with widths.

While drawing, a picture is float32 (rows, columns, 3) in 0..1. Angles are in [-1, 1], positive to the right.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.errors import ConfigError, MissingExtraError

try:
    from PIL import Image
except ImportError as error:
    raise MissingExtraError("Pillow", "serve", "streamd demo") from error

Rng = np.random.Generator
Pixels = npt.NDArray[np.uint8]
Field = npt.NDArray[np.float32]

IMAGE_SIDE: Final = 128  # pixels, both ways
JPEG_QUALITY: Final = 90
VALIDATION_EVERY: Final = 8  # one image in so many is for validation
FOCAL_PX: Final = 110.0
CAMERA_HEIGHT_M: Final = 3.2  # a lorry's cab: low enough for perspective, high enough to see both verges

_SKIES: Final = np.array(  # the colour of the zenith, and of the horizon
    [
        [(0.24, 0.46, 0.80), (0.76, 0.86, 0.94)],
        [(0.42, 0.54, 0.76), (0.98, 0.84, 0.70)],
        [(0.60, 0.64, 0.68), (0.80, 0.82, 0.84)],
        [(0.20, 0.22, 0.42), (0.95, 0.56, 0.38)],
    ]
)
_VERGES: Final = np.array(  # grass, steppe, sand, snow
    [(0.34, 0.48, 0.20), (0.66, 0.59, 0.34), (0.82, 0.68, 0.46), (0.90, 0.92, 0.96)]
)
_LINE_COLOURS: Final = np.array([(0.92, 0.92, 0.90), (0.90, 0.70, 0.20)])


@dataclass(frozen=True, slots=True)
class RoadBend:
    """Where the road goes, seen from the camera: metres, radians, 1/metres; positive to the right."""

    offset_m: float
    heading: float
    curvature: float

    @property
    def steering_angle(self) -> float:
        """The steering that follows the road: mostly its curvature, a little the way back to its middle."""
        return max(-1.0, min(1.0, 100 * self.curvature + 0.1 * self.offset_m + 1.5 * self.heading))


@dataclass(frozen=True, slots=True)
class GroundView:
    """The G rows below the horizon, as the camera sees them.

    `depth_m` and `pixel_m` (G, 1) are the depth and the width of a pixel there; `across_m` (G, 128) is the distance
    from the road's centre.
    """

    depth_m: Field
    pixel_m: Field
    across_m: Field


def draw_road(rng: Rng) -> tuple[Pixels, float]:
    """Draws one picture, uint8 (128, 128, 3) RGB, and returns its steering angle too; both depend on `rng` alone."""
    curvature = 0.0092 * (2 * rng.beta(2.0, 2.0) - 1)  # bounded, and so spread that the angle's deviation is about 0.4
    bend = RoadBend(offset_m=rng.normal(0, 0.4), heading=rng.normal(0, 0.03), curvature=curvature)
    horizon = int(IMAGE_SIDE * rng.uniform(0.35, 0.45))

    canvas = np.empty((IMAGE_SIDE, IMAGE_SIDE, 3), dtype=np.float32)
    zenith, haze = rng.choice(_SKIES)
    canvas[:horizon] = np.linspace(zenith, haze, horizon)[:, None]
    canvas[horizon:] = rng.choice(_VERGES)
    _paint_road(rng, canvas[horizon:], project_ground(bend, horizon), half_width_m=rng.uniform(2.4, 3.8))

    canvas *= rng.uniform(0.5, 1.1)  # the time of day
    canvas += rng.normal(0, 0.03, canvas.shape)
    return np.clip(canvas * 255, 0, 255).astype(np.uint8), bend.steering_angle


def project_ground(bend: RoadBend, horizon: int) -> GroundView:
    """Computes what the camera sees of the ground in each row below the row `horizon`."""
    below_px = np.arange(IMAGE_SIDE - horizon, dtype=np.float32)[:, None] + 0.5
    depth_m = FOCAL_PX * CAMERA_HEIGHT_M / below_px
    pixel_m = depth_m / FOCAL_PX
    centre_m = bend.offset_m + bend.heading * depth_m + bend.curvature * depth_m**2
    columns = np.arange(IMAGE_SIDE, dtype=np.float32) + 0.5
    return GroundView(depth_m, pixel_m, (columns - IMAGE_SIDE / 2) * pixel_m - centre_m)


def compute_strip_coverage(ground: GroundView, middle_m: float, half_m: float) -> Field:
    """Computes how much of each pixel (G, 128) a strip along the road covers, in 0..1."""
    beside, reach = ground.across_m - middle_m, ground.pixel_m / 2
    inside = np.minimum(beside + reach, half_m) - np.maximum(beside - reach, -half_m)
    return np.clip(inside / ground.pixel_m, 0, 1)


def _paint_road(rng: Rng, surface: Field, ground: GroundView, half_width_m: float) -> None:
    """Paints the road, and the lines on it, onto the rows below the horizon (G, 128, 3)."""
    _blend_colour(surface, np.full(3, rng.uniform(0.26, 0.52)), compute_strip_coverage(ground, 0, half_width_m))
    half_line_m = rng.uniform(0.07, 0.13)
    middle = compute_strip_coverage(ground, 0, half_line_m)
    if rng.binomial(1, 0.6):
        middle *= (ground.depth_m + rng.uniform(0, 10)) % 8 < rng.uniform(2.5, 5)  # dashes, every eight metres
    _blend_colour(surface, rng.choice(_LINE_COLOURS), middle)
    if rng.binomial(1, 0.75):
        for edge_m in (0.3 - half_width_m, half_width_m - 0.3):
            _blend_colour(surface, _LINE_COLOURS[0], compute_strip_coverage(ground, edge_m, half_line_m))


def _blend_colour(surface: Field, colour: npt.NDArray[np.float64], cover: Field) -> None:
    """Lays `colour` (3,) over `surface` (rows, columns, 3) in place; `cover` (rows, columns) is in 0..1."""
    surface += (colour - surface) * cover[:, :, None]


def write_driving_set(folder: Path, images: int, seed: int, on_image: Callable[[int], None]) -> Path:
    """Draws `images` pictures into `folder`/images, lists them in a table, and returns the table's path.

    Its columns are image (relative to `folder`), angle and split: `validation` for every eighth, else `train`. Image
    number i depends on (`seed`, i) only. `on_image` is called after each image with the number of images so far.
    Raises ConfigError for a folder that cannot be written.
    """
    listing = folder / "all.csv"
    try:
        (folder / "images").mkdir(parents=True, exist_ok=True)
        with listing.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("image", "angle", "split"))
            for number in range(images):
                pixels, angle = draw_road(np.random.default_rng([seed, number]))
                name = f"images/{number:05d}.jpg"
                Image.fromarray(pixels).save(folder / name, quality=JPEG_QUALITY)
                split = "train" if (number + 1) % VALIDATION_EVERY else "validation"
                table.writerow((name, f"{angle:.5f}", split))
                on_image(number + 1)
    except OSError as error:
        raise ConfigError(f"the driving set cannot be written to {folder}: {error}") from error
    return listing
