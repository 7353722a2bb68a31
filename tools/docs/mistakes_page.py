"""docs/mistakes.md, written from the mistakes that the tests make: `scripts/docs mistakes`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mistake import SERVE, Mistake
from of_arrays import OF_ARRAYS
from of_boxes import OF_BOXES
from of_clips import OF_CLIPS
from of_configuration import OF_CONFIGURATION
from of_data import OF_DATA
from of_first_configuration import OF_FIRST_CONFIGURATION
from of_hdf5 import OF_HDF5
from of_image_arrays import OF_IMAGE_ARRAYS
from of_lmdb import OF_LMDB
from of_masks import OF_MASKS
from of_running import OF_RUNNING
from of_shards import OF_SHARDS
from of_transforms import OF_TRANSFORMS

PAGE: Final = Path(__file__).parents[2] / "docs/mistakes.md"

_HEAD: Final = """\
# First-day mistakes

This page lists what you did, what streamd says, and what to do. For each mistake, streamd names the file, the line and
the key. It says what it found and what is allowed, and suggests the nearest name. It reports all mistakes in a file at
once. The exit status is 2 for a mistake, and 1 for a failure or for faults that `streamd check` finds.

Your editor can find many of these mistakes while you type. Save the schema that `streamd schema` prints in a file
next to your configuration, and name that file in the first line, as [config.yaml](../config.yaml) does.

`…` stands for what depends on your machine. Search this page for a word from your error message.

<!-- Written by scripts/docs mistakes from the tests in tests/mistakes, which make every mistake on this page. -->
"""
CHAPTERS: Final = (
    ("Before there is a config.yaml", OF_FIRST_CONFIGURATION),
    ("In config.yaml", OF_CONFIGURATION),
    ("In folders, tables and labels", OF_DATA),
    ("In boxes and points", OF_BOXES),
    ("In masks, several images and views", OF_MASKS),
    ("In clips", OF_CLIPS),
    ("In arrays", (*OF_ARRAYS, *OF_IMAGE_ARRAYS)),
    ("In HDF5 files", OF_HDF5),
    ("In LMDB files", OF_LMDB),
    ("In shards", OF_SHARDS),
    ("In transforms", OF_TRANSFORMS),
    ("When you start and train", OF_RUNNING),
)


def page() -> str:
    return "\n".join([_HEAD, *(_chapter(title, mistakes) for title, mistakes in CHAPTERS)])


def _chapter(title: str, mistakes: Iterable[Mistake]) -> str:
    rows = [f"| {_did(each)} | {_code(each.says)} | {each.do} |" for each in mistakes]
    return "\n".join([f"## {title}", "", "| You … | streamd says | What to do |", "|---|---|---|", *rows, ""])


def _did(mistake: Mistake) -> str:
    return mistake.did if mistake.command == SERVE else f"{mistake.did}: `{mistake.command}`"


def _code(text: str) -> str:
    """Lines of code within a cell of a table, where a bar would end the cell."""
    return "<br>".join(
        f"`{line.strip()}`" if "`" not in line else f"`` {line.strip()} ``"
        for line in text.replace("|", r"\|").split("\n")
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
