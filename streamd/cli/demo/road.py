"""Pictures of roads with the steering angle that each asks for: a driving set that needs no download.

A camera looks over flat ground at a road whose centre lies at x(z) = offset + heading * z + curvature * z^2 metres to
the right, z metres ahead. Each image row below the horizon sees one depth z, so everything on the ground is drawn by
comparing a pixel's distance from the centre line, in metres, with widths; edges are as soft as the pixel is wide.

While drawing, a picture is float32 in 0..1 and planar, (3, rows, columns), which NumPy blends twice as fast.
Angles are in [-1, 1], positive to the right.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
Colour = tuple[float, float, float]

IMAGE_SIDE: Final = 128  # pixels, both ways
JPEG_QUALITY: Final = 90
VALIDATION_EVERY: Final = 8  # one image in so many is for validation
FOCAL_PX: Final = 110.0
CAMERA_HEIGHT_M: Final = 3.2  # a lorry's cab: low enough for perspective, high enough to see both verges
HAZE_M: Final = 200.0  # at this depth two thirds of all that the air takes are gone
TEXTURE_SIZE: Final = 512  # a power of two, so that `&` wraps round

_COLUMNS: Final = np.arange(IMAGE_SIDE, dtype=np.float32) + np.float32(0.5)
_ROWS: Final = _COLUMNS[:, None]


@dataclass(frozen=True, slots=True)
class RoadBend:
    """Where the road goes, seen from the camera: metres, radians, 1/metres; positive to the right."""

    offset_m: float
    heading: float
    curvature: float

    def compute_centre_m(self, depth_m: float) -> float:
        return self.offset_m + self.heading * depth_m + self.curvature * depth_m**2

    @property
    def steering_angle(self) -> float:
        """The steering that follows the road: mostly its curvature, a little the way back to its middle."""
        return max(-1.0, min(1.0, 100 * self.curvature + 0.1 * self.offset_m + 1.5 * self.heading))


@dataclass(frozen=True, slots=True)
class SceneLight:
    """A time of day: sky from zenith to horizon, what it does to colours below, how hard its shadows are."""

    zenith: Colour
    horizon: Colour
    tint: Colour
    shadow: float
    headlights: bool = False


@dataclass(frozen=True, slots=True)
class Landscape:
    """What lies beside the road. `trees` is the most that stand in one picture."""

    verge: Colour
    shoulder: Colour
    hills: Colour
    canopy: Colour
    trees: int
    conifers: bool = False


@dataclass(frozen=True, slots=True)
class GroundView:
    """The rows below the horizon, G of them, as the camera sees them.

    `below_px`, `depth_m`, `pixel_m` (G, 1): rows under the horizon, depth, a pixel's width there; `across_m` (G, 128):
    from the road's centre; `top` is the first row's number.
    """

    bend: RoadBend
    horizon: float
    top: int
    below_px: Field
    depth_m: Field
    pixel_m: Field
    across_m: Field


_LIGHTS: Final = (
    SceneLight((0.24, 0.46, 0.80), (0.76, 0.86, 0.94), (1.00, 1.00, 0.98), shadow=0.55),
    SceneLight((0.20, 0.40, 0.74), (0.70, 0.81, 0.90), (0.98, 0.97, 0.93), shadow=0.50),
    SceneLight((0.42, 0.54, 0.76), (0.98, 0.84, 0.70), (1.00, 0.92, 0.80), shadow=0.50),
    SceneLight((0.60, 0.64, 0.68), (0.80, 0.82, 0.84), (0.84, 0.86, 0.88), shadow=0.15),
    SceneLight((0.20, 0.22, 0.42), (0.95, 0.56, 0.38), (0.80, 0.66, 0.62), shadow=0.30),
    SceneLight((0.02, 0.03, 0.09), (0.12, 0.14, 0.24), (0.36, 0.40, 0.52), shadow=0.0, headlights=True),
)

_LANDS: Final = (
    Landscape((0.34, 0.48, 0.20), (0.50, 0.46, 0.36), (0.30, 0.42, 0.28), (0.18, 0.34, 0.13), trees=12),
    Landscape((0.42, 0.52, 0.26), (0.56, 0.52, 0.42), (0.36, 0.46, 0.36), (0.24, 0.38, 0.16), trees=7),
    Landscape((0.24, 0.33, 0.17), (0.42, 0.38, 0.30), (0.18, 0.29, 0.20), (0.10, 0.23, 0.13), trees=26, conifers=True),
    Landscape((0.66, 0.59, 0.34), (0.58, 0.52, 0.40), (0.52, 0.48, 0.34), (0.36, 0.38, 0.18), trees=5),
    Landscape((0.82, 0.68, 0.46), (0.74, 0.62, 0.44), (0.70, 0.54, 0.40), (0.42, 0.44, 0.26), trees=3),
    Landscape((0.70, 0.42, 0.28), (0.64, 0.44, 0.32), (0.62, 0.34, 0.24), (0.36, 0.38, 0.22), trees=4),
    Landscape((0.90, 0.92, 0.96), (0.78, 0.80, 0.84), (0.74, 0.79, 0.87), (0.20, 0.31, 0.26), trees=16, conifers=True),
)

_CROWN: Final = 0.62  # where a tree's crown is widest, as a part of its height
_WHITE: Final = (0.92, 0.92, 0.90)
_YELLOW: Final = (0.90, 0.70, 0.20)


def draw_road(rng: Rng) -> tuple[Pixels, float]:
    """One picture, uint8 (128, 128, 3) RGB, and its steering angle in [-1, 1]; both follow from `rng` alone."""
    light, land = _LIGHTS[rng.integers(len(_LIGHTS))], _LANDS[rng.integers(len(_LANDS))]
    curvature = 0.0092 * (2 * rng.beta(2.0, 2.0) - 1)  # bounded, and so spread that the angle's deviation is about 0.4
    bend = RoadBend(offset_m=rng.normal(0, 0.4), heading=rng.normal(0, 0.03), curvature=curvature)
    ground = _project_ground(bend, horizon=IMAGE_SIDE * rng.uniform(0.35, 0.45))
    half_width_m = rng.uniform(2.4, 3.8)

    canvas = np.empty((3, IMAGE_SIDE, IMAGE_SIDE), dtype=np.float32)
    _paint_sky(rng, canvas, light, ground.horizon)
    _paint_hills(rng, canvas, light, land, ground.horizon)
    surface = canvas[:, ground.top :]
    foot_of_hills = surface[:, 0].copy()
    verge = (
        1 + 0.10 * _project_ground_texture(rng, ground, 4, 0.5) + 0.13 * _project_ground_texture(rng, ground, 32, 3.0)
    )
    surface[:] = _build_rgb_array(land.verge) * rng.uniform(0.85, 1.1) * verge
    _paint_road(rng, surface, ground, land, half_width_m)
    _cast_shadows(rng, surface, ground, light.shadow)
    _apply_ground_lighting(surface, ground, light)
    surface[:, 0] += (foot_of_hills - surface[:, 0]) * (ground.horizon - ground.top)  # that row is partly above it
    _plant_trees(rng, canvas, ground, light, land, half_width_m)
    return _apply_camera_effects(rng, canvas), bend.steering_angle


def _project_ground(bend: RoadBend, horizon: float) -> GroundView:
    top = int(horizon)
    below_px = np.maximum(_ROWS[top:] - horizon, 0.25)  # the row that holds the horizon sees far, not infinitely far
    depth_m = FOCAL_PX * CAMERA_HEIGHT_M / below_px
    pixel_m = depth_m / FOCAL_PX
    centre_m = bend.offset_m + bend.heading * depth_m + bend.curvature * depth_m**2
    across_m = (_COLUMNS - IMAGE_SIDE / 2) * pixel_m - centre_m
    return GroundView(bend, horizon, top, below_px, depth_m, pixel_m, across_m)


def _build_rgb_array(colour: Colour) -> Field:
    return np.array(colour, dtype=np.float32).reshape(3, 1, 1)


def _blend_colour(surface: Field, colour: Field, cover: Field) -> None:
    """Lays `colour` over `surface` (3, rows, columns) in place; `cover` (rows or 1, columns or 1) in 0..1."""
    surface += (colour - surface) * cover


@lru_cache(maxsize=32)
def _build_interpolation_matrix(points: int) -> Field:
    """A matrix (128, points) that draws a smooth curve through `points` equidistant values."""
    gap = np.clip(np.abs(np.linspace(0, points - 1, IMAGE_SIDE)[:, None] - np.arange(points)), 0, 1)
    weights: Field = (1 - gap * gap * (3 - 2 * gap)).astype(np.float32)
    return weights


def _generate_noise(rng: Rng, *shape: int) -> Field:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def _generate_clouds(rng: Rng) -> Field:
    """Smooth noise (128, 128) in about -1..1, wider than high."""
    field = np.zeros((IMAGE_SIDE, IMAGE_SIDE), dtype=np.float32)
    for rows, columns, weight in ((12, 4, 1.0), (24, 8, 0.5), (48, 20, 0.25)):
        field += (
            _build_interpolation_matrix(rows)
            @ (weight * _generate_noise(rng, rows, columns))
            @ _build_interpolation_matrix(columns).T
        )
    return field


@lru_cache(maxsize=2)
def _generate_texture(blotch: int) -> Field:
    """Noise (512, 512) in about -1..1 with blotches of `blotch` texels and half as many; it repeats without a seam."""
    rng = np.random.default_rng(blotch)
    total = np.zeros((TEXTURE_SIZE, TEXTURE_SIZE), dtype=np.float32)
    for step in (blotch, blotch // 2):
        smooth = np.repeat(
            np.repeat(_generate_noise(rng, TEXTURE_SIZE // step, TEXTURE_SIZE // step), step, 0), step, 1
        )
        for axis in (0, 1):
            smooth = np.mean([np.roll(smooth, shift, axis) for shift in range(step)], axis=0)
        total += smooth
    return total


def _project_ground_texture(rng: Rng, ground: GroundView, blotch: int, size_m: float) -> Field:
    """Noise as it lies on the ground, (G, 128), its blotches `size_m` wide, fading where a pixel holds several."""
    texels = blotch / size_m
    start = rng.integers(TEXTURE_SIZE, size=2, dtype=np.int32)
    ahead = ((ground.depth_m * texels).astype(np.int32) + start[0]) & (TEXTURE_SIZE - 1)
    across = ((ground.across_m * texels).astype(np.int32) + start[1]) & (TEXTURE_SIZE - 1)
    noise = _generate_texture(blotch).ravel().take(ahead * TEXTURE_SIZE + across)
    faded: Field = noise / (1 + (2 * ground.pixel_m / size_m) ** 2)
    return faded


def _paint_sky(rng: Rng, canvas: Field, light: SceneLight, horizon: float) -> None:
    height = np.clip(1 - _ROWS / horizon, 0, 1) ** rng.uniform(0.6, 1.0)
    low = _build_rgb_array(light.horizon)
    canvas[:] = low + (_build_rgb_array(light.zenith) - low) * height
    cover = np.clip(_generate_clouds(rng) - rng.uniform(-0.3, 1.0), 0, 1) * 0.8
    _blend_colour(canvas, low * 0.5 + 0.5 * max(light.horizon), cover)
    if rng.binomial(1, 0.4) and not light.headlights:
        column, row = rng.uniform(0, IMAGE_SIDE), rng.uniform(0.1, 0.9) * horizon
        distance2 = (_COLUMNS - column) ** 2 + (_ROWS - row) ** 2
        sun = 0.6 * np.exp(-distance2 / 700) + np.exp(-distance2 / 12)
        _blend_colour(canvas, _build_rgb_array((1.0, 0.96, 0.86)), np.minimum(sun, 1))


def _paint_hills(rng: Rng, canvas: Field, light: SceneLight, land: Landscape, horizon: float) -> None:
    haze, near = _build_rgb_array(light.horizon), _build_rgb_array(land.hills) * _build_rgb_array(light.tint) * 0.85
    layers = int(rng.integers(1, 4))
    for layer, height_px in enumerate(sorted(rng.uniform(1.5, 16, layers).tolist(), reverse=True), start=1):
        points = int(rng.integers(4, 9))
        ridge = _build_interpolation_matrix(points) @ (0.55 + 0.45 * _generate_noise(rng, points)) + 0.12 * (
            _build_interpolation_matrix(32) @ _generate_noise(rng, 32)
        )
        cover = np.clip(_ROWS - horizon + ridge * height_px + 0.5, 0, 1)
        _blend_colour(canvas, haze + (near - haze) * (0.25 + 0.5 * layer / layers), cover)


def _compute_strip_coverage(ground: GroundView, middle_m: float, half_m: float) -> Field:
    """How much of each pixel (G, 128) a strip along the road covers.

    A pixel is taken as wide as the strip's slant makes it, so that a line that runs nearly level stays smooth.
    """
    offset_m, curvature = ground.bend.offset_m, ground.bend.curvature
    slant = (offset_m + middle_m) / CAMERA_HEIGHT_M - curvature * FOCAL_PX * ground.depth_m / ground.below_px
    reach = ground.pixel_m * np.sqrt(1 + slant**2) / 2
    beside = ground.across_m - middle_m
    inside = np.minimum(beside + reach, half_m) - np.maximum(beside - reach, -half_m)
    cover: Field = np.clip(inside / (2 * reach), 0, 1)
    return cover


def _compute_dash_coverage(ground: GroundView, dash_m: float, gap_m: float, start_m: float) -> Field:
    """How much of each row's depth (G, 1) is dash, exactly: far rows see several and become even grey."""

    def compute_painted_m(depth_m: Field) -> Field:
        whole, rest = np.divmod(depth_m + start_m, np.float32(dash_m + gap_m))
        metres: Field = whole * np.float32(dash_m) + np.minimum(rest, np.float32(dash_m))
        return metres

    far = FOCAL_PX * CAMERA_HEIGHT_M / np.maximum(ground.below_px - 0.5, 0.2)
    near = FOCAL_PX * CAMERA_HEIGHT_M / (ground.below_px + 0.5)
    cover: Field = (compute_painted_m(far) - compute_painted_m(near)) / (far - near)
    return cover


