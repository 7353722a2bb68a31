"""The findings about labels, when copies of a file contradict each other, and similar classes."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from streamd.cli.check.labels import (
    ClassUse,
    LabelConflict,
    LabelFinding,
    SimilarClasses,
    build_label_finding,
    find_label_conflicts,
    find_label_warnings,
    format_similar_classes,
    group_similar_names,
)
from streamd.core.spec import LabelSpec, LabelType
from streamd.dataset.manifest.types import LabelValues

NONE = np.zeros(0, dtype=np.int64)


def list_warnings(name: str, finding: LabelFinding, *, is_shuffled: bool) -> list[str]:
    return list(find_label_warnings(name, finding, is_shuffled=is_shuffled))


def category(**counts: int) -> LabelFinding:
    return build_label_finding(
        LabelSpec("label", "category", classes=tuple(counts), counts=tuple(counts.values())), NONE
    )


def number(*values: float) -> LabelFinding:
    return build_label_finding(LabelSpec("angle", "float"), np.array(values, dtype=np.float32))


def test_classes_keep_their_order_and_their_counts() -> None:
    finding = category(owl=2, cat=8)
    assert list(finding.classes.items()) == [("owl", 2), ("cat", 8)]
    assert finding.imbalance == 4


def test_a_class_without_images_does_not_enter_the_imbalance() -> None:
    assert category(owl=2, cat=8, emu=0).imbalance == 4
    assert category(owl=0, cat=0).imbalance is None


def test_numbers_have_a_range_a_mean_and_a_deviation() -> None:
    finding = number(1, 2, 3, 6)
    assert (finding.least, finding.most, finding.mean) == (1, 6, 3)
    assert finding.std == pytest.approx(3.5**0.5)
    assert finding.classes == {}


def test_a_string_is_only_named() -> None:
    assert build_label_finding(LabelSpec("name", "string"), np.array([b"a"])) == LabelFinding("string", {})


def test_an_imbalance_of_three_or_more_is_a_warning() -> None:
    assert list_warnings("label", category(cat=299, owl=100), is_shuffled=True) == []
    (remark,) = list_warnings("label", category(owl=100, cat=1200), is_shuffled=True)
    assert remark == (
        'cat has 12 times the images of owl; to even this out, use fit_data(stream, class_weight="balanced") '
        "or streamd-train --class-weight balanced"
    )


def test_a_stream_that_is_not_shuffled_gets_no_advice_for_training() -> None:
    warnings = list_warnings("label", category(owl=100, cat=1200), is_shuffled=False)
    assert warnings == ["cat has 12 times the images of owl"]


def test_tags_have_no_imbalance() -> None:
    tags = build_label_finding(LabelSpec("tags", "tags", classes=("red", "small"), counts=(100, 1)), NONE)
    assert tags.classes == {"red": 100, "small": 1}
    assert list_warnings("tags", tags, is_shuffled=True) == []


def test_classes_without_an_image_are_named() -> None:
    assert list_warnings("label", category(cat=2, dog=2, emu=0), is_shuffled=True) == ["label: no image of 'emu'"]
    (remark,) = list_warnings("label", category(cat=2, dog=2, a=0, b=0, c=0, d=0, e=0, f=0), is_shuffled=True)
    assert remark == "label: no image of 'a', 'b', 'c' and 3 more"


def test_a_class_that_programs_write_for_a_missing_value_is_named() -> None:
    (remark,) = list_warnings("label", category(cat=2, **{"None": 2, "none": 2}), is_shuffled=True)
    assert remark == (
        "label: 'None' is a class, but programs write this for a missing value; if it is one, correct the data"
    )


def test_few_names_among_numbered_classes_are_named_with_their_number() -> None:
    (remark,) = list_warnings("label", category(**{"0": 1, "1": 1, "2": 1, "unknown": 1}), is_shuffled=True)
    assert remark == (
        "label: the classes are whole numbers, but for 1 name: 'unknown' has number 3; if that is no class, correct "
        "the data"
    )
    assert list_warnings("label", category(**{"0": 1, "a": 1, "b": 1}), is_shuffled=True) == []


@pytest.mark.parametrize("finding", [category(cat=5), number(4, 4, 4)])
def test_a_label_with_one_value_is_a_warning(finding: LabelFinding) -> None:
    (remark,) = list_warnings("it", finding, is_shuffled=True)
    assert "there is nothing to" in remark


def conflicts_of(kind: LabelType, values: LabelValues, others: LabelValues | None = None) -> list[LabelConflict]:
    """The conflicts of samples 0 and 1 of `a`, and of sample 0 of `b` if it has values."""
    specs = {"a": {"x": LabelSpec("x", kind)}, "b": {} if others is None else {"x": LabelSpec("x", kind)}}
    columns = {"a": {"x": values}, "b": {} if others is None else {"x": others}}
    return find_label_conflicts([[("a", 0), ("a", 1), ("b", 0)]], specs, columns)


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_copies_with_one_value_do_not_contradict_each_other() -> None:
    assert conflicts_of("category", ints(1, 1), ints(1)) == []


def test_copies_of_different_classes_contradict_each_other_within_a_stream_and_across() -> None:
    assert conflicts_of("category", ints(1, 2)) == [LabelConflict("x", "category", (("a", 0), ("a", 1)))]
    (conflict,) = conflicts_of("category", ints(1, 1), ints(2))
    assert conflict == LabelConflict("x", "category", (("a", 0), ("a", 1), ("b", 0)))


@pytest.mark.parametrize(("second", "expected"), [([0.0, 1.0], 0), ([0.0, 2.0], 1)])
def test_a_vector_differs_when_one_of_its_numbers_does(second: Sequence[float], expected: int) -> None:
    assert len(conflicts_of("float", np.array([[0.0, 1.0], second], dtype=np.float32))) == expected


def test_strings_of_copies_may_differ() -> None:
    assert conflicts_of("string", ints(1, 2)) == []


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["Dog", "cat", "dog", "DOG"], [["Dog", "dog", "DOG"]]),
        (["dog ", "dog", "hot dog", "hot  dog"], [["dog ", "dog"], ["hot dog", "hot  dog"]]),
        (["K\u00e4fer", unicodedata.normalize("NFD", "K\u00e4fer")], [["K\u00e4fer", "Ka\u0308fer"]]),
        (["a", "A", "1", "01", "'b'", "b"], []),
        (["dog", "'dog'", "cat", "cat\u200b", "\u200ecat"], [["dog", "'dog'"], ["cat", "cat\u200b", "\u200ecat"]]),
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
        (("dog", "dog\ufeff"), "characters that do not show"),
        (("dog", '"dog"'), "quotes around them"),
        (("Dog ", "dog"), "case, blanks or how their letters are encoded"),
    ],
)
def test_similar_classes_are_reported_with_examples_and_remedy(names: tuple[str, str], difference: str) -> None:
    uses = [ClassUse(name, count, f"train: {count}.jpg") for count, name in enumerate(names, 1)]
    assert format_similar_classes(SimilarClasses("animal", uses)) == (
        f"animal: {names[0]!r} (1 sample, such as train: 1.jpg) and {names[1]!r} (2 samples, such as train: 2.jpg) "
        f"differ only in {difference}, and are learned as 2 classes; give them one name in the data, or list each in "
        "labels.animal.classes, if they are meant to differ"
    )
