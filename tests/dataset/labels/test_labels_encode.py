"""Label values become numbers by rules that any reader can repeat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_labels_tags import place

from streamd.dataset.labels.encode import (
    LabelPlace,
    build_category_label,
    build_number_label,
    build_string_label,
    order_classes,
    parse_configured_classes,
)
from streamd.errors import ConfigError


def numbers_of(*texts: str, fixed: tuple[int | str, ...] | None = None) -> list[int]:
    """What a category makes of one sample a text."""
    levels = sorted(set(texts))
    codes = np.array([levels.index(text) for text in texts], dtype=np.int64)
    values, _ = build_category_label(LabelPlace("animal", "labels.animal", place), levels, codes, fixed)
    return [int(value) for value in values]


@pytest.mark.parametrize(
    ("texts", "classes"),
    [
        (["10", "9", "0"], (0, 9, 10)),
        (["10", "9", "x"], ("9", "10", "x")),
        (["-1", "1", "0"], (-1, 0, 1)),
        (["3.0", "1", "2."], (1, 2, 3)),
        (["007", "1"], ("007", "1")),
        (["1.5", "1"], ("1", "1.5")),
        (["1.5", "1.0"], ("1", "1.5")),
        (["9" * 19, "1"], ("1", "9" * 19)),
        (["1" + "0" * 19, "9" * 19], ("9" * 19, "1" + "0" * 19)),
        (["0", "1", "(none)"], ("0", "1", "(none)")),
        (["0.5", "10", "9"], ("9", "10", "0.5")),
        (["2CV", "500", "Golf"], ("2CV", "500", "Golf")),
        (["é", "z", "Z"], ("Z", "z", "é")),
        (["\U0001f600", "\uffee"], ("\uffee", "\U0001f600")),
    ],
)
def test_whole_numbers_sort_as_numbers_and_all_else_by_bytes(texts: list[str], classes: tuple[int | str, ...]) -> None:
    assert order_classes(texts) == classes


@given(st.sets(st.integers(0, 300), min_size=1))
def test_numbers_from_zero_up_are_their_own_class_numbers(values: set[int]) -> None:
    k = len(values)
    classes = order_classes(str(value) for value in range(k))
    assert all(classes.index(value) == value for value in range(k))


@given(st.sets(st.integers(-300, 10**20), min_size=1), st.sets(st.sampled_from(["unknown", "-", "(none)", "A4", "~"])))
def test_names_move_no_whole_number_and_other_streams_agree(numbers: set[int], names: set[str]) -> None:
    texts = [*map(str, numbers), *names]
    ordered = [str(each) for each in order_classes(texts)]
    assert [int(each) for each in ordered if each not in names] == sorted(numbers)
    assert order_classes(ordered[::-1]) == order_classes(texts)
    counted = [str(number) for number in range(len(numbers) + 1)]
    assert [str(each) for each in order_classes([*names, *counted])][: len(counted)] == counted


def test_two_spellings_of_a_number_make_one_class() -> None:
    assert numbers_of("1", "1.0", "2") == [0, 0, 1]


def test_configured_classes_keep_their_order_and_may_not_repeat_or_be_empty() -> None:
    assert parse_configured_classes(["dog", "cat"], "labels.x") == ("dog", "cat")
    assert parse_configured_classes(["2", 1], "labels.x") == (2, 1)
    with pytest.raises(ConfigError, match="'cat' is listed twice"):
        parse_configured_classes(["cat", "dog", "cat"], "labels.x")
    with pytest.raises(ConfigError, match="class 1 is listed twice"):
        parse_configured_classes(["1.0", 2, 1], "labels.x")
    assert parse_configured_classes(["1.5", "1.0"], "labels.x") == ("1.5", "1")
    with pytest.raises(ConfigError, match="classes is empty"):
        parse_configured_classes([], "labels.x")


def test_an_unknown_class_is_named_with_its_line_and_the_near_one() -> None:
    says = (
        r"'dgo' \(line 3\) is not one of .* cat, dog; add it to classes, or correct it in the data; did you mean 'dog'"
    )
    with pytest.raises(ConfigError, match=says):
        numbers_of("cat", "dgo", fixed=("cat", "dog"))


def test_numbers_carry_mean_and_standard_deviation() -> None:
    values, spec = build_number_label(LabelPlace("angle", "labels.angle", place), "float", np.array([0.0, 1.0, 2.0]))
    assert values.dtype == "float32"
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert spec.mean == 1.0
    assert spec.std == pytest.approx((2 / 3) ** 0.5)
    values, spec = build_number_label(LabelPlace("count", "labels.count", place), "int", np.array([2**60 + 1, 3]))
    assert values.tolist() == [2**60 + 1, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_float_that_is_not_finite_is_refused_with_its_line(value: float) -> None:
    with pytest.raises(ConfigError, match=r"labels\.angle: line 3 holds .* not a finite number"):
        build_number_label(LabelPlace("angle", "labels.angle", place), "float", np.array([0.0, value]))


@pytest.mark.parametrize("value", [1.5, np.nan])
def test_an_int_that_is_not_whole_is_refused_with_all_its_lines(value: float) -> None:
    with pytest.raises(ConfigError, match=r"line 2 holds .* \(also line 4 .*\), which is not a whole number"):
        build_number_label(LabelPlace("count", "labels.count", place), "int", np.array([value, 1.0, value]))


@pytest.mark.parametrize("value", [np.inf, 2.0**63, -1e300])
def test_an_int_beyond_64_bits_is_refused_with_its_line(value: float) -> None:
    with pytest.raises(ConfigError, match=r"line 3 holds .*, which is not a number that int64 can hold"):
        build_number_label(LabelPlace("count", "labels.count", place), "int", np.array([1.0, value]))


def test_a_string_is_as_wide_as_the_longest_text_in_bytes() -> None:
    values, spec = build_string_label(LabelPlace("caption", "labels.caption", place), ["käse".encode(), b"", b"ab"])
    assert (values.dtype.str, spec.text_bytes, spec.dtype) == ("|S5", 5, "S5")
    assert [value.decode() for value in values] == ["käse", "", "ab"]
    values, spec = build_string_label(LabelPlace("caption", "labels.caption", place), [b"", b""])
    assert (values.tolist(), spec.text_bytes, spec.dtype) == ([b"", b""], 0, "S1")


def test_a_string_beyond_the_bound_is_refused_with_its_line() -> None:
    assert build_string_label(LabelPlace("caption", "labels.caption", place), [b"x" * 1024])[1].text_bytes == 1024
    with pytest.raises(
        ConfigError, match=r"labels\.caption: line 3 holds a text of 1025 bytes; strings have at most 1024"
    ):
        build_string_label(LabelPlace("caption", "labels.caption", place), [b"", b"x" * 1025])


def test_a_string_with_a_nul_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"line 2 holds a text with a NUL"):
        build_string_label(LabelPlace("caption", "labels.caption", place), [b"a\0"])
