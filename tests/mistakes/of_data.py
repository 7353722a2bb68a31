"""Mistakes in what the configuration names: folders, tables, labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

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


def rows(*lines: str) -> dict[str, str | bytes | None]:
    """all.csv with these lines."""
    return {"all.csv": "".join(f"{line}\n" for line in lines)}


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

in_table = partial(in_train, config=TABLE)

OF_DATA: Final = (
    in_train(
        "named a folder that is not there",
        config=GOOD.replace("path: data", "path: dta/train"),
        says="3: source.path: there is no '…/dta/train'; the nearest folder that exists is '…'; correct the path",
        do="Correct the path; it is relative to the configuration.",
    ),
    in_train(
        "named a table where a folder is wanted",
        config=GOOD.replace("path: data", "path: all.csv"),
        says="3: source.path: '…/all.csv' is a file; kind folder wants a folder, a list of files is kind table",
        do="Use kind: table.",
    ),
    in_table(
        "named a folder where a table is wanted",
        config=TABLE.replace("path: all.csv", "path: data"),
        says="3: source.path: '…/data' is a folder; kind table wants a file, kind folder takes folders",
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
        "named a folder of formats that are not read",
        config=PHOTOS,
        says=(
            "3: source.path: no images in '…/photos'; looked for … in it and in 0 sub-folders; it holds other files: 2 "
            ".heic, 1 .svg; correct the path or put images there"
        ),
        do="Convert them to JPEG or PNG.",
        files=only("1.heic", "2.heic", "logo.svg"),
    ),
    in_train(
        "left images beside the folders of the classes",
        says=(
            "3: source.path: '…/data' holds 1 image ('stray.jpg') beside 2 sub-folders ('cat', 'dog'); a folder is "
            "either flat or has one sub-folder a class: move the images into sub-folders, or the sub-folders "
            "elsewhere, or write labels: {} to take all images as they are, without labels"
        ),
        do="Move them into the folder of their class, or do without labels.",
        files={"data/stray.jpg": b"x"},
    ),
    in_train(
        "were not allowed to read the images",
        prepare=lock,
        unprivileged=True,
        says=(
            "3: source.path: user … may not read '…/data/cat'; give that user the right to, or run streamd as one that "
            "has it"
        ),
        do="chmod or chown the folder, or start streamd as its owner.",
    ),
    in_train(
        "linked to an image outside of the folder",
        prepare=link_out,
        says=(
            "3: source.path: the link '…/data/cat/link.jpg' leads to '…/elsewhere.jpg', out of '…/data'; name a folder "
            "that holds both, or copy the files"
        ),
        do="Name a folder that holds both, or copy the file.",
    ),
    in_train(
        "left a link to a file that is gone",
        prepare=link_nowhere,
        says="3: source.path: the link '…/data/cat/link.jpg' leads nowhere; remove or mend it",
        do="Remove the link.",
    ),
    in_train(
        "wanted labels of a folder without sub-folders",
        config=FLAT + "    labels: {label: category}\n",
        says=(
            "6: labels: a flat folder has no labels, but label is wanted; make one sub-folder a class, use kind table "
            "with a file of labels, or write labels: {}"
        ),
        prepare=flatten,
        do="Make one sub-folder a class, or use kind: table.",
    ),
    in_train(
        "wanted two labels of a folder",
        config=GOOD + "    labels: {animal: category, age: float}\n",
        says=(
            "6: labels: a folder gives one label, the name of the sub-folder, but animal, age are wanted; keep one, or "
            "use kind table with a file of labels"
        ),
        do="Keep one, or use kind: table.",
    ),
    in_train(
        "listed classes that the folders do not have",
        config=LABELLED,
        says=(
            "6: labels.label: 'dog' (sub-folder 'dog') is not among the configured classes cat, bird; add it to "
            "classes or correct it there"
        ),
        do="Add the class, or rename the folder.",
    ),
    Mistake(
        "listed the classes of two streams in another order",
        config=TWO,
        says=(
            "streamd: config.yaml:6: streams.validation.labels.label: classes dog, cat differ from cat, dog of "
            "streams.train.labels.label; labels of one name share one list: make them equal or rename one label"
        ),
        do="Make the lists equal: 0 has to mean the same to both.",
    ),
    Mistake(
        "asked for whole batches and had too few images",
        says=(
            "streamd: config.yaml:2: streams.train: 8 samples cannot fill one batch of 64, and drop_remainder is true; "
            "set drop_remainder: false or a smaller batch_size"
        ),
        do="Take a smaller batch_size.",
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
            "3: source.path: '…/all.xlsx' is no table by its suffix; known are .csv, .tsv, .tab, .parquet, .pq; save "
            "it as one of these"
        ),
        do="Save it as CSV.",
    ),
    in_table(
        "saved the table in Latin-1 or Windows-1252",
        config=TABLE.replace("angle: float", "animal: category"),
        says=(
            "3: source.path: '…/all.csv', line 3, is no UTF-8 text: byte 0xe4; it looks like Latin-1 or Windows-1252, "
            "in which the line reads 'cat/0001.jpg,Käfer': write encoding: cp1252 into the source, or save it as "
            "UTF-8: iconv -f CP1252 -t UTF-8 all.csv > utf8-all.csv"
        ),
        do="Write `encoding: cp1252` into the source if the line reads as it should.",
        files={"all.csv": "path,animal\ncat/0000.jpg,cat\ncat/0001.jpg,Käfer\n".encode("latin-1")},
    ),
    in_table(
        "saved the table as UTF-16 without a byte order mark",
        says=(
            "3: source.path: '…/all.csv' holds zero bytes, as UTF-16 without a mark does; it looks like utf-16-le: "
            "write encoding: utf-16-le into the source, or save it as UTF-8: iconv -f UTF-16-LE -t UTF-8 all.csv > "
            "utf8-all.csv"
        ),
        do="Write `encoding: utf-16-le` into the source, or save it as CSV in UTF-8.",
        files={"all.csv": "path,angle\ncat/0000.jpg,0.5\n".encode("utf-16-le")},
    ),
    in_table(
        "named an encoding that is none",
        config=TABLE.replace("root: data", "root: data, encoding: cp1525"),
        says=(
            "3: source.encoding: found 'cp1525'; use an encoding of text that Python knows, such as cp1252; did you "
            "mean 'cp1252'?"
        ),
        do="Take the encoding that the message proposes.",
    ),
    in_table(
        "named a column for the file names that is not there",
        config=TABLE.replace("image: path", "image: paht"),
        says="3: source.image: '…/all.csv' has no column 'paht'; did you mean 'path'?; it has: path, angle",
        do="Take the column that the message proposes.",
    ),
    in_table(
        "named a column for a label that is not there",
        config=TABLE.replace("angle", "angel"),
        says="4: labels.angel: '…/all.csv' has no column 'angel'; did you mean 'angle'?; it has: path, angle",
        do="Take the column that the message proposes, or say from: COLUMN.",
    ),
    in_table(
        "named a separator by its name",
        config=TABLE.replace("root: data", "root: data, separator: semicolon"),
        says='3: source.separator: found \'semicolon\'; use ",", ";", "|" or tab; did you mean \';\'?',
        do="Write the mark itself, in quotes.",
    ),
    in_table(
        "separated the columns by semicolons, with as many commas in the header and in each line",
        files=rows("path;angle,left", "cat/0000.jpg;0,5"),
        says=(
            "3: source.image: '…/all.csv' has no column 'path'; its cells are taken to be separated by ',', and its "
            "header holds ';', too: if that separates them, write separator: ';' into the source; it has: path;angle, "
            "left"
        ),
        do="Write the separator into the source.",
    ),
    in_table(
        "saved a table whose separator is unclear",
        files=rows("path;angle|left", "cat/0000.jpg;0.5|1"),
        says=(
            "3: source.path: '…/all.csv' may have its cells separated by ';' and '|'; say by which, such as separator: "
            "';' in the source"
        ),
        do="Write the separator into the source.",
    ),
    in_table(
        "wrote decimal commas in quotes",
        files=rows("path,angle", 'cat/0000.jpg,"0,5"'),
        says=(
            "4: labels.angle: all.csv, line 2: column 'angle' holds '0,5', which is no number; write decimal: ',' into "
            "the source for decimal commas, or use type category"
        ),
        do="Write `decimal: ','` into the source; where semicolons or tabs separate cells, it needs no key.",
    ),
    in_table(
        "had several faults in one table",
        files=rows("path,angle", "cat/0000.jpg", "cat/0404.jpg,1", "cat/0001.jpg,left", "cat/0002.jpg,right"),
        says=(
            "3: source.path: all.csv, line 2 has 1 cell where the first line has 2: 'cat/0000.jpg'; add the cells that "
            "are missing, or take the line out\n"
            "4: labels.angle: all.csv, line 4: column 'angle' holds 'left', which is no number (also line 5 'right'); "
            "correct it, or use type category\n"
            "3: source.root: 1 of 3 files of all.csv is not in '…/data': all.csv, line 3, 'cat/0404.jpg'; add them or "
            "leave their rows out"
        ),
        do="Correct what the lines name: they come at once, the first ten of each kind.",
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
        says="3: source.path: '…/all.csv' names its columns and has no rows; add samples",
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
            "4: labels.angle: all.csv, line 3: column 'angle' holds 'left', which is no number; correct it, or use "
            "type category"
        ),
        do="Correct the cell, or use type: category.",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0001.jpg,left"),
    ),
    in_table(
        "left a cell empty",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0001.jpg,"),
        says="4: labels.angle: all.csv, line 3: column 'angle' is empty; fill it or leave the row out",
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
        "set root to a folder that the names do not begin at",
        config=TABLE.replace("root: data", "root: data/cat"),
        says=(
            "3: source.root: all.csv names 8 files, none of which is in '…/data/cat': 'cat/0000.jpg', 'cat/0001.jpg', "
            "'cat/0002.jpg'; some are in '…/data': set root to it"
        ),
        do="Set root as the message says.",
    ),
    in_table(
        "had rows whose files are missing",
        says=(
            "3: source.root: 2 of 3 files of all.csv are not in '…/data': all.csv, line 3, 'cat/0404.jpg' (also line 4 "
            "'dog/0404.jpg'); add them or leave their rows out"
        ),
        do="Add the files, or leave the rows out.",
        files=rows("path,angle", "cat/0000.jpg,0.5", "cat/0404.jpg,0.5", "dog/0404.jpg,0.5"),
    ),
    in_table(
        "had paths of another computer",
        says=(
            "3: source.root: all.csv, line 2 names '/home/ann/data/cat/0000.jpg', which is no file in '…/data'; "
            "correct it, or set root to a folder that holds all the files"
        ),
        do="Make the paths relative to root.",
        files=rows("path,angle", "/home/ann/data/cat/0000.jpg,0.5"),
    ),
    Mistake(
        "had Windows paths with a drive",
        config=TABLE,
        says=(
            "… W streamd.sources: all.csv: 1 name has backslashes, read as slashes\n"
            "streamd: config.yaml:3: streams.train.source.root: all.csv names 1 file, none of which is in '…/data': "
            "'C:/data/cat/0000.jpg'; set root to the folder that the names begin at"
        ),
        do="Make the paths relative to root.",
        files=rows("path,angle", r"C:\data\cat\0000.jpg,0.5"),
    ),
    in_table(
        "left the suffixes of the file names out",
        files=rows("path,angle", "cat/0000,0.5"),
        says=(
            "3: source.root: all.csv names 1 file, none of which is in '…/data': 'cat/0000'; with .jpg behind the "
            "names some are in '…/data': write whole names into the table"
        ),
        do="Write whole file names into the table.",
    ),
    in_table(
        "had a class that is not listed",
        says=(
            "4: labels.side: 'rihgt' (all.csv, line 3) is not among the configured classes left, right; did you mean "
            "'right'?; add it to classes or correct it there"
        ),
        do="Correct the cell, or add the class.",
        config=TABLE.replace("angle: float", "side: {type: category, classes: [left, right]}"),
        files=rows("path,side", "cat/0000.jpg,left", "cat/0001.jpg,rihgt"),
    ),
)
