"""Draws fruit on a cloth: a JPEG of each scene, and a PNG whose palette numbers are the classes of its pixels.

python make_data.py [FOLDER]    # writes train and validation there; default: here
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

HEIGHT, WIDTH = 96, 128
SMOOTH = 4  # photos are drawn so many times larger
FRUIT = {1: ((200, 40, 40), 1.0), 2: ((120, 170, 40), 1.5), 3: ((90, 50, 130), 0.8)}  # class: colour, width by height
PALETTE = [0, 0, 0, 213, 94, 0, 0, 158, 115, 204, 121, 167]


def draw_cloth(rng: np.random.Generator) -> Image.Image:
    """Draws folds in a colour of their own, some of them as red or green as the fruit."""
    folds = rng.normal(0, 1, (5, 6))[:, :, None] * [22, 22, 22]
    spots = Image.fromarray(np.clip(rng.uniform(70, 215, 3) + folds, 0, 255).astype(np.uint8))
    return spots.resize((WIDTH * SMOOTH, HEIGHT * SMOOTH), Image.Resampling.BICUBIC)


def draw_fruit(photo: Image.Image, number: int, box: list[float], rng: np.random.Generator) -> None:
    """Draws one fruit with its shadow and the light on it into a photo; `box` is in pixels of the mask."""
    left, top, right, bottom = (SMOOTH * edge for edge in box)
    wide, high = right - left, bottom - top
    shadow = Image.new("L", photo.size)
    ImageDraw.Draw(shadow).ellipse([left + wide / 6, top + high / 4, right + wide / 6, bottom + high / 8], fill=110)
    photo.paste((0, 0, 0), mask=shadow.filter(ImageFilter.GaussianBlur(3 * SMOOTH)))
    draw, colour = ImageDraw.Draw(photo), np.array(FRUIT[number][0]) + rng.integers(-25, 26, 3)
    for step in np.linspace(0, 0.95, 24):  # lighter towards the upper left
        inset_x, inset_y = wide * step / 2, high * step / 2
        shade = tuple(np.clip(colour * (0.6 + 0.6 * step) + 60 * step**4, 0, 255).astype(int).tolist())
        shift_x, shift_y = -wide * step / 7, -high * step / 6
        edges = [
            left + inset_x + shift_x,
            top + inset_y + shift_y,
            right - inset_x + shift_x,
            bottom - inset_y + shift_y,
        ]
        draw.ellipse(edges, fill=shade)


def draw_scene(rng: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """Returns a photo, and its mask with class numbers: 0 is the cloth."""
    photo, mask = draw_cloth(rng), Image.new("P", (WIDTH, HEIGHT))
    mask.putpalette(PALETTE)
    for _ in range(rng.integers(2, 6)):
        number = int(rng.integers(1, 4))
        height = rng.uniform(18, 40)
        left, top = rng.uniform(-8, WIDTH - 24), rng.uniform(-8, HEIGHT - 24)
        box = [left, top, left + height * FRUIT[number][1], top + height]
        draw_fruit(photo, number, box, rng)
        ImageDraw.Draw(mask).ellipse(box, fill=number)
    return photo.resize((WIDTH, HEIGHT), Image.Resampling.BOX), mask


def main(folder: Path) -> None:
    """Writes photos/N.jpg and masks/N.png for both parts."""
    for part, count in (("train", 160), ("validation", 32)):
        rng = np.random.default_rng(len(part))
        for name in ("photos", "masks"):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            photo, mask = draw_scene(rng)
            photo.save(folder / part / "photos" / f"{number:03}.jpg", quality=90)
            mask.save(folder / part / "masks" / f"{number:03}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
