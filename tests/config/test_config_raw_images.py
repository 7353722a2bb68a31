"""`mode: raw`, RGBA and their keys: what goes together, and what is refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.config.load import load_config
from streamd.config.schema import StreamConfig
from streamd.dataset.sources import RawNumbers
from streamd.errors import ConfigError

RAW = {"size": [8, 9], "mode": "raw", "channels": 4, "dtype": "uint16"}
ARRAYS = {"kind": "npy", "path": "x.npy"}


def load_stream(image: dict[str, Any], source: dict[str, Any] | None = None, **keys: Any) -> StreamConfig:
    labels: dict[str, Any] = {} if source is None else {"labels": {}}
    return load_config(
        {"streams": {"s": {"source": source or {"kind": "folder", "path": "d"}, "image": image, **labels, **keys}}}
    ).streams["s"]


def test_raw_keys_are_those_of_the_contract() -> None:
    image = load_stream({**RAW, "range": [0, 10000], "resize": "pad", "fill": 7}).image
    assert (image.mode, image.channel_count, image.dtype, image.range) == ("raw", 4, "uint16", (0.0, 10000.0))
    assert image.filled_with == 7
    assert load_stream({"size": [8, 9], "mode": "RGBA"}).image.channel_count == 4


def test_arrays_are_listed_for_what_the_stream_expects() -> None:
    assert load_stream({**RAW, "size": "stored"}, ARRAYS).listing_request.raw == RawNumbers(4, "uint16")
    assert load_stream(RAW).listing_request.raw is None


def test_numbers_of_raw_images_have_no_bounds_in_normalize() -> None:
    numbers = {"mean": [9000, -1.5, 0.2, 1], "std": [1, 1, 1, 100000]}
    assert load_stream({**RAW, "dtype": "float32"}, normalize=numbers).normalize != "none"
    with pytest.raises(ConfigError, match="each from 0 to 255"):
        load_stream({"size": [8, 9], "mode": "RGBA"}, normalize=numbers)


@pytest.mark.parametrize(
    ("image", "source", "sentence"),
    [
        ({"size": [8, 9], "mode": "raw"}, None, "image.channels: is missing; mode raw needs the number of channels"),
        ({**RAW, "channels": 33}, None, "image.channels: found 33"),
        ({**RAW, "channels": 0}, None, "image.channels: found 0"),
        ({"size": [8, 9], "channels": 3}, None, "image.channels: belongs to mode raw, but mode is RGB; remove it"),
        ({"size": [8, 9], "range": [0, 1]}, None, "image.range: belongs to mode raw"),
        ({"size": [8, 9], "dtype": "uint16"}, None, "image.dtype: pixels of mode RGB are uint8"),
        ({"size": [8, 9], "mode": "index", "dtype": "float32"}, None, "image.dtype: class numbers are uint8 or uint16"),
        ({**RAW, "range": [5, 5]}, None, "image.range: found"),
        ({**RAW, "exact": True}, None, "image.exact: is for JPEG"),
        ({**RAW, "fill": 70000}, None, "image.fill: found 70000; use a number from 0 to 65535, as uint16 holds"),
        ({**RAW, "size": "stored"}, {**ARRAYS, "range": [0, 1]}, "source.range: makes pixels of 8 bits, but mode raw"),
        ({"mode": "RGBA"}, ARRAYS, "image.mode: RGBA is for files; write mode: raw and channels: 4"),
    ],
)
def test_what_does_not_go_together_is_refused(
    image: dict[str, Any], source: dict[str, Any] | None, sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_stream(image, source)
    assert sentence in str(refused.value)
