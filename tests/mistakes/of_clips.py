"""Mistakes in clips, whose frames are the pictures of several rows of a table."""

from __future__ import annotations

from functools import partial
from typing import Final

from mistake import GOOD, TABLE, Mistake, in_train

_IMAGE: Final = "image: {size: [32, 32]}"
_CLIP: Final = "image: {size: [32, 32], frames: {by: drive, order: frame, offsets: [-1, 0]}}"
CLIPS: Final = TABLE.replace(_IMAGE, _CLIP).replace("path: all.csv", "path: frames.csv").replace("{angle: float}", "{}")
ROWS: Final = [f"{kind}/000{number}.jpg,{kind}s,{number}" for kind in ("cat", "dog") for number in range(4)]


def write_table(*changes: tuple[str, str]) -> dict[str, str | bytes | None]:
    """Returns the table of two drives of four frames each, in which some text is another one."""
    text = "\n".join(["path,drive,frame", *ROWS, ""])
    for before, after in changes:
        text = text.replace(before, after)
    return {"frames.csv": text}


of_rows = partial(Mistake, config=CLIPS)


def said_of(key: str, text: str) -> str:
    return f"streamd: config.yaml:5: streams.train.image.frames{key}: {text}"


OF_CLIPS: Final[tuple[Mistake, ...]] = (
    in_train(
        "wanted clips of a folder",
        config=GOOD.replace(_IMAGE, _CLIP),
        says=(
            "4: image.frames: a folder has no columns that say which pictures follow each other; use kind table, with "
            "a column for drive and one for frame"
        ),
        do="Write a table with a row for each picture: its file, its sequence and its place in it.",
    ),
    of_rows(
        "wrote the same number twice into a sequence",
        files=write_table(("cat/0002.jpg,cats,2", "cat/0002.jpg,cats,1")),
        says=said_of(
            ".order",
            "frames.csv, line 4 has the same frame as frames.csv, line 3, in the same drive, so the order of their "
            "frames is not clear; remove one of them, or choose another column",
        ),
        do="Correct the number, or remove the row that is there twice.",
    ),
    of_rows(
        "gave each row a sequence of its own",
        config=CLIPS.replace("by: drive", "by: path"),
        files=write_table(),
        says=said_of(
            ".by",
            "each row has a value of its own in column 'path', so no clip has a neighbour; choose the column that is "
            "equal within a sequence, such as the drive or the video",
        ),
        do="Name the column of the drive, the video or the patient.",
    ),
    of_rows(
        "misspelt a column of clips",
        config=CLIPS.replace("order: frame", "order: frme"),
        files=write_table(),
        says=said_of(".order", "…; did you mean 'frame'?"),
        do="Write the column's name as the table has it.",
    ),
    of_rows(
        "mixed numbers and words in the order of frames",
        files=write_table(("cat/0003.jpg,cats,3", "cat/0003.jpg,cats,last")),
        says=said_of(
            ".order",
            "column 'frame' has numbers, but frames.csv, line 5 has 'last'; write numbers into all rows, or texts of "
            "equal length",
        ),
        do="Write a number into each row.",
    ),
    of_rows(
        "wanted longer clips than any sequence",
        config=CLIPS.replace("offsets: [-1, 0]", "offsets: [-9, 0], edge: drop"),
        files=write_table(),
        says=said_of(
            "",
            "no row has all of its frames, since no sequence of column 'drive' is as long as the offsets [-9, 0] "
            "reach; use edge: repeat, or smaller offsets",
        ),
        do="Use smaller offsets, or `edge: repeat`, which shows the nearest picture instead.",
    ),
    in_train(
        "wanted boxes of a clip",
        config=CLIPS.replace("labels: {}", "labels: {boxes: {type: boxes, max: 2}}"),
        says=(
            "4: labels.boxes.of: image has frames, and boxes lie in one picture; name an image without frames, or "
            "leave the label out"
        ),
        do="Give the boxes an image of their own: the same column, without `frames`.",
    ),
    Mistake(
        "packed a stream of clips",
        config=CLIPS,
        files=write_table(),
        says=(
            "streamd: streams.train.image.frames: a pack of clips is not in this version; pack a stream of its own "
            "without frames"
        ),
        do="Pack a stream without `frames`: it keeps each picture once, and clips would hold it several times.",
        command="streamd pack --config config.yaml train packed --format tar",
    ),
)
