"""Values have the bytes of ml-pyxis, and the offsets of their arrays are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.msgpack import encode

from streamd.dataset.lmdb.pyxis_layout import (
    UnfitValueError,
    ValueTemplate,
    build_sample_key,
    encode_sample,
    find_memory_address,
)

IMAGE = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
WRITTEN = (  # by pyxis.Writer 0.4, put_samples({"y": ..., "X": ..., "name": ...})
    b"\x83\xa1y\xc4'\x84\xc4\x04type\x02\xc4\x05dtype\xa3<f4\xc4\x05shape\x90\xc4\x04data\xc4\x04\x00\x00\x00?"
    b"\xa1X\xc42\x84\xc4\x04type\x02\xc4\x05dtype\xa3|u1\xc4\x05shape\x93\x02\x02\x03\xc4\x04data\xc4\x0c"
    b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\t\n\x0b"
    b"\xa4name\xc4'\x84\xc4\x04type\x02\xc4\x05dtype\xa3<U1\xc4\x05shape\x90\xc4\x04data\xc4\x04a\x00\x00\x00"
)


def sample(image: Any = IMAGE, y: float = 0.5, name: str = "a") -> bytes:
    return encode_sample({"y": np.array(y, np.float32), "X": image, "name": np.array(name)})


def test_a_value_equals_what_ml_pyxis_writes() -> None:
    assert sample() == WRITTEN
    assert build_sample_key(17) == b"0000000017"


def test_an_array_in_another_order_is_written_row_by_row() -> None:
    assert sample(np.asfortranarray(IMAGE)) == WRITTEN


def test_every_array_is_found_with_its_bytes() -> None:
    fields = ValueTemplate.from_value(WRITTEN).fields
    found = {name: WRITTEN[each.start : each.stop] for name, each in fields.items()}
    assert found == {"y": b"\x00\x00\x00?", "X": IMAGE.tobytes(), "name": b"a\x00\x00\x00"}
    assert {name: (each.dtype.str, each.shape) for name, each in fields.items()} == {
        "y": ("<f4", ()), "X": ("|u1", (2, 2, 3)), "name": ("<U1", ()),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (sample(255 - IMAGE, 7, "b"), True),
        (sample(IMAGE.reshape(2, 3, 2)), False),
        (sample(IMAGE.view(np.int8)), False),
        (sample(name="bc"), False),
        (WRITTEN.replace(b"\xa1y", b"\xa1z"), False),
        (WRITTEN[:-1], False),
    ],
    ids=["other data", "another shape", "another dtype", "a longer text", "another name", "truncated"],
)
def test_a_template_fits_values_that_differ_in_their_data_alone(value: bytes, *, fits: bool) -> None:
    assert ValueTemplate.from_value(WRITTEN).matches_value(memoryview(value)) is fits


def test_fields_that_are_not_arrays_are_skipped() -> None:
    text = encode({b"type": 1, b"data": "told"})
    value = encode(
        {"s": text, "n": encode(3), "X": encode({b"type": 2, b"dtype": "|u1", b"shape": [1], b"data": b"x"})}
    )
    assert list(ValueTemplate.from_value(value).fields) == ["X"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\xff\xd8\xff\xe0", "not a msgpack map"),
        (encode({"X": 3}), "not a msgpack map"),
        (encode({"X": encode({b"type": 2, b"dtype": "|u1", b"shape": [3], b"data": b"12"})}), "'X' .* 2 bytes"),
        (encode({"X": encode({b"type": 2, b"dtype": "|u1", b"shape": [-1, -2], b"data": b"12"})}), "'X'"),
        (encode({"X": encode({b"type": 2, b"dtype": "|O", b"shape": [1], b"data": b"12345678"})}), "'X'"),
    ],
)
def test_a_value_of_another_layout_is_refused_with_the_reason(value: bytes, told: str) -> None:
    with pytest.raises(UnfitValueError, match=told):
        ValueTemplate.from_value(value)


def test_an_address_is_where_the_bytes_lie() -> None:
    array = np.arange(5, dtype=np.uint8)
    assert find_memory_address(array.data) == array.ctypes.data
    assert find_memory_address(array.data[3:]) == array.ctypes.data + 3
