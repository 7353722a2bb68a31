"""The data of the migration page, in every form that its snippets read, from one folder of images.

images/CLASS/NUMBER.jpg    all.csv    train_list.txt    samples.hdf5    data.lmdb
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb
import numpy as np
import tables
from make_data import decoded, files

from streamd.dataset.lmdb.pyxis_layout import COUNT_KEY, DATA_DB, META_DB, build_sample_key, encode_sample

_HELD_BACK: Final = 10  # of so many rows of the table one belongs to another split
_MAP_BYTES: Final = 1 << 40  # of addresses, not of memory


@dataclass(frozen=True, slots=True)
class Truth:
    """What a pass over the data shows: images, the sum of their labels."""

    images: int
    labels: float


def make(images: Path, folder: Path, count: int) -> None:
    """Writes the first `count` of `images`, as many of each class, into `folder` in all forms, unless it exists."""
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    paths = _copy(images, unfinished / "images", count)
    labels = labels_of(paths)
    _write_table(unfinished, paths)
    names = [path.relative_to(unfinished) for path in paths]
    lines = (f"{name} {label}\n" for name, label in zip(names, labels, strict=True))
    (unfinished / "train_list.txt").write_text("".join(lines))
    _write_hdf5(unfinished / "samples.hdf5", paths, labels)
    _write_lmdb(unfinished / "data.lmdb", paths, labels)
    unfinished.rename(folder)


def labels_of(paths: list[Path]) -> list[int]:
    """The class of each image: the place of its folder among all, by name."""
    classes = sorted({path.parent.name for path in paths})
    return [classes.index(path.parent.name) for path in paths]


def truths(folder: Path) -> dict[str, Truth]:
    """What snippets must have seen after one epoch, by the kind of their labels."""
    paths = files(folder / "images")
    with (folder / "all.csv").open(newline="") as file:
        angles = [float(row["angle"]) for row in csv.DictReader(file) if row["split"] == "train"]
    classes = Truth(len(paths), float(sum(labels_of(paths))))
    return {"category": classes, "torch": classes, "angle": Truth(len(angles), sum(angles))}


def _copy(images: Path, folder: Path, count: int) -> list[Path]:
    classes = sorted(path for path in images.iterdir() if path.is_dir())
    for room in classes:
        (folder / room.name).mkdir(parents=True)
        for path in sorted(room.iterdir())[: count // len(classes)]:
            os.link(path, folder / room.name / path.name)
    return files(folder)


def _write_table(folder: Path, paths: list[Path]) -> None:
    with (folder / "all.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "angle", "split"])
        for number, path in enumerate(paths):
            split = "test" if number % _HELD_BACK == 0 else "train"
            table.writerow([path.relative_to(folder), number % 41 / 40 - 0.5, split])


def _write_hdf5(path: Path, paths: list[Path], labels: list[int]) -> None:
    """As such scripts do: an array that grows, one image appended at a time."""
    side = decoded(paths[0]).shape
    with tables.open_file(str(path), "w") as file:
        images = file.create_earray(file.root, "training_samples", tables.UInt8Atom(), (0, *side))
        classes = file.create_earray(file.root, "training_labels", tables.Int64Atom(), (0,))
        for each, label in zip(paths, labels, strict=True):
            images.append(decoded(each)[None])
            classes.append(np.array([label]))


def _write_lmdb(path: Path, paths: list[Path], labels: list[int]) -> None:
    """As ml-pyxis lays it out."""
    with (
        lmdb.open(str(path), map_size=_MAP_BYTES, max_dbs=2) as environment,
        environment.begin(write=True) as transaction,
    ):
        samples, about = (environment.open_db(name, txn=transaction) for name in (DATA_DB, META_DB))
        for number, (each, label) in enumerate(zip(paths, labels, strict=True)):
            values = {"X": decoded(each), "y": np.array([label])}
            transaction.put(build_sample_key(number), encode_sample(values), db=samples)
        transaction.put(COUNT_KEY, b"%d" % len(paths), db=about)