def _paint_road(rng: Rng, surface: Field, ground: GroundView, land: Landscape, half_m: float) -> None:
    gravel = _build_rgb_array(land.shoulder) * (1 + 0.12 * _project_ground_texture(rng, ground, 4, 0.3))
    _blend_colour(surface, gravel, _compute_strip_coverage(ground, 0, half_m + rng.uniform(0.2, 1.0)))

    grey, warmth = rng.uniform(0.26, 0.52), rng.uniform(-0.02, 0.03)
    shade = (
        1 + 0.05 * _project_ground_texture(rng, ground, 4, 0.2) + 0.08 * _project_ground_texture(rng, ground, 32, 2.0)
    )
    for lane_m in (-half_m / 2, half_m / 2):
        shade -= rng.uniform(0, 0.12) * (
            _compute_strip_coverage(ground, lane_m, 0.95) - _compute_strip_coverage(ground, lane_m, 0.5)
        )  # wheel tracks
    _blend_colour(
        surface,
        _build_rgb_array((grey + warmth, grey, grey - warmth)) * shade,
        _compute_strip_coverage(ground, 0, half_m),
    )
    _paint_lines(rng, surface, ground, half_m)


def _paint_lines(rng: Rng, surface: Field, ground: GroundView, half_m: float) -> None:
    wear = np.clip(rng.uniform(0.55, 1.0) + 0.25 * _project_ground_texture(rng, ground, 4, 0.3), 0, 1)
    half_line_m = rng.uniform(0.07, 0.13)
    dashes = _compute_dash_coverage(
        ground, dash_m=rng.uniform(2.5, 5), gap_m=rng.uniform(3, 7), start_m=rng.uniform(0, 10)
    )
    middle = _build_rgb_array(_YELLOW if rng.binomial(1, 0.4) else _WHITE)
    kind = rng.choice(["dashed", "solid", "double", "none"], p=[0.5, 0.2, 0.2, 0.1])
    if kind == "double":
        for side in (-2, 2):
            _blend_colour(surface, middle, _compute_strip_coverage(ground, side * half_line_m, half_line_m) * wear)
    elif kind != "none":
        _blend_colour(
            surface,
            middle,
            _compute_strip_coverage(ground, 0, half_line_m) * wear * (dashes if kind == "dashed" else 1),
        )
    if rng.binomial(1, 0.75):
        for side in (-1, 1):
            _blend_colour(
                surface,
                _build_rgb_array(_WHITE),
                _compute_strip_coverage(ground, side * (half_m - 0.3), half_line_m) * wear,
            )


