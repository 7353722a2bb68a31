"""An array of one channel or three becomes a picture of the same pixels."""

from __future__ import annotations

import numpy as np
import pytest

from streamd.decode.resize import build_pil_image


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_picture_has_the_pixels_of_its_array(channels: int, mode: str) -> None:
    pixels = np.arange(4 * 6 * channels, dtype=np.uint8).reshape(4, 6, channels)
    for shown in (pixels, pixels[:, ::2], pixels[::-1]):
        picture = build_pil_image(shown)
        assert (picture.mode, picture.size) == (mode, shown.shape[1::-1])
        assert np.array_equal(np.asarray(picture).reshape(shown.shape), shown)


def test_a_picture_is_a_copy() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    picture = build_pil_image(pixels)
    pixels[:] = 9
    assert picture.getpixel((0, 0)) == (0, 0, 0)
