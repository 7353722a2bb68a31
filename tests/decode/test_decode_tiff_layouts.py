"""TIFF in every layout: served as its numbers say, or refused for what it is, and never with other numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image
from support.smooth_pictures import encoded
from support.tiff_layouts import TiffLayout, write_tiff

from streamd.core.spec import ImageMode, ImageSpec
from streamd.decode.decoders import BadImageError, decode_image

Levels = npt.NDArray[Any]

SIZE: Final = (19, 27)  # rows that end within a byte, tiles that reach beyond the page
# bits, photometric, extra samples, kind of numbers; the samples follow from the photometric.
KINDS: Final = [
    *((bits, white, (), "u") for bits in (1, 2, 4, 8, 12, 16, 24, 32) for white in (0, 1)),
    *((bits, 3, (), "u") for bits in (1, 2, 4, 8)),
    *((bits, 1, (), "i") for bits in (8, 16, 32)),
    *((bits, 1, (), "f") for bits in (16, 32, 64)),
    *((bits, 1, extra, "u") for bits in (8, 16) for extra in ((0,), (2,), (0, 0), (0, 0, 0))),
    *((bits, 2, extra, "u") for bits in (8, 16) for extra in ((), (0,), (1,), (2,), (2, 0))),
    *((bits, 5, (), "u") for bits in (8, 16)),
    *((bits, 2, (), "u") for bits in (2, 4, 12, 32)),
    *((bits, 3, extra, "u") for bits in (8, 16) for extra in ((0,), (2,))),
    (32, 2, (), "f"),
    (8, 2, (), "i"),
]
# What Pillow reads of these kinds, so that they are served in every layout of a page.
SERVED: Final = {
    *((bits, white, (), "u") for bits in (1, 2, 4, 8) for white in (0, 1)),
    *((bits, 3, (), "u") for bits in (1, 2, 4, 8)),
    *((bits, 2, extra, "u") for bits in (8, 16) for extra in ((), (1,), (2,))),
    *((bits, 5, (), "u") for bits in (8, 16)),
    (32, 1, (), "f"),
}
COLOURS: Final = {2: 3, 5: 4}
MODES: Final[tuple[tuple[ImageMode, int], ...]] = (("RGB", 3), ("L", 1), ("RGBA", 4))
SEGMENTS: Final = (None, 7, (16, 16))
PACKINGS: Final = ((1, 1), (5, 1), (5, 2), (8, 1), (8, 2), (32773, 1))


def _list_layouts(bits: int, photometric: int, extra: tuple[int, ...], kind: str) -> Iterator[TiffLayout]:
    plain = TiffLayout(bits, photometric, extra=extra)
    for planar in (False, True):
        for segment in SEGMENTS:
            for order in ("<", ">"):
                for compression, predictor in PACKINGS:
                    if predictor == 1 or (bits in {8, 16, 32} and kind != "f"):
                        yield replace(
                            plain,
                            planar=planar,
                            segment=segment,
                            order=order,
                            compression=compression,
                            predictor=predictor,
                        )
        if bits <= 16:
            for compression in (1, 5):
                yield replace(plain, planar=planar, compression=compression, fill_order=2)


def _build_levels(bits: int, photometric: int, extra: tuple[int, ...], kind: str) -> Levels:
    rng = np.random.default_rng(bits)
    shape = (*SIZE, COLOURS.get(photometric, 1) + len(extra))
    if kind == "f":
        return rng.random(shape).astype(f"f{bits // 8}")
    nbytes = {12: 2, 24: 4}.get(bits, max(1, bits // 8))
    levels = rng.integers(0, 1 << min(bits - (kind == "i"), 16), shape).astype(f"{kind}{nbytes}")
    if extra == (1,):  # colours that are multiplied by alpha
        levels[..., :-1] = levels[..., :-1].astype(np.uint64) * levels[..., -1:] // ((1 << bits) - 1)
    return levels


def _build_palette(bits: int) -> Levels:
    return np.random.default_rng(1).integers(0, 1 << 16, (1 << bits, 3)).astype(np.uint16)


def _decode(data: bytes, mode: ImageMode, channels: int) -> Levels:
    image = ImageSpec(*SIZE, channels, mode=mode, dtype="uint16" if mode == "index" else "uint8")
    row = np.full(image.shape, 77, image.dtype)
    decode_image(data, row, image)
    return row


def _expect(levels: Levels, layout: TiffLayout, palette: Levels | None) -> bytes | None:
    """A PNG of 8 bits that shows what the page does; None where no PNG does."""
    if palette is not None and levels.shape[2] == 1:
        shown = palette[levels[..., 0]] >> 8
    elif layout.photometric == 5 or levels.dtype.kind == "i" or layout.extra == (1,) or palette is not None:
        return None
    elif levels.dtype.kind == "f":
        shown = np.rint(levels * np.float32(255))
    elif layout.bits == 16 and layout.photometric == 2:
        shown = levels >> 8
    else:
        white = {32: 65535}.get(layout.bits, (1 << layout.bits) - 1)
        shown = np.rint(levels.astype(np.float32) * np.float32(255 / white))
    shown = shown.astype(np.uint8)
    if layout.photometric == 0:
        shown = 255 - shown
    seen = shown[..., : COLOURS.get(layout.photometric, shown.shape[2])] if 2 not in layout.extra else shown[..., :4]
    if layout.photometric == 1:
        seen = shown if 2 in layout.extra else shown[..., :1]
    picture = Image.fromarray(seen[..., 0] if seen.shape[2] == 1 else np.ascontiguousarray(seen))
    return encoded(picture, "PNG")


def _check_layout(levels: Levels, layout: TiffLayout, kind: tuple[int, int, tuple[int, ...], str]) -> None:
    palette = _build_palette(layout.bits) if layout.photometric == 3 else None
    data = write_tiff(levels, layout, palette)
    expected = _expect(levels, layout, palette)
    plain = write_tiff(levels, TiffLayout(layout.bits, layout.photometric, extra=layout.extra), palette)
    for mode, channels in MODES:
        served = _try_decode(data, mode, channels)
        if isinstance(served, str):
            assert "damaged" not in served, f"{layout} in {mode}: {served}"
            assert kind not in SERVED or layout.fill_order == 2, f"{layout} in {mode}: {served}"
            continue
        shown = _decode(plain if expected is None else expected, mode, channels)
        apart = np.abs(served.astype(int) - shown).max()
        # Alpha of 16 bits is divided out, or laid on white, before or after it is cut to 8 bits.
        assert apart <= (1 if layout.bits == 16 and layout.extra else 0), f"{layout} in {mode}: {apart} levels"
    numbers = _try_decode(data, "index", 1)
    if isinstance(numbers, str):
        assert "damaged" not in numbers, f"{layout} in index: {numbers}"
    else:
        assert levels.shape[2] == 1, f"{layout}: a mask of several channels"
        assert np.array_equal(numbers, levels[..., 0]), f"{layout}: other class numbers"


def _try_decode(data: bytes, mode: ImageMode, channels: int) -> Levels | str:
    try:
        return _decode(data, mode, channels)
    except BadImageError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_plainest_layouts_are_served_as_stored_or_refused_by_name(
    kind: tuple[int, int, tuple[int, ...], str],
) -> None:
    levels = _build_levels(*kind)
    plain = TiffLayout(kind[0], kind[1], extra=kind[2])
    for layout in (plain, replace(plain, planar=True), replace(plain, order=">", compression=5, segment=(16, 16))):
        _check_layout(levels, layout, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_layout_is_served_as_stored_or_refused_by_name(kind: tuple[int, int, tuple[int, ...], str]) -> None:
    levels = _build_levels(*kind)
    for layout in _list_layouts(*kind):
        _check_layout(levels, layout, kind)


@pytest.mark.parametrize("bits", [8, 16])
def test_the_layouts_written_here_are_those_that_tifffile_and_opencv_read(bits: int) -> None:
    levels = _build_levels(bits, 2, (), "u")
    for layout in _list_layouts(bits, 2, (), "u"):
        data = write_tiff(levels, layout)
        read = tifffile.imread(BytesIO(data))
        assert np.array_equal(np.moveaxis(read, 0, -1) if layout.planar else read, levels), layout
        other = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if other is not None and not layout.planar:  # OpenCV refuses planes of their own
            assert np.array_equal(other[..., ::-1], levels), layout


def test_planes_of_sixteen_bits_have_the_pixels_of_interleaved_ones() -> None:
    levels = _build_levels(16, 2, (), "u")
    for segment in SEGMENTS:
        data = write_tiff(levels, TiffLayout(16, 2, planar=True, segment=segment))
        assert np.array_equal(_decode(data, "RGB", 3), levels >> 8)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ((8, 1, (0, 0, 0), "u"), r"4 channels \(grey; whole numbers of 8 bits\), .*: use mode: raw, or save it"),
        ((16, 1, (2,), "u"), r"2 channels \(grey; whole numbers of 16 bits\), .*: use mode: raw"),
        ((32, 2, (), "f"), r"3 channels \(RGB; fractions of 32 bits\), .*: use mode: raw"),
        ((64, 1, (), "f"), r"1 channel \(grey; fractions of 64 bits\), which Pillow does not read: save it as grey"),
        ((8, 2, (), "i"), r"3 channels \(RGB; signed numbers of 8 bits\)"),
    ],
)
def test_a_tiff_of_another_kind_is_named_with_what_reads_it(
    kind: tuple[int, int, tuple[int, ...], str], reason: str
) -> None:
    data = write_tiff(_build_levels(*kind), TiffLayout(kind[0], kind[1], extra=kind[2]))
    with pytest.raises(BadImageError, match=f"^a TIFF of {reason}"):
        _decode(data, "RGB", 3)


def test_a_compression_that_pillow_does_not_know_is_named() -> None:
    for method, name in ((34712, "JPEG 2000"), (34887, "LERC"), (60000, "method 60000")):
        data = write_tiff(_build_levels(8, 2, (), "u"), TiffLayout(8, 2, compression=method))
        with pytest.raises(BadImageError, match=f"^a TIFF compressed by {name}: save it with LZW or deflate$"):
            _decode(data, "RGB", 3)