def _cast_shadows(rng: Rng, surface: Field, ground: GroundView, strength: float) -> None:
    """Bands of shade across the road, from things that stand outside the picture."""
    if strength == 0 or rng.binomial(1, 0.45):
        return
    shade = np.zeros_like(ground.across_m)
    ragged = 0.7 * _project_ground_texture(rng, ground, 32, 2.0)
    slant = rng.uniform(-0.7, 0.7)
    for _ in range(rng.integers(1, 5)):
        depth_m, half_m = rng.uniform(5, 35), rng.uniform(0.3, 1.8)
        beside = np.abs(ground.depth_m + slant * ground.across_m + ragged - depth_m)
        softness = 0.25 + ground.depth_m / ground.below_px
        shade = np.maximum(shade, np.clip((half_m - beside) / softness + 0.5, 0, 1))
    surface *= 1 - strength * shade


def _apply_ground_lighting(surface: Field, ground: GroundView, light: SceneLight) -> None:
    lit = _build_rgb_array(light.tint)
    if light.headlights:
        aside = (_COLUMNS - IMAGE_SIDE / 2) * ground.pixel_m / (2 + ground.depth_m * 0.3)
        lit = lit + _build_rgb_array((0.95, 0.88, 0.70)) * np.exp(-(aside**2) - ground.depth_m / 28)
    surface *= lit
    _blend_colour(surface, _build_rgb_array(light.horizon), 0.8 * (1 - np.exp(ground.depth_m / -HAZE_M)))


