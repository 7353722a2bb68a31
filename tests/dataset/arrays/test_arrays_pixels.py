"""Arrays of images are recognized by their shape; a range of pixel values is never guessed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamd.dataset.arrays.pixels import (
    can_copy_unconverted,
    can_hold_images,
    format_range_warning,
    inspect_image_array,
)
from streamd.dataset.manifest.types import StorageFormat
from streamd.errors import ConfigError


def inspected(array: Any, **settings: Any) -> tuple[tuple[int, int, int], StorageFormat]:
    return inspect_image_array(
        "key: it", array.shape, array.dtype, StorageFormat("s", "/x", **settings), lambda: array[:2]
    )


@pytest.mark.parametrize(
    ("shape", "served", "channels_first"),
    [
        ((2, 4, 5), (4, 5, 1), False),
        ((2, 4, 5, 1), (4, 5, 1), False),
        ((2, 4, 5, 3), (4, 5, 3), False),
        ((2, 3, 5, 3), (3, 5, 3), False),
        ((2, 3, 4, 5), (4, 5, 3), True),
        ((2, 1, 4, 5), (4, 5, 1), True),
    ],
    ids=str,
)
def test_channels_are_last_where_they_can_be_and_first_otherwise(
    shape: tuple[int, ...], served: tuple[int, int, int], channels_first: bool
) -> None:
    array = np.zeros(shape, np.uint8)
    assert inspected(array) == (served, StorageFormat("s", "/x", "|u1", None, channels_first))
    assert can_hold_images(array.shape, array.dtype)
    assert can_copy_unconverted(inspected(array)[1]) is not channels_first


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (
            (2, 60),
            "holds uint8 (2, 60); it looks like labels; an array of images has the shape (n, height, width, channels)",
        ),
        ((2, 2, 4, 5, 3), "(2, 2, 4, 5, 3); an array of images has the shape (n, height, width, channels)"),
        ((0, 4, 5, 3), "(0, 4, 5, 3); an array of images has the shape (n, height, width, channels)"),
        ((2, 4, 5, 4), "(2, 4, 5, 4); images have 1 channel or 3: leave the other channels out"),
    ],
    ids=str,
)
def test_an_array_of_another_shape_holds_no_images(shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        inspected(np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    ("numbers", "dtype", "advice"),
    [
        (
            [0, 0.5],
            "f4",
            "found values from 0 to 0.5 in the first 2 images, but pixels are from 0 to 255: write range: [0, 1]",
        ),
        ([-0.9, 1], "f8", "write range: [-1, 1]"),
        ([0, 254.5], "f4", "write range: [0, 255]"),
        ([0, 0], "i1", "it holds int8 (2, 1, 1); found values from 0 to 0 "),
        ([0, 60000], "u2", "write range: [0, 65535]"),
        ([-3.5, 2.5], "f4", "write range: [-4, 3]"),
        ([np.nan, 1.0], "f4", "found values from 1 to 1 "),
        ([np.nan, np.nan], "f4", "found no numbers in the first 2 images"),
        ([-np.inf, 1.0], "f4", "found values from 1 to 1 "),
    ],
    ids=str,
)
def test_numbers_without_a_range_are_refused_with_the_likely_one(numbers: list[float], dtype: str, advice: str) -> None:
    array = np.array(numbers, dtype).reshape(2, 1, 1)
    with pytest.raises(ConfigError) as caught:
        inspected(array)
    assert advice in str(caught.value)
    assert inspected(array, range=(0.0, 1.0))[1].range == (0.0, 1.0)


@pytest.mark.parametrize("dtype", ["S4", "U4", "c8", "M8[s]", "O", [("a", "f4"), ("b", "i2")]])
def test_arrays_of_other_than_numbers_are_refused(dtype: Any) -> None:
    array = np.zeros((2, 4, 5, 3), dtype)
    assert not can_hold_images(array.shape, array.dtype)
    with pytest.raises(ConfigError, match=r"pixels are numbers|rows of any length"):
        inspected(array, range=(0.0, 1.0))


@pytest.mark.parametrize(
    ("numbers", "bounds", "said"),
    [
        (
            np.array([0, 1, 250, 255], np.uint8),
            (0, 1),
            (
                "found values from 0 to 255 in the first 4 images, of which 50% lie beyond range [0, 1] .*; unless "
                "this is intended, remove the key range"
            ),
        ),
        (
            np.array([-1, 0.5, 1, np.nan], np.float32),
            (0, 1),
            "33% lie beyond range [0, 1] .*; unless this is intended, correct range",
        ),
    ],
    ids=["uint8", "float"],
)
def test_a_range_that_excludes_many_numbers_causes_a_warning(
    numbers: npt.NDArray[Any], bounds: tuple[float, float], said: str
) -> None:
    told = format_range_warning(numbers, bounds)
    assert told is not None
    assert re.search(said.replace("[", r"\["), told)


@pytest.mark.parametrize(
    "few", [[0.0, 1.0], [*np.linspace(0, 1, 95), *[9.0] * 5], [np.nan]], ids=["none", "few", "nan"]
)
def test_a_few_values_outside_the_range_cause_no_warning(few: list[float]) -> None:
    assert format_range_warning(np.array(few), (0, 1)) is None
