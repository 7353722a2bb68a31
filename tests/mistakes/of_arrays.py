"""Mistakes in what the configuration names: arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from mistake import Mistake

ARRAYS: Final = """\
streams:
  train:
    source: {kind: npy, path: x.npy}
    labels: {angle: {type: float, from: angles.npy}}
    batch_size: 4
"""
PIXELS: Final = np.arange(8 * 12, dtype=np.uint8).reshape(8, 2, 2, 3)
ANGLES: Final = np.linspace(-1, 1, 8)


def saved(pixels: Any = PIXELS, angles: Any = ANGLES) -> Callable[[Path], None]:
    """Puts both arrays into their files."""

    def save(place: Path) -> None:
        np.save(place / "x.npy", pixels)
        np.save(place / "angles.npy", angles)

    return save


def cut_off(place: Path) -> None:
    saved()(place)
    path = place / "x.npy"
    path.write_bytes(path.read_bytes()[:-40])


OF_ARRAYS: Final = (
    Mistake(
        "saved pixels as fractions",
        config=ARRAYS,
        prepare=saved((PIXELS / 255).astype(np.float32)),
        says=(
            "streamd: config.yaml:3: streams.train.source.path: '…/x.npy' holds float32 (8, 2, 2, 3); pixels are "
            "uint8, 0-255: save them scaled to that, as array.astype(np.uint8)"
        ),
        do="`np.save(path, (255 * array).round().astype(np.uint8))`; normalize in the model.",
    ),
    Mistake(
        "saved pixels channels first",
        config=ARRAYS,
        prepare=saved(np.ascontiguousarray(PIXELS.repeat(4, 2).transpose(0, 3, 1, 2))),
        says=(
            "streamd: config.yaml:3: streams.train.source.path: '…/x.npy' holds uint8 (8, 3, 2, 8), channels first; "
            "save it channels last: np.ascontiguousarray(array.transpose(0, 2, 3, 1))"
        ),
        do="Save it as the message says; torch gets channels first from `loader` all the same.",
    ),
    Mistake(
        "served grey arrays as colour",
        config=ARRAYS,
        prepare=saved(PIXELS[..., 0]),
        says=(
            "streamd: config.yaml:2: streams.train.image.mode: RGB has 3 channels, and the images of the arrays have "
            "1; write mode: L"
        ),
        do="Add `image: {mode: L}`.",
    ),
    Mistake(
        "asked for arrays in another size",
        config=f"{ARRAYS}    image: {{size: [32, 32]}}\n",
        prepare=saved(),
        says=(
            "streamd: config.yaml:6: streams.train.image.size: the arrays hold images of 2x2, which are served as "
            "they are; write size: stored, and resize in the trainer's model, or save them resized"
        ),
        do="Resize in the model, or save arrays of the size you train on.",
    ),
    Mistake(
        "saved fewer labels than images",
        config=ARRAYS,
        prepare=saved(angles=ANGLES[:7]),
        says=(
            "streamd: config.yaml:4: streams.train.labels.angle.from: '…/angles.npy' has 7 rows, and there are 8 "
            "images; it needs one row an image, in their order: correct it, or the path of the images"
        ),
        do="Save labels and images from the same list.",
    ),
    Mistake(
        "copied an array halfway",
        config=ARRAYS,
        prepare=cut_off,
        says=(
            "streamd: config.yaml:3: streams.train.source.path: '…/x.npy' is cut off: 184 bytes of 224; write it anew"
        ),
        do="Copy it again.",
    ),
    Mistake(
        "named a label that nothing holds",
        config=ARRAYS.replace("{type: float, from: angles.npy}", "float"),
        prepare=saved(),
        says=(
            "streamd: config.yaml:4: streams.train.labels.angle: there is no table that has 'angle'; add table: FILE "
            "to the source, or take the label from an array, from: FILE.npy"
        ),
        do="Say where the label is.",
    ),
)
