"""Packing plain data into JSON and arrays, and unpacking it."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamd.frameworks.keras.resume import DataPacker, UnkeptError, ValueSnapshot, unpack_value
from streamd.limits import MAX_NESTING

pytestmark = pytest.mark.train


def through_json(value: Any) -> Any:
    packer = DataPacker(math)
    return unpack_value(json.loads(json.dumps(packer.pack_value(value))), packer.arrays, math)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1,
        float("-inf"),
        "text",
        [1, [2.5, None]],
        (1, ("a",)),
        {"loss": [0.1], 3: "three", (1, 2): {}},
        {"array": "no tag", "tuple": []},
        math.sqrt,
        np.float32(0.1),
        np.int64(-3),
    ],
    ids=str,
)
def test_plain_data_comes_back_of_its_own_type(value: Any) -> None:
    back = through_json(value)
    assert back == value
    assert type(back) is type(value)


def test_unpacked_arrays_are_copies() -> None:
    weights = [np.arange(3, dtype=np.float16), np.array([[True], [False]])]
    packer = DataPacker(math)
    packed = packer.pack_value(weights)
    back = unpack_value(packed, packer.arrays, math)
    back[0][0] = 9
    assert weights[0].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(back[1], weights[1])


@pytest.mark.parametrize("kind", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {1: inner}])
def test_deep_values_are_restored_and_endless_ones_refused(kind: Callable[[Any], Any]) -> None:
    deep: Any = 1
    for _ in range(MAX_NESTING):
        deep = kind(deep)
    assert through_json(deep) == deep
    endless: list[Any] = [0]
    endless += [kind(endless), endless]
    for value in (kind(deep), endless):
        with pytest.raises(UnkeptError, match="which contains itself or is nested more than 64 levels deep"):
            DataPacker(math).pack_value(value)


def test_a_nan_stays_a_nan() -> None:
    assert math.isnan(through_json(float("nan")))


@pytest.mark.parametrize(
    "value",
    [object(), operator.lt, lambda: 0, {1, 2}, [object()], np.array([None])],
    ids=["object", "function", "lambda", "set", "list", "array"],
)
def test_values_that_are_not_plain_data_are_refused(value: Any) -> None:
    with pytest.raises(UnkeptError):
        DataPacker(math).pack_value(value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1, 2], [1, 2], True),
        ([1, 2], (1, 2), False),
        (float("nan"), float("nan"), True),
        (1, 1.0, False),
        ([np.zeros(2)], [np.zeros(2)], True),
        ([np.zeros(2)], [np.ones(2)], False),
        ([np.zeros(2)], [np.zeros((2, 1))], False),
        (np.zeros(2), np.zeros(2, np.float32), False),
        (object, object, True),
        ({1}, {1}, False),
    ],
)
def test_values_are_the_same_when_their_bits_are(one: Any, other: Any, same: bool) -> None:
    assert ValueSnapshot.from_value(one, math).is_same_value(ValueSnapshot.from_value(other, math)) is same


def test_a_change_in_place_is_seen_in_what_is_plain_data() -> None:
    history: dict[str, list[Any]] = {"loss": [np.zeros(2)]}
    before = ValueSnapshot.from_value(history, math)
    history["loss"][0][1] = 1
    assert not before.is_same_value(ValueSnapshot.from_value(history, math))
