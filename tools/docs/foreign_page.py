"""Serves pictures of other makers, and writes docs/evidence/foreign-pictures.md: `scripts/docs foreign [--list]`."""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from support.foreign_pictures import (
    KNOWN_DIFFERENT,
    LIST,
    PACKAGES,
    ForeignPicture,
    Outcome,
    find_pictures,
    list_pictures,
    serve_pictures,
)

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "foreign-pictures.md"
HEAD: Final = """# Pictures of other makers

{pictures} pictures that nobody here made, out of two packages of Debian:
{packages}.
One daemon serves each of them at its own size, in every mode that suits its kind. **{equal} pictures have exactly the
pixels of Pillow, tifffile or OpenCV in all their modes.** Of the others, {refused} are refused in a mode, with the
sentence below, and {different} differ from Pillow, for the reason below. They do not count.

`RGB` and `RGBA` are compared with what Pillow converts the picture to, `index` with the numbers that Pillow gives,
`raw` with tifffile for a TIFF and with OpenCV for a PNG of 16 bits.

`scripts/docs foreign` wrote this page. The test `tests/system/test_foreign_pictures.py` repeats it.
"""


def build_page(outcomes: Mapping[ForeignPicture, Outcome]) -> str:
    """The whole page."""
    packages = Counter(picture.folder for picture in outcomes)
    head = HEAD.format(
        pictures=len(outcomes),
        packages=" and ".join(f"{count} of {PACKAGES[folder]}" for folder, count in sorted(packages.items())),
        equal=sum(outcome.is_equal for outcome in outcomes.values()),
        refused=sum(bool(outcome.refused) and not outcome.different for outcome in outcomes.values()),
        different=sum(bool(outcome.different) for outcome in outcomes.values()),
    )
    return "\n".join([head, *_list_others(outcomes), "", *_list_equal(outcomes), ""])


def _list_others(outcomes: Mapping[ForeignPicture, Outcome]) -> Iterator[str]:
    yield "## What is refused, and what differs\n"
    yield "| picture | mode | what streamd says, or why it differs |"
    yield "|---|---|---|"
    for picture, outcome in sorted(outcomes.items()):
        for mode, sentence in sorted(outcome.refused.items()):
            yield f"| {picture.name} | {mode} | {sentence} |"
        for mode, difference in sorted(outcome.different.items()):
            reason = KNOWN_DIFFERENT.get(picture.name, "unknown")
            yield f"| {picture.name} | {mode} | {difference}: {reason} |"


def _list_equal(outcomes: Mapping[ForeignPicture, Outcome]) -> Iterator[str]:
    yield "## What is equal\n"
    yield "| package | picture | modes, and whose pixels they are |"
    yield "|---|---|---|"
    for picture, outcome in sorted(outcomes.items()):
        if outcome.is_equal:
            modes = ", ".join(f"{mode}: {library}" for mode, library in sorted(outcome.equal.items()))
            yield f"| {PACKAGES[picture.folder]} | {picture.name} | {modes} |"


def write_list() -> None:
    """Lists the pictures of the unpacked packages anew."""
    with LIST.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("folder", "name", "digest"))
        rows.writerows((picture.folder, picture.name, picture.digest) for picture in find_pictures())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="list the pictures of the packages anew")
    if parser.parse_args().list:
        write_list()
    with tempfile.TemporaryDirectory() as place:
        outcomes = serve_pictures(list_pictures(), Path(place))
    PAGE.write_text(build_page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
