"""Label values become numbers by rules that any reader can repeat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ConfigError
from streamd.sources.labels import category, configured, in_order, number, number_type, share_classes
from streamd.sources.wanted import Scanned


def place(row: int) -> str:
    return f"line {row + 2}"


def stream_of(*texts: str, fixed: tuple[int | str, ...] | None = None) -> Scanned:
    """Samples with one category `animal`, a sample a text."""
    levels = sorted(set(texts))
    codes = np.array([levels.index(text) for text in texts], dtype=np.int64)
    values, spec = category("animal", levels, codes, fixed, place, "labels.animal")
    empty = np.zeros(len(texts), dtype=np.int64)
    names = frozenset(["animal"] if fixed else [])
    return Scanned(Path("/"), [b"x"] * len(texts), empty, empty, {"animal": values}, {"animal": spec}, names)


@pytest.mark.parametrize(
    ("texts", "classes"),
    [
        (["10", "9", "0"], (0, 9, 10)),
        (["10", "9", "x"], ("10", "9", "x")),
        (["-1", "1", "0"], (-1, 0, 1)),
        (["3.0", "1", "2."], (1, 2, 3)),
        (["007", "1"], ("007", "1")),
        (["1.5", "1"], ("1", "1.5")),
        (["9" * 19, "1"], ("1", "9" * 19)),
        (["é", "z", "Z"], ("Z", "z", "é")),
        (["\U0001f600", "\uffee"], ("\uffee", "\U0001f600")),
    ],
)
def test_whole_numbers_sort_as_numbers_and_all_else_by_bytes(texts: list[str], classes: tuple[int | str, ...]) -> None:
    assert in_order(texts) == classes


@given(st.sets(st.integers(0, 300), min_size=1))
def test_values_from_zero_up_to_k_keep_their_value(values: set[int]) -> None:
    k = len(values)
    classes = in_order(str(value) for value in range(k))
    assert all(classes.index(value) == value for value in range(k))


def test_two_spellings_of_a_number_are_one_class() -> None:
    assert stream_of("1", "1.0", "2").labels["animal"].tolist() == [0, 0, 1]


def test_configured_classes_keep_their_order_and_refuse_doubles_and_nothing() -> None:
    assert configured(["dog", "cat"], "labels.x") == ("dog", "cat")
    assert configured(["2", 1], "labels.x") == (2, 1)
    with pytest.raises(ConfigError, match="'cat' is listed twice"):
        configured(["cat", "dog", "cat"], "labels.x")
    with pytest.raises(ConfigError, match="classes is empty"):
        configured([], "labels.x")


def test_an_unknown_class_is_named_with_its_line_and_the_near_one() -> None:
    with pytest.raises(ConfigError, match=r"'dgo' \(line 3\) is not among .* cat, dog; did you mean 'dog'"):
        stream_of("cat", "dgo", fixed=("cat", "dog"))


def test_numbers_carry_mean_and_standard_deviation() -> None:
    values, spec = number("angle", "float", np.array([0.0, 1.0, 2.0]), place, "labels.angle")
    assert values.dtype == "float32"
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert spec.mean == 1.0
    assert spec.std == pytest.approx((2 / 3) ** 0.5)
    values, spec = number("count", "int", np.array([2**60 + 1, 3]), place, "labels.count")
    assert values.tolist() == [2**60 + 1, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_float_that_is_not_finite_is_refused_with_its_line(value: float) -> None:
    with pytest.raises(ConfigError, match=r"labels\.angle: line 3 holds .* not a finite number"):
        number("angle", "float", np.array([0.0, value]), place, "labels.angle")


@pytest.mark.parametrize("value", [1.5, np.nan, np.inf, 2.0**63])
def test_an_int_that_is_not_whole_is_refused_with_its_line_and_how_many_more(value: float) -> None:
    with pytest.raises(ConfigError, match=r"line 2 holds .* \(and 1 more like it\), which is not a whole number"):
        number("count", "int", np.array([value, 1.0, value]), place, "labels.count")


def test_a_type_that_no_source_makes_is_refused() -> None:
    with pytest.raises(ConfigError, match="type tags is not served"):
        number_type("tags", "labels.x")


def test_streams_with_a_category_of_one_name_share_its_classes() -> None:
    shared = share_classes({"train": stream_of("cat", "dog", "dog"), "validation": stream_of("dog", "bee")})
    assert [scanned.specs["animal"].classes for scanned in shared.values()] == [("bee", "cat", "dog")] * 2
    assert shared["train"].labels["animal"].tolist() == [1, 2, 2]
    assert shared["validation"].labels["animal"].tolist() == [2, 0]
    assert shared["train"].specs["animal"].counts == (0, 1, 2)


def test_sharing_numbers_with_names_makes_names_of_all() -> None:
    shared = share_classes({"a": stream_of("2", "10"), "b": stream_of("x")})
    assert shared["a"].specs["animal"].classes == ("10", "2", "x")
    assert shared["a"].labels["animal"].tolist() == [1, 0]


def test_a_configured_class_list_holds_for_the_streams_without_one() -> None:
    shared = share_classes({"a": stream_of("cat"), "b": stream_of("dog", fixed=("dog", "cat", "ant"))})
    assert shared["a"].specs["animal"].classes == ("dog", "cat", "ant")
    assert shared["a"].labels["animal"].tolist() == [1]


def test_a_class_that_the_configured_list_lacks_is_refused_with_both_streams() -> None:
    with pytest.raises(ConfigError, match=r"streams\.a\.labels\.animal: .*'dgo'.*streams\.b.*did you mean 'dog'"):
        share_classes({"a": stream_of("dgo"), "b": stream_of("dog", fixed=("dog", "cat"))})


def test_configured_lists_that_differ_are_refused() -> None:
    one, other = stream_of("cat", fixed=("cat", "dog")), stream_of("cat", fixed=("dog", "cat"))
    with pytest.raises(ConfigError, match=r"cat, dog.*differ|differ.*cat, dog"):
        share_classes({"a": one, "b": other})


def test_streams_that_agree_are_left_as_they_are() -> None:
    one = stream_of("cat", "dog")
    shared = share_classes({"a": one, "b": replace(one)})
    assert shared["a"].labels["animal"] is one.labels["animal"]
