"""One decode for several rows: each row holds what a decode of its own would put there."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import simplejpeg
from support.smooth_pictures import smooth

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import decode_image, decode_into_rows, list_picture_draws
from streamd.decode.geometry import compute_random_crop_draws

WIDE = ImageSpec(24, 32, 3, "random_crop", exact=True)
MODES = [WIDE, replace(WIDE, channels=1, mode="L"), replace(WIDE, channels=4, mode="RGBA")]


def encode(format_name: str, **how: Any) -> bytes:
    file = BytesIO()
    smooth(150, 200).save(file, format_name, **how)
    return file.getvalue()


def decode_views(data: bytes, image: ImageSpec) -> tuple[Any, Any, list[Any]]:
    viewed = replace(image, views=4)
    (draw,) = compute_random_crop_draws(viewed, 3, 1, np.array([7]))
    together, apart = (np.empty(viewed.shape, image.dtype) for _ in range(2))
    draws = list_picture_draws(viewed, draw)
    landed = decode_into_rows(data, [*together], viewed, draws)
    assert landed == [decode_image(data, row, image, each) for row, each in zip(apart, draws, strict=True)]
    return together, apart, draws


@pytest.mark.parametrize("image", MODES)
@pytest.mark.parametrize("format_name", ["JPEG", "PNG"])
def test_each_row_equals_a_decode_of_its_own(image: ImageSpec, format_name: str) -> None:
    together, apart, _ = decode_views(encode(format_name), image)
    assert np.array_equal(together, apart)


def test_a_jpeg_is_decoded_once_at_the_scale_that_its_smallest_view_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    data, asked = encode("JPEG", quality=95), []
    decode = simplejpeg.decode_jpeg

    def watched(*args: Any, **how: Any) -> Any:
        asked.append((how["min_height"], how["min_width"]))
        return decode(*args, **how)

    image = replace(WIDE, exact=False)
    viewed = replace(image, views=4)
    (draw,) = compute_random_crop_draws(viewed, 3, 1, np.array([7]))
    rows = np.empty(viewed.shape, np.uint8)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    decode_into_rows(data, [*rows], viewed, list_picture_draws(viewed, draw))
    assert len(asked) == 1
    together, apart, _ = decode_views(data, image)
    assert np.abs(together.astype(int) - apart).mean() < 2


def test_views_without_crops_are_copies_for_the_transform() -> None:
    image = ImageSpec(24, 32, 3, views=3)
    rows, one = np.empty(image.shape, np.uint8), np.empty(image.picture_shape, np.uint8)
    landed = decode_into_rows(encode("PNG"), [*rows], image, list_picture_draws(image, None))
    assert landed == [decode_image(encode("PNG"), one, replace(image, views=0))] * 3
    assert all(np.array_equal(row, one) for row in rows)


def test_each_view_draws_numbers_of_its_own() -> None:
    plain, ids = replace(WIDE, exact=False), np.arange(5)
    viewed = replace(plain, views=3)
    first = np.array(compute_random_crop_draws(viewed, 0, 2, ids))
    assert np.array_equal(first[:, 0], np.array(compute_random_crop_draws(plain, 0, 2, ids)))
    assert len({view.tobytes() for each in first for view in each}) == 15
    other = np.array(compute_random_crop_draws(viewed, 0, 2, ids, "other"))
    assert np.array_equal(other[0, 0], first[0, 0])
    assert not np.array_equal(other[0, 1], first[0, 1])
    second = np.array(compute_random_crop_draws(viewed, 0, 2, ids, "other", is_first=False))
    assert not np.array_equal(second[0, 0], first[0, 0])