def _plant_trees(
    rng: Rng, canvas: Field, ground: GroundView, light: SceneLight, land: Landscape, half_m: float
) -> None:
    count = int(rng.integers(land.trees + 1))
    depths_m = np.sort(rng.uniform(14, 120, count))[::-1]  # the near ones hide the far ones
    for depth_m, side in zip(depths_m.tolist(), rng.choice([-1.0, 1.0], count).tolist(), strict=True):
        across_m = ground.bend.compute_centre_m(depth_m) + side * (half_m + 2.5 + rng.exponential(6.0))
        column = IMAGE_SIDE / 2 + FOCAL_PX * across_m / depth_m
        foot = ground.horizon + FOCAL_PX * CAMERA_HEIGHT_M / depth_m
        colour = _build_rgb_array(land.canopy) * _build_rgb_array(light.tint) * rng.uniform(0.8, 1.25)
        colour += (_build_rgb_array(light.horizon) - colour) * 0.8 * (1 - math.exp(depth_m / -HAZE_M))
        _plant_tree(canvas, column, foot, FOCAL_PX * rng.uniform(3.5, 8) / depth_m, colour, conifer=land.conifers)


def _plant_tree(canvas: Field, column: float, foot: float, height_px: float, colour: Field, *, conifer: bool) -> None:
    """Draws one tree into the part of the canvas that holds it."""
    half_px = height_px * (0.24 if conifer else 0.42)
    columns = slice(max(0, int(column - half_px - 2)), max(0, int(column + half_px + 3)))
    rows = slice(max(0, int(foot - height_px - 2)), int(foot + 2))
    patch = canvas[:, rows, columns]
    aside, up = (_COLUMNS[columns] - column) / half_px, (foot - _ROWS[rows]) / height_px
    leaves = _generate_texture(4)[:IMAGE_SIDE, :IMAGE_SIDE][rows, columns]
    trunk = np.clip(0.5 + (0.08 - np.abs(aside)) * half_px, 0, 1) * np.clip(up * height_px, 0, 1) * (up < _CROWN)
    _blend_colour(patch, colour * _build_rgb_array((0.75, 0.55, 0.5)), trunk)
    if conifer:
        inside = np.minimum((1 - up) * (1 + 0.35 * leaves) - np.abs(aside), 8 * up - 1)
    else:
        inside = 1 - np.hypot(aside, (up - _CROWN) / (1 - _CROWN)) + 0.15 * leaves
    sunny = 0.85 + 0.2 * aside + 0.25 * up + 0.12 * leaves
    _blend_colour(patch, colour * sunny, np.clip(inside * half_px + 0.5, 0, 1))


