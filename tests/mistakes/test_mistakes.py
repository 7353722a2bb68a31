"""Each mistake of docs/mistakes.md, made as its user would make it: what streamd says, and the exit status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mistake import Mistake
from mistakes_page import CHAPTERS, PAGE, page
from of_arrays import OF_ARRAYS
from of_boxes import OF_BOXES
from of_clips import OF_CLIPS
from of_configuration import OF_CONFIGURATION
from of_data import OF_DATA
from of_image_arrays import OF_IMAGE_ARRAYS
from of_lmdb import OF_LMDB
from of_masks import OF_MASKS
from of_shards import OF_SHARDS
from situations import arrange, run_apart, run_code, run_here, served

pytestmark = pytest.mark.long

ALL = [each for _, mistakes in CHAPTERS for each in mistakes]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a daemon with a stream for everything that may go wrong."""
    with served(tmp_path_factory.mktemp("d")) as daemon:
        yield daemon.endpoint


def is_made_apart(mistake: Mistake) -> bool:
    """Whether it takes a process of its own."""
    return mistake.unprivileged or mistake.without is not None


def pattern(says: str) -> str:
    return re.escape(says).replace("…", ".*")


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(each, marks=[pytest.mark.long] if is_made_apart(each) else []) for each in ALL],
    ids=lambda mistake: str(mistake.did).replace(" ", "-"),
)
def test_a_mistake_is_answered_with_what_the_page_says(
    mistake: Mistake,
    tmp_path: Path,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = endpoint if mistake.running else None
    prepared = arrange(mistake, tmp_path, found)
    if mistake.command.startswith("client."):
        ended = run_code(mistake, endpoint)
    elif is_made_apart(mistake):
        ended = run_apart(mistake, tmp_path, found)
    else:
        ended = run_here(mistake, tmp_path, found, monkeypatch, capfd)
    assert re.fullmatch(pattern(mistake.says), "\n".join(ended.lines)), "\n".join(ended.lines)
    assert ended.status == mistake.status
    del prepared


def test_there_are_fifty_mistakes_and_no_two_are_the_same() -> None:
    assert len(ALL) >= 50
    assert len({each.did for each in ALL}) == len(ALL)


def test_every_mistake_of_the_configuration_is_reported_with_file_and_line() -> None:
    unplaced = [
        each.did
        for each in (
            *OF_CONFIGURATION,
            *OF_DATA,
            *OF_MASKS,
            *OF_ARRAYS,
            *OF_IMAGE_ARRAYS,
            *OF_LMDB,
            *OF_SHARDS,
            *OF_BOXES,
            *OF_CLIPS,
        )
        if not re.search(r"config\.yaml:\d+:", each.says)
    ]
    assert unplaced == [
        "named a configuration that is not there",
        "named the folder that the configuration is in",
        "named an image instead of the configuration",
        "put a picture of four bands among photos",
        "saved a mask in another size than its photo",
        "did not let a mask follow its photo",
        "saved a mask with more classes than its dtype holds",
        "saved a mask in colours",
        "expected other channels than an image has",
        "packed a stream of views",
        "saved a class number that a mask does not hold",
        "left boxes without area and outside of their pictures in the data",
        "gave a picture of a COCO file the size of another one",
        "packed a stream of clips",
    ]


def test_the_page_is_what_the_mistakes_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run  scripts/docs mistakes"
