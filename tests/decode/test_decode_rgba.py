"""Mode RGBA: the alpha of a file, and an opaque one where it has none."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image
from support.smooth_pictures import apart, decoded, encoded, png, smooth

from streamd.core.spec import ImageSpec
from streamd.decode.pixel_id import compute_pixel_id, decode_probe_images

PICTURE = smooth(20, 30)
RGBA = ImageSpec(20, 30, 4, mode="RGBA")
SMALL = ImageSpec(9, 13, 4, mode="RGBA")


def _layered() -> Image.Image:
    layered = PICTURE.convert("RGBA")
    layered.putalpha(Image.fromarray(np.tile(np.arange(30, dtype=np.uint8) * 8, (20, 1))))
    return layered


@pytest.mark.parametrize("name", ["PNG", "TIFF", "WEBP"])
def test_alpha_is_that_of_the_file(name: str) -> None:
    options = {"lossless": True, "exact": True} if name == "WEBP" else {}
    assert np.array_equal(decoded(encoded(_layered(), name, **options), RGBA), np.asarray(_layered()))


def test_a_resize_is_that_of_pillow_which_weighs_colours_by_their_alpha() -> None:
    expected = _layered().resize((13, 9), Image.Resampling.BILINEAR)
    assert np.array_equal(decoded(encoded(_layered(), "PNG"), SMALL), np.asarray(expected))


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP"])
def test_a_file_without_alpha_is_opaque(name: str) -> None:
    found = decoded(encoded(PICTURE, name), RGBA)
    assert (found[:, :, 3] == 255).all()
    assert apart(found[:, :, :3], PICTURE) <= 16


@pytest.mark.parametrize("name", ["JPEG", "PNG"])
def test_padding_is_transparent(name: str) -> None:
    found = decoded(encoded(PICTURE, name), ImageSpec(30, 30, 4, "pad", mode="RGBA"))
    assert not found[:5].any()
    assert (found[5:25, :, 3] == 255).all()
    assert not found[25:].any()


def test_the_colours_of_a_jpeg_are_those_of_mode_rgb() -> None:
    data = encoded(smooth(200, 300))
    assert np.array_equal(decoded(data, SMALL)[:, :, :3], decoded(data, ImageSpec(9, 13, 3)))


def test_a_transparent_grey_of_16_bits_is_transparent() -> None:
    rows = [np.array([[500, 40000], [500, 65535]], ">u2")[row].tobytes() for row in range(2)]
    data = png(16, 0, rows, (2, 2), transparent=(500).to_bytes(2, "big"))
    found = decoded(data, ImageSpec(2, 2, 4, mode="RGBA"))
    assert found[:, :, 3].tolist() == [[0, 255], [0, 255]]
    assert found[1, 1].tolist() == [255] * 4


def test_a_gif_is_transparent_where_it_draws_nothing() -> None:
    data = encoded(Image.new("P", (30, 20), 0), "GIF", optimize=False)
    larger = data[:6] + struct.pack("<HH", 40, 30) + data[10:]
    found = decoded(larger, ImageSpec(30, 40, 4, mode="RGBA"))
    assert (found[:20, :30, 3] == 255).all()
    assert not found[20:].any()


def test_the_pixel_id_depends_on_mode_dtype_and_channels() -> None:
    images = [
        ImageSpec(9, 13, 3),
        SMALL,
        ImageSpec(9, 13, 4, mode="raw"),
        ImageSpec(9, 13, 4, mode="raw", dtype="uint16"),
        ImageSpec(9, 13, 5, mode="raw", dtype="uint16"),
        ImageSpec(9, 13, 4, "random_crop", mode="raw", dtype="float32"),
    ]
    assert len({compute_pixel_id(image) for image in images}) == len(images)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_the_probes_of_raw_numbers_differ_within_their_dtype(dtype: str) -> None:
    for row in decode_probe_images(ImageSpec(9, 13, 4, mode="raw", dtype=dtype)):  # type: ignore[arg-type]  # a name
        assert row.dtype == dtype
        assert np.ptp(row) > 0
