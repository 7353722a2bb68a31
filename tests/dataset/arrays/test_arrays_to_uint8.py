"""Numbers become pixels by one rule: clip, scale, round half to even; a row with NaN is bad."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from streamd.dataset.arrays.store import NOT_A_NUMBER, PixelConverter
from streamd.dataset.manifest.types import ArrayFiles, StorageFormat

SHAPE = (2, 5, 3)


def converted(
    rows: Any, held: list[bool] | None = None, shape: tuple[int, int, int] = SHAPE, **stored: Any
) -> tuple[Any, list[bool], PixelConverter]:
    """`rows` as pixels; which are good."""
    conversion = PixelConverter(
        ArrayFiles(shape, (0, len(rows)), (0,), StorageFormat("s", "/x", rows.dtype.str, **stored))
    )
    images = np.full((len(rows), *shape), 0xAA, np.uint8)
    raw = conversion.prepare_read_buffer(images)
    raw[...] = rows
    good = conversion.convert_rows(raw, images, np.arange(len(rows)) + 10, np.array(held or [True] * len(rows)))
    return images, good.tolist(), conversion


def exactly(value: float, low: float, high: float) -> int:
    """The same by whole numbers; Python rounds half to even."""
    share = (Fraction(min(max(value, low), high)) - Fraction(low)) / (Fraction(high) - Fraction(low))
    return round(share * 255)


@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [
        ("<f4", (0.0, 1.0)), (">f4", (-1.0, 1.0)), ("<f8", (0.0, 255.0)), ("<f2", (0.0, 2.0)), ("<u2", (0.0, 65535.0)),
        ("<i4", (-510.0, 510.0)), ("|u1", (0.0, 1.0)), ("|b1", (0.0, 1.0)),
    ],
    ids=str,
)  # fmt: skip
def test_pixels_are_those_of_exact_arithmetic(dtype: str, bounds: tuple[float, float]) -> None:
    low, high = bounds
    steps = np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), 28)
    halves = [low, (low + high) / 2]  # 127.5, which becomes 128
    limits = (0, np.inf) if np.dtype(dtype).kind in "ub" else (-np.inf, np.inf)
    rows = np.clip([*steps, *halves], *limits).astype(dtype).reshape(1, *SHAPE)
    images, good, _ = converted(rows, range=bounds)
    assert images.reshape(-1).tolist() == [exactly(float(each), low, high) for each in rows.reshape(-1)]
    assert good == [True]


def test_halves_round_to_even() -> None:
    values = np.arange(30, dtype=np.float32).reshape(1, *SHAPE) / 2
    images, _, _ = converted(values, range=(0.0, 255.0))
    assert images.reshape(-1)[:8].tolist() == [0, 0, 1, 2, 2, 2, 3, 4]


def test_infinite_numbers_are_clipped_and_a_row_with_nan_is_bad_with_the_reason() -> None:
    rows = np.zeros((3, *SHAPE), np.float32)
    rows[0, 0, 0] = np.inf, -np.inf, 0.5
    rows[1, 1, 4, 2] = np.nan
    images, good, conversion = converted(rows, range=(0.0, 1.0))
    assert images[0, 0, 0].tolist() == [255, 0, 128]
    assert good == [True, False, True]
    assert conversion.faults == {11: NOT_A_NUMBER}


def test_rows_that_are_not_held_are_neither_converted_nor_checked() -> None:
    rows = np.full((2, *SHAPE), np.nan, np.float32)
    images, good, conversion = converted(rows, [False, False], range=(0.0, 1.0))
    assert good == [False, False]
    assert conversion.faults == {}
    assert (images == 0xAA).all()


@pytest.mark.parametrize("bounds", [None, (0.0, 255.0)], ids=["as it is", "with a range"])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_that_come_first_are_put_last(channels: int, bounds: tuple[float, float] | None) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (4, channels, 2, 5), dtype=np.uint8)
    images, good, _ = converted(rows, shape=(2, 5, channels), channels_first=True, range=bounds)
    assert np.array_equal(images, rows.transpose(0, 2, 3, 1))
    assert good == [True] * 4


def test_pixels_that_need_no_conversion_are_read_into_the_target() -> None:
    conversion = PixelConverter(ArrayFiles(SHAPE, (0, 4), (0,), None))
    images = np.zeros((4, *SHAPE), np.uint8)
    assert conversion.prepare_read_buffer(images) is images
    assert not conversion.is_needed
    assert conversion.row_bytes == 30
