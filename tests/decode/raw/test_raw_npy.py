"""Files of np.save as pictures."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from support.stored_numbers import build_numbers, encode_npy

from streamd.decode.raw import RawForm, read_raw_npy
from streamd.decode.resize import BadImageError

NUMBERS = build_numbers(7, 9, 4, "uint16")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_channels_may_be_last_or_first(dtype: str) -> None:
    numbers = build_numbers(7, 9, 4, dtype)
    for stored in (numbers, np.moveaxis(numbers, -1, 0), np.asfortranarray(numbers)):
        found = read_raw_npy(encode_npy(stored), RawForm(4, dtype)).numbers
        assert np.array_equal(found, numbers)


def test_another_byte_order_gives_the_same_numbers() -> None:
    found = read_raw_npy(encode_npy(NUMBERS.astype(">u2")), RawForm(4, "uint16")).numbers
    assert found.dtype.isnative
    assert np.array_equal(found, NUMBERS)


def test_an_array_without_channels_has_one() -> None:
    assert read_raw_npy(encode_npy(NUMBERS[:, :, 0]), RawForm(1, "uint16")).numbers.shape == (7, 9, 1)


@pytest.mark.parametrize(
    ("data", "form", "reason"),
    [
        (encode_npy(NUMBERS), RawForm(5, "uint16"), "4 channels of uint16, but the stream expects 5"),
        (encode_npy(NUMBERS.astype(np.float64)), RawForm(4, "float32"), "4 channels of float64"),
        (encode_npy(NUMBERS[0, 0]), RawForm(4, "uint16"), r"the shape \(4,\): save"),
        (encode_npy(NUMBERS[:0]), RawForm(4, "uint16"), r"the shape \(0, 9, 4\)"),
        (encode_npy(NUMBERS)[:-1], RawForm(4, "uint16"), "truncated"),
        (encode_npy(NUMBERS)[:20], RawForm(4, "uint16"), "its header cannot be read"),
        (encode_npy(NUMBERS).replace(b"(7, 9, 4)", b"(7,9,4**)"), RawForm(4, "uint16"), "its header cannot be read"),
        (encode_npy(np.array([[None]])), RawForm(1, "uint8"), "1 channel of object"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, form: RawForm, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        read_raw_npy(data, form)


def test_a_header_that_claims_a_huge_array_is_refused_unallocated() -> None:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (20_000, 20_000, 4)})
    with pytest.raises(BadImageError, match="more than 100,000,000"):
        read_raw_npy(file.getvalue(), RawForm(4, "uint8"))
