"""The bytes choose the decoder, and bad bytes of any kind raise an error with a reason."""

from __future__ import annotations

import contextlib
import random
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.smooth_pictures import decoded

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import BadImageError, decode_image

IMAGE = ImageSpec(32, 48, 3)
PROBES = sorted((each.name, each.read_bytes()) for each in files("streamd.decode").joinpath("probes").iterdir())
SOUND = [data for _, data in PROBES]
MAGIC = [
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x10\x00\x00\x00WEBP", b"BM", b"GIF89a", b"II*\x00", b"MM\x00*"),
    *(b"P6 ", b"P2\n", b"\0\0\0\x14ftypavif"),
]


@pytest.mark.parametrize("data", [b"%PDF-1.7\n", b"", bytes(64), b"hello"], ids=["pdf", "empty", "zeros", "text"])
def test_data_that_are_no_image_leave_the_row_unchanged(data: bytes) -> None:
    row = np.full(IMAGE.shape, 77, dtype=np.uint8)
    with pytest.raises(BadImageError):
        decode_image(data, row, IMAGE)
    assert (row == 77).all()


@pytest.mark.parametrize("magic", MAGIC)
def test_random_bytes_after_a_valid_signature_are_bad(magic: bytes) -> None:
    rng = random.Random(1)  # noqa: S311 - noise, not a secret
    for length in (0, 1, 20, 500):
        with pytest.raises(BadImageError, match=r"damaged|more than"):
            decoded(magic + rng.randbytes(length), IMAGE)


@pytest.mark.parametrize(("name", "data"), PROBES)
def test_a_file_truncated_in_the_middle_is_bad_and_never_half_a_picture(name: str, data: bytes) -> None:
    with pytest.raises(BadImageError, match=r"\w"):
        decoded(data[: len(data) // 2], IMAGE)
    assert decoded(data, IMAGE).shape == IMAGE.shape, name


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SOUND),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    st.sampled_from(["stretch", "crop", "pad"]),
)
def test_damage_anywhere_raises_bad_image_error_or_nothing(
    data: bytes, wounds: list[tuple[float, int]], resize: str
) -> None:
    damaged = bytearray(data)
    for place, value in wounds:
        damaged[int(place * len(data))] = value
    image = ImageSpec(9, 13, 3, resize)  # type: ignore[arg-type]  # sampled from its words
    with contextlib.suppress(BadImageError):
        decoded(bytes(damaged), image)
