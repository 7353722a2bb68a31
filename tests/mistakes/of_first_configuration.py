"""Mistakes on the way to a first configuration: `streamd init` and data served by their path."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mistake import Mistake
from support.tar_shards import pack

_SERVED: Final = (
    "streamd makes a configuration only from a folder of images, a table (.csv, .tsv, .parquet), a tar file, or a "
    "folder of tar files"
)


def add_tar(place: Path) -> None:
    pack(place / "data" / "0.tar", {"1.jpg": b""})


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
            f"source: {{kind: hdf5, path: FILE, images: /NAME}} (README, Every kind of data)"
        ),
        do="Copy the lines for HDF5 from the README.",
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
