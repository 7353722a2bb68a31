"""Mistakes in what the configuration names: folders, tables, labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
from mistake import GOOD, TABLE, Mistake, in_train

LABELLED: Final = GOOD + "    labels: {label: {type: category, classes: [cat, bird]}}\n"
TWO: Final = """\
streams:
  train:
    source: {kind: folder, path: data}
    labels: {label: {type: category, classes: [cat, dog]}}
    image: {size: [32, 32]}
  validation: {like: train, labels: {label: {type: category, classes: [dog, cat]}}}
"""
LISTED: Final = TABLE.replace("kind: table, path: all.csv, image: path, root: data", "kind: filelist, path: list.txt")


def rows(*lines: str) -> dict[str, str | bytes | None]:
    """all.csv with these lines."""
    return {"all.csv": "".join(f"{line}\n" for line in lines)}


def write_pictures_into_table(place: Path) -> None:
    pictures = [path.read_bytes() for path in sorted((place / "data" / "cat").iterdir())]
    pq.write_table(pa.table({"path": pictures, "angle": [0.5] * len(pictures)}), place / "all.parquet")


def lock(place: Path) -> None:
    (place / "data" / "cat").chmod(0)


def flatten(place: Path) -> None:
    (place / "flat").mkdir()
    for number in range(4):
        (place / "data" / "cat" / f"000{number}.jpg").rename(place / "flat" / f"{number}.jpg")


def link_out(place: Path) -> None:
    (place / "elsewhere.jpg").write_bytes((place / "data/cat/0000.jpg").read_bytes())
    (place / "data/cat/link.jpg").symlink_to(place / "elsewhere.jpg")


def link_nowhere(place: Path) -> None:
    (place / "data/cat/link.jpg").symlink_to(place / "data/cat/gone.jpg")


def only(*names: str) -> dict[str, str | bytes | None]:
    """A folder `photos` with these files."""
    return {f"photos/{name}": b"x" for name in names}


PHOTOS: Final = GOOD.replace("path: data", "path: photos")
FLAT: Final = GOOD.replace("path: data", "path: flat")


def add_bands(place: Path) -> None:
    bands = np.zeros((40, 60, 4), np.uint8)
    tifffile.imwrite(place / "data/cat/bands.tif", bands, photometric="minisblack", extrasamples=["unspecified"] * 3)


in_table = partial(in_train, config=TABLE)

MASKED: Final = GOOD.replace(
    "image: {size: [32, 32]}",
    "labels: {}\n    images:\n      photo: {size: [32, 32]}\n"
    "      mask: {from: 'masks/{stem}.png', like: photo, mode: index}",
)

OF_DATA: Final = (
    in_train(
        "has photos without masks",
        config=MASKED,
        says=(
            "7: images.mask.from: 8 of 8 files that the pattern names are not in '…/data': 'masks/0000.png', "
            "'masks/0001.png', 'masks/0002.png'; correct the pattern, or set root to the folder of these files"
        ),
        do="Add the masks, or correct the pattern; `root` is the folder that it is relative to.",
    ),
    in_train(
        "let a mask follow an image that is not there",
        config=MASKED.replace("like: photo", "like: foto"),
        says="7: images.mask.like: found 'foto', which is no image of this stream; did you mean 'photo'?",
        do="Write the name of the other image, as it stands above its keys.",
    ),
    in_train(
        "named a column for a mask, but a folder has none",
        config=MASKED.replace("'masks/{stem}.png'", "mask"),
        says="7: images.mask.from: a folder has no column 'mask'; use a pattern, such as masks/{stem}.png",
        do="Write a pattern, or use a table.",
    ),
    in_train(
        "named a folder that is not there",
        config=GOOD.replace("path: data", "path: dta/train"),
        says="3: source.path: there is no '…/dta/train'; the nearest folder that exists is '…'; correct the path",
        do="Correct the path; it is relative to the configuration.",
    ),
    in_train(
        "named a table where a folder is wanted",
        config=GOOD.replace("path: data", "path: all.csv"),
        says=(
            "3: source.path: '…/all.csv' is a file, but kind folder needs a folder; for a table that lists "
            "files, use kind table"
        ),
        do="Use kind: table.",
    ),
    in_table(
        "named a folder where a table is wanted",
        config=TABLE.replace("path: all.csv", "path: data"),
        says=(
            "3: source.path: '…/data' is a folder, but kind table needs a file; give the path of a file, or "
            "use kind folder"
        ),
        do="Name the file, or use kind: folder.",
    ),
    in_train(
        "named an empty folder",
        config=PHOTOS,
        prepare=lambda place: (place / "photos").mkdir(),
        says=(
            "3: source.path: no images in '…/photos'; looked for … in it and in 0 sub-folders; correct the path or put "
            "images there"
        ),
        do="Put images there, or correct the path.",
    ),
    in_train(
        "named a folder of images in formats that streamd does not read",
        config=PHOTOS,
        says=(
            "3: source.path: no images in '…/photos'; looked for … in it and in 0 sub-folders; it holds other files: 2 "
            ".heic, 1 .svg; correct the path or put images there"
        ),
        do="Convert them to JPEG or PNG.",
        files=only("1.heic", "2.heic", "logo.svg"),
    ),
    in_train(
        "left images next to the folders of the classes",
        says=(
            "3: source.path: '…/data' holds both 1 image ('stray.jpg') and 2 sub-folders ('cat', 'dog'); a "
            "folder must be flat or have one sub-folder per class: move the images into sub-folders, move the "
            "sub-folders elsewhere, or write labels: {} to serve all images without labels"
        ),
        do="Move them into the folder of their class, or do without labels.",
        files={"data/stray.jpg": b"x"},
    ),
    in_train(
        "were not allowed to read the images",
        prepare=lock,
        unprivileged=True,
        says=(
            "3: source.path: user … is not allowed to read '…/data/cat'; give that user permission to read it, or run "
            "streamd as a user that has this permission"
        ),
        do="chmod or chown the folder, or start streamd as its owner.",
    ),
    in_train(
        "linked to an image outside of the folder",
        prepare=link_out,
        says=(
            "3: source.path: the link '…/data/cat/link.jpg' points to '…/elsewhere.jpg', outside '…/data'; "
            "give a folder that holds both the link and its target, or copy the files"
        ),
        do="Name a folder that holds both, or copy the file.",
    ),
    in_train(
        "left a link to a file that is gone",
        prepare=link_nowhere,
        says=(
            "3: source.path: the link '…/data/cat/link.jpg' points to a file that does not exist; remove or "
            "fix the link"
        ),
        do="Remove the link.",
    ),
    in_train(
        "wanted labels from a folder without sub-folders",
        config=FLAT + "    labels: {label: category}\n",
        says=(
            "6: labels: a flat folder has no labels, but the configuration asks for: label; make one "
            "sub-folder for each class, use kind table with a table of labels, or write labels: {}"
        ),
        prepare=flatten,
        do="Make one sub-folder for each class, or use kind: table.",
    ),
    in_train(
        "wanted two labels from a folder",
        config=GOOD + "    labels: {animal: category, age: float}\n",
        says=(
            "6: labels: a folder gives one label, the name of the sub-folder, but the configuration asks for: "
            "animal, age; keep one, or use kind table with a table of labels"
        ),
        do="Keep one, or use kind: table.",
    ),
    in_train(
        "listed classes that the folders do not have",
        config=LABELLED,
        says=(
            "6: labels.label: 'dog' (sub-folder 'dog') is not one of the configured classes cat, bird; add it "
            "to classes, or correct it in the data"
        ),
        do="Add the class, or rename the folder.",
    ),
    Mistake(
        "listed the classes of two streams in different orders",
        config=TWO,
        says=(
            "streamd: config.yaml:6: streams.validation.labels.label: the classes [dog, cat] differ from the "
            "classes [cat, dog] of streams.train.labels.label; labels with the same name share one list of "
            "classes: make the lists equal, or rename one label"
        ),
        do="Make the lists equal: class 0 must mean the same in both streams.",
    ),
    Mistake(
        "asked for whole batches and had too few images",
        says=(
            "streamd: config.yaml:2: streams.train: 8 samples cannot fill one batch of 64, and drop_remainder is true; "
            "set drop_remainder: false or a smaller batch_size"
        ),
        do="Set a smaller batch_size.",
        config=GOOD.replace("batch_size: 4", "batch_size: 64\n    drop_remainder: true"),
    ),
    in_table(
        "named a table that is not there",
        files={"all.csv": None},
        says="3: source.path: there is no '…/all.csv'; the nearest folder that exists is '…'; correct the path",
        do="Correct the path.",
    ),
    in_table(
        "named a spreadsheet",
        config=TABLE.replace("all.csv", "all.xlsx"),
        files={"all.xlsx": b"PK\3\4"},
        says=(
            "3: source.path: '…/all.xlsx' does not have the suffix of a table; streamd reads .csv, .tsv, .tab, "
            ".parquet, .pq; save the table as one of these"
        ),
        do="Save it as CSV.",
    ),
    in_table(
        "saved the table in Latin-1 or Windows-1252",
        config=TABLE.replace("angle: float", "animal: category"),
        says=(
            "3: source.path: '…/all.csv', line 3, is not valid UTF-8: byte 0xe4; it looks like Latin-1 or "
            "Windows-1252, in which the line reads 'cat/0001.jpg,Käfer': add encoding: cp1252 under source, or save "
            "the file as UTF-8: iconv -f CP1252 -t UTF-8 all.csv > utf8-all.csv"
        ),
        do="If the message shows the line correctly, add `encoding: cp1252` to `source`.",
        files={"all.csv": "path,animal\ncat/0000.jpg,cat\ncat/0001.jpg,Käfer\n".encode("latin-1")},
    ),
    in_table(
        "saved the table as UTF-16 without a byte order mark",
        says=(
            "3: source.path: '…/all.csv' contains bytes of value 0, as UTF-16 without a byte order mark does; "
            "it looks like utf-16-le: add encoding: utf-16-le under source, or save the file as UTF-8: "
            "iconv -f UTF-16-LE -t UTF-8 all.csv > utf8-all.csv"
        ),
        do="Add `encoding: utf-16-le` under `source`, or save the table as UTF-8.",
        files={"all.csv": "path,angle\ncat/0000.jpg,0.5\n".encode("utf-16-le")},
    ),
    in_table(
        "gave an encoding that does not exist",
        config=TABLE.replace("root: data", "root: data, encoding: cp1525"),
        says=(
            "3: source.encoding: found 'cp1525'; use a text encoding that Python knows, such as cp1252; did "
            "you mean 'cp1252'?"
        ),
        do="Use the encoding that the message suggests.",
    ),
    in_table(
        "gave a column of file names that the table does not have",
        config=TABLE.replace("image: path", "image: paht"),
        says=("3: source.image: '…/all.csv' has no column 'paht'; its columns are: path, angle; did you mean 'path'?"),
        do="Use the column that the message suggests.",
    ),
    in_table(
        "named a column for a label, but the table does not have that column",
        config=TABLE.replace("angle", "angel"),
        says=(
            "4: labels.angel: '…/all.csv' has no column 'angel'; its columns are: path, angle; did you mean 'angle'?"
        ),
        do="Use the column that the message suggests, or add `from: COLUMN` to the label.",
    ),
    in_table(
        "named a separator by its name",
        config=TABLE.replace("root: data", "root: data, separator: semicolon"),
        says='3: source.separator: found \'semicolon\'; use ",", ";", "|" or tab; did you mean \';\'?',
        do="Write the character itself, in quotes.",
    ),
    in_table(
        "separated the columns by semicolons, but the header and all lines also contain commas",
        files=rows("path;angle,left", "cat/0000.jpg;0,5"),
        says=(
            "3: source.image: '…/all.csv' has no column 'path'; streamd split its lines at ',' and found the columns: "
            "path;angle, left; its header also contains ';': if ';' separates the columns, add separator: ';' under "
            "source"
        ),
        do="Add `separator: ';'` under `source`.",
    ),
    in_table(
        "saved a table whose separator is unclear",
        files=rows("path;angle|left", "cat/0000.jpg;0.5|1"),
        says=(
            "3: source.path: the cells of '…/all.csv' may be separated by ';' or '|'; add the right one under "
            "source, such as separator: ';'"
        ),
        do="Add `separator: ';'` under `source`.",
    ),
    in_table(
        "wrote decimal commas in quotes",
        files=rows("path,angle", 'cat/0000.jpg,"0,5"'),
        says=(
            "4: labels.angle: all.csv, line 2: column 'angle' holds '0,5', which is not a number; add decimal: ',' "
            "under source if numbers have decimal commas, or use type category"
        ),
        do="Add `decimal: ','` to `source`. You do not need this key where semicolons or tabs separate the cells.",
    ),
    in_table(
        "wrote a word for a missing value among the numbers of classes",
        config=TABLE.replace("angle: float", "kind: category"),
        files=rows("path,kind", "cat/0000.jpg,0", "cat/0001.jpg,1", "dog/0000.jpg,nan"),
        says=(
            "4: labels.kind: all.csv, line 4: column 'kind' holds 'nan', which stands for a missing value in a column "
            "of numbers; add the value, or remove the row, or list all classes under classes if it is one of them"
        ),
        do="Write the class, or remove the row. In a column of names, such a word is a class, and `check` names it.",
    ),
    in_table(
        "wrote a list into a cell where one class is wanted",
        config=TABLE.replace("angle: float", "animals: category"),
        files=rows("path,animals", "cat/0000.jpg,\"['cat', 'dog']\"", "dog/0000.jpg,\"['dog']\""),
        says=(
            "4: labels.animals: all.csv, line 2: column 'animals' holds \"['cat', 'dog']\", a list in brackets (also "
            "line 3); write the name of one class, or use type tags for any number of classes a row"
        ),
        do="Use type: tags, which reads such lists.",
    ),
    in_table(
        "wrote some cells of tags as lists and others not",
        config=TABLE.replace("angle: float", "animals: tags"),
        files=rows("path,animals", "cat/0000.jpg,\"['cat', 'dog']\"", "dog/0000.jpg,dog"),
        says=(
            "4: labels.animals: all.csv, line 3: column 'animals' holds 'dog', which is not a list such as "
            "\"['cat', 'dog']\" (all.csv, line 2); write all cells in one way, such as cat|dog"
        ),
        do="Write all cells in one way.",
    ),
    in_train(
        "wrote numbers with decimal commas into a list",
        config=LISTED,
        files={"list.txt": "data/cat/0000.jpg 1,5\ndata/cat/0001.jpg 2,25\n"},
        says=(
            "4: labels.angle: list.txt, line 1: label 'angle' holds '1,5', whose comma may be a decimal comma or "
            "separate two numbers, as in every line of the list; add decimal: ',' under source for one number, or "
            "decimal: '.' for two"
        ),
        do="Add `decimal: ','` to `source`. Numbers such as -0,5 or 1,05 leave no doubt, and need no key.",
    ),
    in_train(
        "named a Parquet table whose column holds the pictures themselves",
        config=TABLE.replace("all.csv", "all.parquet"),
        prepare=write_pictures_into_table,
        says=(
            "3: source.image: column 'path' of '…/all.parquet' holds the pictures themselves, as bytes, and not the "
            "names of files; write each picture into a file and its name into a column, or pack them into tar shards "
            "and use kind tar"
        ),
        do="Write the pictures into files, or into tar shards.",
    ),
    in_table(
        "had several faults in one table",
        files=rows("path,angle", "cat/0000.jpg", "cat/0404.jpg,1", "cat/0001.jpg,left", "cat/0002.jpg,right"),
        says=(
            "3: source.path: all.csv, line 2 has 1 cell where the first line has 2: 'cat/0000.jpg'; add the "
            "cells that are missing, or remove the line\n"
            "4: labels.angle: all.csv, line 4: column 'angle' holds 'left', which is not a number (also line 5 "
            "'right'); correct it, or use type category\n"
            "3: source.root: 1 of 3 files named in all.csv is not in '…/data': all.csv, line 3, "
            "'cat/0404.jpg'; add the missing file, or remove its row"
        ),
        do="Correct every place that the message names. It shows the first ten mistakes of each kind at once.",
    ),
    in_table(
        "left the table empty",
        files={"all.csv": ""},
        says="3: source.path: '…/all.csv' is empty; its first line has to name the columns",
        do="Write the table again.",
    ),
    in_table(
        "left the table without rows",
        files=rows("path,angle"),
        says="3: source.path: '…/all.csv' has column names but no rows; add one row for each sample",
        do="Add rows.",
    ),
    in_table(
        "had a row with too many cells",
        says=(
            "3: source.path: all.csv, line 3 has 3 cells where the first line has 2: 'cat/0001.jpg,0,5'; put quotes "
            "around cells that hold the separator"
        ),
        do="Put quotes around the cell with the comma.",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0001.jpg,0,5"),
    ),
    in_table(
        "had text where numbers are wanted",
        says=(
            "4: labels.angle: all.csv, line 3: column 'angle' holds 'left', which is not a number; correct it, "
            "or use type category"
        ),
        do="Correct the cell, or use type: category.",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0001.jpg,left"),
    ),
    in_table(
        "left a cell empty",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0001.jpg,"),
        says=("4: labels.angle: all.csv, line 3: column 'angle' has no value; add the value, or remove the row"),
        do="Fill it, or leave the row out.",
    ),
    in_table(
        "had fractions where whole numbers are wanted",
        config=TABLE.replace("float", "int"),
        says=(
            "4: labels.angle: all.csv, line 3 holds 0.1 (also …), which is not a whole number; use type float for "
            "fractions"
        ),
        do="Use type: float.",
    ),
    in_table(
        "set root to a folder that the names are not relative to",
        config=TABLE.replace("root: data", "root: data/cat"),
        says=(
            "3: source.root: all.csv names 8 files, such as 'cat/0000.jpg', 'cat/0001.jpg', 'cat/0002.jpg', "
            "but none of them is in '…/data/cat'; some are in '…/data': set root to that folder"
        ),
        do="Set root as the message says.",
    ),
    in_table(
        "had rows whose files are missing",
        says=(
            "3: source.root: 2 of 3 files named in all.csv are not in '…/data': all.csv, line 3, "
            "'cat/0404.jpg' (also line 4 'dog/0404.jpg'); add the missing files, or remove their rows"
        ),
        do="Add the files, or leave the rows out.",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0404.jpg,0.5", "dog/0404.jpg,0.5"),
    ),
    in_table(
        "wrote the name of a file in another case, which some systems do not tell apart",
        says=(
            "3: source.root: 1 of 2 files named in all.csv is not in '…/data': all.csv, line 3, 'cat/0001.JPG'; there "
            "is 'cat/0001.jpg', which differs from 'cat/0001.JPG' only in upper and lower case; write names as their "
            "files have them, or add the missing file, or remove its row"
        ),
        do="Correct the names in the table, or rename the files.",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0001.JPG,0.5"),
    ),
    in_table(
        "had paths from another computer",
        says=(
            "3: source.root: all.csv, line 2 names '/home/ann/data/cat/0000.jpg', which is not in '…/data'; "
            "correct the path, or set root to a folder that holds all the files"
        ),
        do="Make the paths relative to root.",
        files=rows("path,angle", "/home/ann/data/cat/0000.jpg,0.5"),
    ),
    Mistake(
        "had Windows paths with a drive",
        config=TABLE,
        says=(
            "… W streamd.sources: all.csv: 1 name has backslashes; they are read as slashes\nstreamd: config.yaml:3: "
            "streams.train.source.root: all.csv names 1 file, 'C:/data/cat/0000.jpg', which is not in '…/data'; set "
            "root to the folder that the names are relative to"
        ),
        do="Make the paths relative to root.",
        files=rows("path,angle", r"C:\data\cat\0000.jpg,0.5"),
    ),
    in_table(
        "left the suffixes of the file names out",
        files=rows("path,angle", "cat/0000,0.5"),
        says=(
            "3: source.root: all.csv names 1 file, 'cat/0000', which is not in '…/data'; with .jpg added to "
            "the name, the file is in '…/data': write whole file names into the table"
        ),
        do="Write whole file names into the table.",
    ),
    in_table(
        "had a class that is not listed",
        says=(
            "4: labels.side: 'rihgt' (all.csv, line 3) is not one of the configured classes left, right; add "
            "it to classes, or correct it in the data; did you mean 'right'?"
        ),
        do="Correct the cell, or add the class.",
        config=TABLE.replace("angle: float", "side: {type: category, classes: [left, right]}"),
        files=rows("path,side", "cat/0000.jpg,left", "cat/0001.jpg,rihgt"),
    ),
    Mistake(
        "put a picture of four bands among photos",
        says=(
            "train: 1 unreadable file: cat/bands.tif: a TIFF of 4 channels (grey; whole numbers of 8 bits), which "
            "Pillow does not read: use mode: raw, or save it as grey, RGB or RGBA of 8 bits"
        ),
        do="Write `mode: raw` with its `channels` and `dtype`, or save three of the bands as RGB.",
        command="streamd check --config config.yaml",
        status=1,
        prepare=add_bands,
        printed=True,
    ),
)
