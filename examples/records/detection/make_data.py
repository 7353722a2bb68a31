"""Draws road signs in a landscape, with their boxes as COCO and as YOLO have them.

python make_data.py [FOLDER]    # writes images, labels, train.json, validation.json and data.yaml; default: here
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

HEIGHT, WIDTH = 96, 128
SMOOTH = 4  # pictures are drawn so many times larger
SIGNS = ("parking", "no entry", "yield")
CATEGORY_IDS = {"parking": 7, "no entry": 3, "yield": 12}  # COCO's need not follow each other
RED, BLUE, WHITE, POLE = (190, 30, 45), (30, 80, 160), (245, 245, 245), (110, 110, 115)

Edges = tuple[float, float, float, float]  # left, top, right, bottom


def draw_landscape(rng: np.random.Generator) -> Image.Image:
    """Draws hills below a sky, and a street."""
    picture = Image.new("RGB", (WIDTH * SMOOTH, HEIGHT * SMOOTH))
    draw, (width, height) = ImageDraw.Draw(picture), picture.size
    sky, horizon = rng.uniform((120, 150, 180), (190, 210, 255)), height * rng.uniform(0.35, 0.6)
    for row in range(height):
        draw.line([(0, row), (width, row)], fill=tuple((sky + (255 - sky) * 0.5 * row / height).astype(int).tolist()))
    for step in range(3):
        places = np.arange(0, width + 1, 16)
        line = horizon + step * height / 8 + height / 14 * np.sin(places / rng.uniform(40, 110) + rng.uniform(0, 6))
        green = tuple((rng.uniform((70, 95, 40), (130, 160, 90)) * (1 - step / 6)).astype(int).tolist())
        draw.polygon([*zip(places.tolist(), line.tolist(), strict=True), (width, height), (0, height)], fill=green)
    middle, top = width * rng.uniform(0.3, 0.7), horizon + height / 6
    draw.polygon(
        [(middle - 8, top), (middle + 8, top), (width * 0.8, height), (width * 0.2, height)], fill=(95, 95, 100)
    )
    return picture


def draw_sign(draw: ImageDraw.ImageDraw, name: str, edges: Edges) -> None:
    """Draws one sign on its pole; `edges` are those of the sign, in pixels of the drawing."""
    left, top, right, bottom = edges
    side, middle = right - left, (left + right) / 2
    draw.line([(middle, bottom), (middle, bottom + 1.5 * side)], fill=POLE, width=max(SMOOTH, int(side / 12)))
    if name == "parking":
        draw.rounded_rectangle(edges, side / 10, fill=BLUE, outline=WHITE, width=int(side / 14))
        draw.text((middle, (top + bottom) / 2), "P", WHITE, font_size=0.75 * side, anchor="mm")
    elif name == "no entry":
        draw.regular_polygon((middle, (top + bottom) / 2, side * 0.541), 8, 22.5, fill=RED, outline=WHITE)
        draw.rectangle([left + side / 5, top + side * 0.42, right - side / 5, bottom - side * 0.42], fill=WHITE)
    else:
        draw.polygon([(left, top), (right, top), (middle, bottom)], fill=RED)
        inner = side / 5
        draw.polygon([(left + inner, top + side / 8), (right - inner, top + side / 8), (middle, bottom - inner)], WHITE)


def draw_scene(rng: np.random.Generator) -> tuple[Image.Image, list[tuple[str, Edges]]]:
    """Returns a picture, and its signs with their edges in its pixels. Some pictures have none."""
    picture, signs = draw_landscape(rng), []
    draw = ImageDraw.Draw(picture)
    columns = rng.permutation(4)[: rng.integers(0, 4)]
    for column in columns.tolist():
        side = float(rng.uniform(13, 30))
        left, top = column * WIDTH / 4 + rng.uniform(0, WIDTH / 4 - side), float(rng.uniform(4, 50))
        name, edges = str(rng.choice(SIGNS)), (left, top, left + side, top + side)
        draw_sign(draw, name, tuple(SMOOTH * edge for edge in edges))
        signs.append((name, edges))
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX), signs


def describe_coco(scenes: list[list[tuple[str, Edges]]]) -> dict[str, Any]:
    """Returns what an instances.json says of the pictures."""
    found = [(number, name, edges) for number, signs in enumerate(scenes) for name, edges in signs]
    return {
        "images": [{"id": 100 + number, "file_name": f"{number:03}.jpg"} for number in range(len(scenes))],
        "categories": [{"id": CATEGORY_IDS[name], "name": name} for name in SIGNS],
        "annotations": [
            {"id": place, "image_id": 100 + number, "category_id": CATEGORY_IDS[name], "iscrowd": 0}
            | {"bbox": [left, top, right - left, bottom - top]}
            for place, (number, name, (left, top, right, bottom)) in enumerate(found)
        ],
    }


def describe_yolo(signs: list[tuple[str, Edges]]) -> str:
    """Returns the text file of one picture: a class by the order of COCO's ids, and the box in fractions."""
    names = sorted(SIGNS, key=CATEGORY_IDS.__getitem__)
    return "".join(
        f"{names.index(name)} {(left + right) / 2 / WIDTH} {(top + bottom) / 2 / HEIGHT}"
        f" {(right - left) / WIDTH} {(bottom - top) / HEIGHT}\n"
        for name, (left, top, right, bottom) in signs
    )


def main(folder: Path) -> None:
    """Writes both parts in both layouts."""
    for part, count in (("train", 240), ("validation", 48)):
        rng, scenes = np.random.default_rng(len(part)), []
        for name in ("images", "labels"):
            (folder / name / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture, signs = draw_scene(rng)
            scenes.append(signs)
            picture.save(folder / "images" / part / f"{number:03}.jpg", quality=90)
            (folder / "labels" / part / f"{number:03}.txt").write_text(describe_yolo(signs))
        (folder / f"{part}.json").write_text(json.dumps(describe_coco(scenes)))
    names = sorted(SIGNS, key=CATEGORY_IDS.__getitem__)
    (folder / "data.yaml").write_text(f"train: images/train\nval: images/validation\nnames: [{', '.join(names)}]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
