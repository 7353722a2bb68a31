"""Classes whose names differ only by a slip are reported with their samples and the difference."""

from __future__ import annotations

import unicodedata

import pytest

from streamd.cli.check.similar_classes import ClassUse, SimilarClasses, format_similar_classes, group_similar_names


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["Dog", "cat", "dog", "DOG"], [["Dog", "dog", "DOG"]]),
        (["dog ", "dog", "hot dog", "hot  dog"], [["dog ", "dog"], ["hot dog", "hot  dog"]]),
        (["K\u00e4fer", unicodedata.normalize("NFD", "K\u00e4fer")], [["K\u00e4fer", "Ka\u0308fer"]]),
        (["a", "A", "1", "01"], []),
        (["stra\u00dfe", "STRASSE"], [["stra\u00dfe", "STRASSE"]]),
    ],
)
def test_similar_names_differ_only_in_case_blanks_or_encoding(names: list[str], groups: list[list[str]]) -> None:
    assert group_similar_names(names) == groups


@pytest.mark.parametrize(
    ("names", "difference"),
    [
        (("Dog", "dog"), "upper and lower case"),
        (("dog ", "dog"), "blanks"),
        (("\u00e4b", "a\u0308b"), "how their letters are encoded"),
        (("Dog ", "dog"), "case, blanks or how their letters are encoded"),
    ],
)
def test_similar_classes_are_reported_with_examples_and_remedy(names: tuple[str, str], difference: str) -> None:
    uses = [ClassUse(name, count, f"train: {count}.jpg") for count, name in enumerate(names, 1)]
    assert format_similar_classes(SimilarClasses("animal", uses)) == (
        f"animal: {names[0]!r} (1 sample, such as train: 1.jpg) and {names[1]!r} (2 samples, such as train: 2.jpg) "
        f"differ only in {difference}, and are learned as 2 classes; give them one name in the data, or list each in "
        "labels.animal.classes, if that is meant"
    )
