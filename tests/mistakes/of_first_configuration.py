"""Mistakes on the way to a first configuration: `streamd init` and data served by their path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from mistake import Mistake
from support.tar_shards import pack

_SERVED: Final = (
    "streamd makes a configuration only from a folder of images, with masks or without, a table (.csv, .tsv, "
    ".parquet), a tar file, a folder of tar files, a COCO file, or YOLO's data.yaml"
)


def add_tar(place: Path) -> None:
    pack(place / "data" / "0.tar", {"1.jpg": b""})


def rearrange(*places: str) -> Callable[[Path], None]:
    """Puts the eight pictures of `data` into these folders, numbered through, in turn."""

    def move(place: Path) -> None:
        for number, picture in enumerate(sorted((place / "data").rglob("*.jpg"))):
            target = place / "data" / places[number % len(places)] / f"{number}{picture.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            picture.rename(target)
        for folder in ("cat", "dog"):
            if not any((place / "data" / folder).iterdir()):
                (place / "data" / folder).rmdir()

    return move


OF_FIRST_CONFIGURATION: Final = (
    Mistake(
        "had a configuration already",
        command="streamd init data",
        says=(
            "streamd: config.yaml: already exists; use --force to replace it, -o FILE to write another file, "
            "or -o - to print the configuration"
        ),
        do="Name another file, or replace the one that is there.",
        status=1,
    ),
    Mistake(
        "wrote the configuration into the data",
        command="streamd init data -o data/config.yaml",
        says=(
            "streamd: data/config.yaml: would be inside the data, which init does not change; run init in "
            "another folder, or choose a file elsewhere with -o"
        ),
        do="Run init in the folder where you want the configuration.",
        status=1,
    ),
    Mistake(
        "tried to make a configuration from an HDF5 file",
        command="streamd init samples.hdf5 -o new.yaml",
        files={"samples.hdf5": b"\x89HDF\r\n"},
        says=(
            f"streamd: PATH: '…/samples.hdf5' is an HDF5 file; {_SERVED}: write config.yaml yourself, with "
            f"source: {{kind: hdf5, path: FILE, images: /NAME}} (docs/data.md)"
        ),
        do="Copy the lines for HDF5 from [data.md](data.md#arrays-shards-and-boxes).",
    ),
    Mistake(
        "tried to make a configuration from a folder with images and tar files",
        command="streamd init data -o new.yaml",
        prepare=add_tar,
        says=(
            f"streamd: PATH: '…/data' holds both 1 tar, such as '0.tar', and the images of 'cat'; {_SERVED}: "
            "put the tars and the images into separate folders, and give the path of one of them"
        ),
        do="Put the tar files into a folder of their own, and give the path of one of the two folders.",
    ),
    Mistake(
        "tried to make a configuration from a single image",
        command="streamd init data/cat/0000.jpg -o new.yaml",
        says=f"streamd: PATH: '…/0000.jpg' is a single image; {_SERVED}: give the path of its folder, '…/cat'",
        do="Name the folder.",
    ),
    Mistake(
        "tried to make a configuration from a table that names no images",
        command="streamd init numbers.csv -o new.yaml",
        files={"numbers.csv": "a,b\n1571,2\n3893,4\n"},
        says=(
            "streamd: PATH: no column of '…/numbers.csv' names images; its columns are: a, b; write the path of each "
            "image, with its suffix, into a column; the path is relative to the table's folder or to the parent of "
            "that folder"
        ),
        do="Add a column with the paths of the images.",
    ),
    Mistake(
        "tried to make a configuration from parts that lie inside the classes",
        command="streamd init data -o new.yaml",
        prepare=rearrange("cat/train", "cat/val", "dog/train", "dog/val"),
        says=(
            "streamd: PATH: '…/data' looks like parts inside classes: each of cat, dog holds train, val, so that "
            "training would take all of them; put the parts outside: move cat/train to train/cat, and so on; or list "
            "the files in a table with the columns file, label and split"
        ),
        do="Put a folder train and a folder val above the classes, or write a table.",
    ),
    Mistake(
        "tried to make a configuration from masks that are named unlike their pictures",
        command="streamd init data -o new.yaml",
        prepare=rearrange("images", "masks"),
        says=(
            "streamd: PATH: '…/data' looks like pictures and their masks: images and masks are both there, but their "
            "files have different stems; rename the files so that a mask has the stem of its picture, with or without "
            "an ending, or give the path of the pictures alone"
        ),
        do="Rename the masks.",
    ),
    Mistake(
        "tried to make a configuration from a Pascal VOC folder",
        command="streamd init data -o new.yaml",
        prepare=rearrange("JPEGImages", "Annotations"),
        says=(
            "streamd: PATH: '…/data' looks like Pascal VOC: Annotations and JPEGImages lie side by side; kind: voc is "
            "not in this version: convert its boxes to a COCO file, or to a table with a cell of boxes a picture "
            "(docs/boxes.md)"
        ),
        do="Convert the boxes to a COCO file.",
    ),
    Mistake(
        "tried to make a configuration from a table with one row per box",
        command="streamd init boxes.csv -o new.yaml",
        files={
            "boxes.csv": "file,xmin,ymin,xmax,ymax,class\n"
            "data/cat/0000.jpg,1,1,5,5,cat\ndata/cat/0000.jpg,2,2,6,6,dog\n"
        },
        says=(
            "streamd: PATH: '…/boxes.csv' has several rows for one picture, each with a box in xmin, ymin, xmax, ymax: "
            "2 rows for 1 picture; boxes are taken from one cell a picture: write one row a picture, with a column of "
            "lists [[x0, y0, x1, y1, class], ...] (docs/boxes.md)"
        ),
        do="Write one row for each picture, with all of its boxes in one cell.",
    ),
    Mistake(
        "named a label that the table does not have",
        command="streamd init all.csv -o new.yaml --label angel",
        says="streamd: --label: '…/all.csv' has no column 'angel'; its columns are: path, angle; did you mean 'angle'?",
        do="Name a column of the table.",
    ),
    Mistake(
        "gave the root of a folder",
        command="streamd init data -o new.yaml --root data",
        says="streamd: --root: says how a table is read, but '…/data' is a folder; leave it out",
        do="Leave it out, or give the path of the table.",
    ),
    Mistake(
        "used --size with a configuration",
        command="streamd serve --size 128",
        says=(
            "streamd: --size: works only with PATH, but you serve a configuration; write image: {size: "
            "[HEIGHT, WIDTH]} in the configuration"
        ),
        do="Write the size into the configuration.",
    ),
    Mistake(
        "wrote a size in words",
        command="streamd init data -o new.yaml --size large",
        says=(
            "streamd: --size 'large': this is not a size; write N for squares, or HEIGHTxWIDTH, such as 128 or 66x200"
        ),
        do="Write a number, or height and width.",
    ),
)
