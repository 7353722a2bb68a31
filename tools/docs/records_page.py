"""Writes docs/records.md and its pictures: the worked examples of samples that are more than one image.

scripts/docs records
"""

from __future__ import annotations

import io
import os
import tempfile
import textwrap
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.record_examples import EXAMPLES_OF_RECORDS, FOLDER, RecordExample, prepare_example

import streamd
from streamd.decode.drawn_picture import draw_sheet

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = DOCS / "records.md"
PICTURES: Final = DOCS / "records"
_ROWS: Final = 6
_WIDTH: Final = 120
_NO_CODE: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

_HEAD: Final = """\
# Samples that are more than one image

Each of these examples is a folder of [examples/records](../examples/records). `make_data.py` draws small data to learn
from, `config.yaml` serves them, `ours.py` trains a small Keras model on the stream, and `theirs.py` does the same with
tf.data and nothing of streamd. `model.py` is the same for both. A test trains each of them, asks that the model is far
better than a guess, and compares the batches of both programs.

```sh
python make_data.py && streamd serve --config config.yaml &
python ours.py
```

Lines of code, without blank lines, comments and docstrings:

"""


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the page says of one example."""

    title: str
    text: str


CHAPTERS: Final = {
    "segmentation": Chapter(
        "Segmentation: a photo and its mask",
        "The mask says `like: photo`, so each crop is drawn once for both, and `mode: index` keeps the numbers of its "
        "palette. A small U-Net learns it; `fit_data` gives the mask as the target by itself.",
    ),
    "detection": Chapter(
        "Detection: boxes that follow the crop",
        "The annotations are read as COCO and as YOLO have them. Boxes are moved, clipped and, where less than "
        "`min_visible` of one is left, dropped with the crop of their picture.",
    ),
    "simclr": Chapter(
        "SimCLR: two views of each photo",
        "`views: 2` draws two crops from one decode. The loss brings both views of a photo together, and needs no "
        "labels.",
    ),
    "cameras": Chapter(
        "Three cameras, one steering angle",
        "Each column of the table is an image of the sample. A bad picture makes its sample bad, and says which it "
        "was.",
    ),
    "clip": Chapter(
        "A clip of three frames",
        "`frames` shows each row with earlier rows of its drive: the picture tells how the road bends, and only the "
        "clip tells whether the bend grows. Each picture is read once for all clips of a batch that a worker makes.",
    ),
    "tiles": Chapter(
        "Tiles of 16 bits and four channels",
        "`mode: raw` reads the numbers of the TIFF as they are, and `normalize` scales them in the model.",
    ),
}


def main() -> None:
    """Draws the pictures, and writes the page."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for example in EXAMPLES_OF_RECORDS:
            draw_picture(example, Path(folder) / example.name)
    PAGE.write_text(build_page())
    print(PAGE)


def draw_picture(example: RecordExample, place: Path) -> None:
    """Draws the first rows of an example's stream."""
    place.mkdir()
    with prepare_example(example, place), streamd.connect(os.environ["STREAMD_ENDPOINT"]) as client:
        batch = client.batch("train", 0, 0)
        names = client.names("train", batch.sample_ids)
        sheet = draw_sheet(batch, dict(zip(batch.sample_ids.tolist(), names, strict=True)), _ROWS)
    sheet.quantize(128).save(PICTURES / f"{example.name}.png", optimize=True)


def build_page() -> str:
    """Returns the text of the page."""
    table = "| example | streamd: `config.yaml` and `ours.py` | tf.data: `theirs.py` |\n|---|---|---|\n"
    table += "".join(
        f"| [{example.name}](#{build_anchor(CHAPTERS[example.name].title)}) "
        f"| {count_lines(example, 'config.yaml')} + {count_lines(example, 'ours.py')} "
        f"| {count_lines(example, 'theirs.py')} |\n"
        for example in EXAMPLES_OF_RECORDS
    )
    chapters = "".join(build_chapter(example) for example in EXAMPLES_OF_RECORDS)
    return f"{_HEAD}{table}\n<!-- Written by scripts/docs records. -->\n{chapters}"


def build_chapter(example: RecordExample) -> str:
    chapter, folder = CHAPTERS[example.name], f"../examples/records/{example.name}"
    config = (example.folder / "config.yaml").read_text()
    return (
        f"\n## {chapter.title}\n\n{textwrap.fill(chapter.text, _WIDTH)}\n\n"
        f"![{chapter.title}](records/{example.name}.png)\n\n"
        f"```yaml\n{config}```\n\n"
        f"[ours.py]({folder}/ours.py), [model.py]({folder}/model.py), [theirs.py]({folder}/theirs.py)\n"
    )


def build_anchor(title: str) -> str:
    """Returns the name that a page gives to a heading."""
    return "".join(char for char in title.lower().replace(" ", "-") if char.isalnum() or char == "-")


def count_lines(example: RecordExample, name: str) -> int:
    """Returns the lines of code of a file."""
    text = (FOLDER / example.name / name).read_text()
    if name.endswith(".yaml"):
        return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())
    return len(find_code_lines(text))


def find_code_lines(text: str) -> set[int]:
    """Returns the numbers of the lines of a program that have code on them."""
    lines: set[int] = set()
    is_statement_begun = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            is_statement_begun = False
        elif token.type not in _NO_CODE and not (token.type == tokenize.STRING and not is_statement_begun):
            is_statement_begun = True
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


if __name__ == "__main__":
    main()
