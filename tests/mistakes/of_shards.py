"""Mistakes in what the configuration names: shards."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from mistake import in_train
from support.tar_shards import pack

SHARDS: Final = """\
streams:
  train:
    source: {kind: tar, path: shards}
    image: {size: [32, 32]}
    batch_size: 4
"""


def packed(files: Mapping[str, bytes]) -> Callable[[Path], object]:
    """Packs one shard."""
    return lambda place: pack(place / "shards/0.tar", files)


def compress(place: Path) -> None:
    path = pack(place / "shards/0.tar", {"0.jpg": b"x", "0.cls": b"0"})
    path.write_bytes(gzip.compress(path.read_bytes()))


def truncate(place: Path) -> None:
    os.truncate(pack(place / "shards/0.tar", {"0.jpg": b"x" * 600, "1.jpg": b"x" * 600}), 2100)


in_shards = partial(in_train, config=SHARDS)
OF_SHARDS: Final = (
    in_shards(
        "kept shards compressed",
        prepare=compress,
        says=(
            "3: source.path: '0.tar': it is compressed, so its files cannot be read one by one: unpack it with gunzip"
        ),
        do="Unpack them once: JPEGs are compressed already.",
    ),
    in_shards(
        "copied only part of a shard",
        prepare=truncate,
        says=(
            "3: source.path: '0.tar': it is truncated at byte 2,100, in '1.jpg', which should end at byte "
            "2,648; copy it again, or keep its 1 whole image with truncate -s 1536"
        ),
        do="Copy it again, or truncate it after the last whole image.",
    ),
    in_shards(
        "packed two images under one key",
        prepare=packed({"0.left.jpg": b"x", "0.right.jpg": b"x"}),
        says=(
            "3: source.path: '0.tar' holds '0.left.jpg' and '0.right.jpg', which are two images of one sample, "
            "because their names are the same up to the first dot; a sample has only one image: pack the other "
            "image elsewhere, or under another name"
        ),
        do="Pack `0-left.jpg` and `0-right.jpg`, each with labels of its own.",
    ),
    in_shards(
        "named a label that is a field of JSON",
        config=f"{SHARDS}    labels: {{angle: float}}\n",
        prepare=packed({"0.jpg": b"x", "0.json": b'{"angle": 0.5}'}),
        says=(
            "6: labels.angle: '0.tar' has no .angle files next to its images, and no folder for each class; it "
            "has 1 .json, 1 .jpg: write from: txt for the text of .txt files, from: json:angle for a field of "
            ".json files, or labels: {} to serve no labels"
        ),
        do="Write `labels: {angle: {type: float, from: json:angle}}`.",
    ),
    in_shards(
        "lost a label",
        prepare=packed({"0.jpg": b"x", "0.cls": b"0", "1.jpg": b"x"}),
        says=(
            "2: labels.label: '0.tar/1.jpg' has no .cls file next to it; the shard has 2 .jpg, 1 .cls: correct from:, "
            "or pack the shard again"
        ),
        do="Pack the shard again, or write `labels: {}` to serve no labels.",
    ),
)