def _apply_camera_effects(rng: Rng, canvas: Field) -> Pixels:
    """Blur, brightness, contrast and noise; then bytes."""
    if rng.binomial(1, 0.35):
        weight = rng.uniform(0.1, 0.3)
        canvas[:, 1:-1] += weight * (canvas[:, 2:] + canvas[:, :-2] - 2 * canvas[:, 1:-1])
        canvas[:, :, 1:-1] += weight * (canvas[:, :, 2:] + canvas[:, :, :-2] - 2 * canvas[:, :, 1:-1])
    contrast, brightness = rng.uniform(0.85, 1.12), rng.normal(0, 0.03)
    canvas *= contrast
    canvas += 0.5 - 0.5 * contrast + brightness
    canvas += rng.uniform(0.003, 0.025) * rng.standard_normal((IMAGE_SIDE, IMAGE_SIDE), dtype=np.float32)
    canvas *= 255
    return np.ascontiguousarray(np.clip(canvas + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0))


def write_driving_set(folder: Path, images: int, seed: int, on_image: Callable[[int], None]) -> Path:
    """Draws `images` pictures into `folder`/images, lists them in a table, returns the table's path.

    Its columns are image (relative to `folder`), angle and split: `validation` for every eighth, else `train`. Image
    number i depends on (`seed`, i) only. `on_image` is told after each image how many are done. Raises ConfigError for
    fewer than eight images, a negative seed, or a folder that cannot be written.
    """
    if seed < 0:
        raise ConfigError(f"a seed is 0 or more, not {seed}")
    if images < VALIDATION_EVERY:
        raise ConfigError(f"{images} images cannot be split: ask for {VALIDATION_EVERY} or more")
    listing = folder / "all.csv"
    rows = [("image", "angle", "split")]
    try:
        (folder / "images").mkdir(parents=True, exist_ok=True)
        listing.unlink(missing_ok=True)  # it is written last, so that it is there only when all it names is
        for number in range(images):
            rows.append(_write_image(folder, number, seed))
            on_image(number + 1)
        _write_table(listing, rows)
    except OSError as error:
        raise ConfigError(f"the driving set cannot be written to {folder}: {error}") from error
    return listing


def _write_image(folder: Path, number: int, seed: int) -> tuple[str, str, str]:
    pixels, angle = draw_road(np.random.default_rng([seed, number]))
    name = f"images/{number:05d}.jpg"
    Image.fromarray(pixels).save(folder / name, quality=JPEG_QUALITY)
    return name, f"{angle:.5f}", "train" if (number + 1) % VALIDATION_EVERY else "validation"


def _write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
