"""The orientation of a JPEG is found in any segment before its pixels, as libjpeg and Pillow find it."""

from __future__ import annotations

from io import BytesIO
from typing import Final

import pytest
from golden_files import exif
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from support.smooth_pictures import apart, decoded, encoded, smooth

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import BadImageError

START, SCAN = b"\xff\xd8", b"\xff\xda"
UPRIGHT: Final = smooth(24, 32)
IMAGE: Final = ImageSpec(24, 32, 3)
FILES: Final = {
    "baseline": encoded(UPRIGHT, quality=98, subsampling=0),
    "optimized": encoded(UPRIGHT, quality=98, subsampling=0, optimize=True),
    "progressive": encoded(UPRIGHT, quality=98, subsampling=0, progressive=True),
    "grey": encoded(UPRIGHT.convert("L"), quality=98),
}


def segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(data) + 2).to_bytes(2) + data


def told(orientation: int) -> bytes:
    """The segment that says which way up a picture is."""
    return segment(0xE1, exif(orientation).tobytes())


def with_before(data: bytes, place: int, added: bytes) -> bytes:
    """The file with something before its segment at `place`; before the scan, where it has no more."""
    at = len(START)
    for _ in range(place):
        end = _end_of_segment(data, at)
        if end is None:
            break
        at = end
    return data[:at] + added + data[at:]


def _end_of_segment(data: bytes, at: int) -> int | None:
    """Where the segment ends that begins here, fill bytes being its own; None of the scan."""
    while data[at : at + 2] == b"\xff\xff":
        at += 1
    return None if data[at : at + 2] == SCAN else at + 2 + int.from_bytes(data[at + 2 : at + 4])


def as_pillow_shows(data: bytes) -> Image.Image:
    with Image.open(BytesIO(data)) as picture:
        return ImageOps.exif_transpose(picture).convert("RGB").resize((IMAGE.width, IMAGE.height))


@pytest.mark.fault("29", "orientation 3 behind every segment of a JPEG")
@pytest.mark.parametrize("kind", FILES)
def test_the_orientation_is_found_after_every_segment(kind: str) -> None:
    plain = FILES[kind]
    for place in range(9):  # no file here has more segments
        data = with_before(plain, place, told(3))
        assert apart(decoded(data, IMAGE)[::-1, ::-1], decoded(plain, IMAGE)) <= 2, f"before segment {place}"


def test_the_orientation_is_found_after_fill_bytes() -> None:
    data = with_before(FILES["baseline"], 1, b"\xff\xff\xff" + told(3))
    assert apart(decoded(data, IMAGE), as_pillow_shows(data)) <= 2


def test_an_orientation_within_other_data_turns_nothing() -> None:
    plain = FILES["baseline"]
    for wrapped in (segment(0xFE, told(3)), segment(0xE2, SCAN + told(3))):
        assert apart(decoded(with_before(plain, 3, wrapped), IMAGE), decoded(plain, IMAGE)) == 0


def test_exif_data_of_several_segments_are_joined() -> None:
    block = exif(3).tobytes()
    halves = segment(0xE1, block[:20]) + segment(0xE1, b"Exif\0\0" + block[20:])
    data = with_before(FILES["baseline"], 2, halves)
    assert apart(decoded(data, IMAGE), as_pillow_shows(data)) <= 2


def test_too_many_segments_are_bad() -> None:
    with pytest.raises(BadImageError, match="more than 65,536 segments before its pixels"):
        decoded(with_before(FILES["baseline"], 2, segment(0xFE, b"") * 70_000), IMAGE)


OTHERS: Final = st.sampled_from(
    [
        segment(0xFE, b"a comment"),
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
        segment(0xE2, b"ICC_PROFILE\0\1\1" + SCAN + bytes(9)),
        segment(0xED, told(6)),
        segment(0xFE, b""),
    ]
)
FILLS: Final = st.integers(0, 3).map(lambda count: b"\xff" * count)
TOLD: Final = st.integers(0, 9).map(told)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 8), FILLS, OTHERS), max_size=4, unique_by=lambda other: other[2]),
    st.tuples(st.integers(0, 8), FILLS, TOLD),
)
def test_every_arrangement_is_shown_as_pillow_shows_it(
    kind: str, others: list[tuple[int, bytes, bytes]], first: tuple[int, bytes, bytes]
) -> None:
    data = FILES[kind]
    for place, fill, added in [first, *others]:
        data = with_before(data, place, fill + added)
    assert apart(decoded(data, IMAGE), as_pillow_shows(data)) <= 4
