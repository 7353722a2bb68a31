"""Pictures of other makers have the pixels that the libraries of their formats read, and the page says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from foreign_page import PAGE, build_page
from support.foreign_pictures import (
    KNOWN_DIFFERENT,
    ForeignPicture,
    Outcome,
    compute_digest,
    list_pictures,
    serve_pictures,
)

pytestmark = pytest.mark.pictures


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[ForeignPicture, Outcome]:
    place: Path = tmp_path_factory.mktemp("pictures")
    return serve_pictures(list_pictures(), place)


def test_the_pictures_are_those_that_are_listed() -> None:
    assert [picture for picture in list_pictures() if compute_digest(picture.path) != picture.digest] == []


def test_more_than_fifty_pictures_have_the_pixels_of_their_libraries(
    outcomes: Mapping[ForeignPicture, Outcome],
) -> None:
    assert sum(outcome.is_equal for outcome in outcomes.values()) > 50


def test_pictures_differ_from_pillow_only_where_its_transparent_level_is_another(
    outcomes: Mapping[ForeignPicture, Outcome],
) -> None:
    assert {picture.name for picture, outcome in outcomes.items() if outcome.different} == KNOWN_DIFFERENT.keys()


def test_each_mode_is_compared_with_several_pictures(outcomes: Mapping[ForeignPicture, Outcome]) -> None:
    counts = Counter(mode for outcome in outcomes.values() for mode in outcome.equal)

    assert counts.keys() == {"RGB", "RGBA", "index", "raw"}
    assert min(counts.values()) >= 10


def test_the_page_lists_what_is_equal_and_what_is_refused(outcomes: Mapping[ForeignPicture, Outcome]) -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(outcomes)
