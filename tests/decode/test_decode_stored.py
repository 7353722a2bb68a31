"""Images of arrays: placed as files of the same numbers are, and identified by what decides their pixels."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.smooth_pictures import smooth

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import BadImageError, decode_image
from streamd.decode.geometry import compute_random_crop_draws, draw_geometry
from streamd.worker.array_records import (
    compute_array_pixel_id,
    find_fixed_geometries,
    is_shown_whole,
    place_stored_image,
)

RESIZES = ("stretch", "crop", "pad", "random_crop")
PHOTO = ImageSpec(20, 30, 3)
MASK = ImageSpec(20, 30, 1, mode="index", like="photo", fill=255)
RNG = np.random.default_rng(3)
NUMBERS: dict[str, Any] = {
    "RGB": np.asarray(smooth(50, 61)),
    "L": np.asarray(smooth(50, 61).convert("L"))[..., None],
    "RGBA": RNG.integers(0, 256, (50, 61, 4), np.uint8),
    "index": RNG.integers(0, 256, (50, 61, 1), np.uint8),
    "raw": RNG.random((50, 61, 3), np.float32),
}


def encode(numbers: Any, mode: str) -> bytes:
    file = BytesIO()
    if mode == "raw":
        np.save(file, numbers)
    else:
        Image.fromarray(numbers[..., 0] if numbers.shape[2] == 1 else numbers).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("mode", NUMBERS)
def test_an_image_lands_as_a_file_of_the_same_numbers(mode: Any, resize: Any) -> None:
    numbers = NUMBERS[mode]
    image = ImageSpec(24, 32, numbers.shape[2], resize, mode=mode, dtype=numbers.dtype.name, fill=9)
    (draw,) = compute_random_crop_draws(image, 1, 2, np.array([3]))
    rows = [np.empty(image.shape, image.dtype) for _ in range(2)]
    geometries = (
        place_stored_image(numbers, rows[0], image, draw),
        decode_image(encode(numbers, mode), rows[1], image, draw),
    )
    assert np.array_equal(rows[0], rows[1])
    assert geometries[0] == geometries[1]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", ">i4", "int64"])
def test_class_numbers_of_any_whole_type_keep_their_values(dtype: str) -> None:
    numbers = (np.arange(600) % 2).reshape(20, 30, 1).astype(dtype)
    row = np.empty((20, 30), np.uint8)
    place_stored_image(numbers, row, replace(MASK, like=None))
    assert np.array_equal(row, numbers[..., 0])


def test_class_numbers_that_the_row_does_not_hold_are_refused() -> None:
    row = np.empty((20, 30), np.uint8)
    for bad in (256, -1):
        numbers = np.zeros((20, 30, 1), np.int32)
        numbers[4, 5] = bad
        with pytest.raises(BadImageError, match=f"it holds the class number {bad}, and uint8 holds 0 to 255"):
            place_stored_image(numbers, row, replace(MASK, like=None))


def test_geometries_are_fixed_unless_an_image_or_its_leader_is_cropped_at_random() -> None:
    images = {"photo": PHOTO, "mask": MASK, "other": replace(PHOTO, resize="random_crop")}
    stored = {"photo": (20, 30), "mask": (40, 60), "other": (20, 30)}
    fixed = find_fixed_geometries(images, stored)
    assert {name: is_shown_whole(each) for name, each in fixed.items()} == {
        "photo": True,
        "mask": False,
        "other": False,
    }
    assert fixed["photo"] == draw_geometry(PHOTO, (20, 30))
    assert fixed["mask"] == draw_geometry(MASK, (40, 60), fixed["photo"])
    assert fixed["other"] is None
    cropped = {"photo": replace(PHOTO, resize="crop"), "mask": replace(MASK, resize="crop")}
    wide = find_fixed_geometries(cropped, {"photo": (20, 60), "mask": (20, 30)})
    assert not is_shown_whole(wide["mask"])  # of the size that is served, but only its middle is shown


def test_the_identity_covers_what_decides_the_pixels() -> None:
    images = {"photo": PHOTO, "mask": MASK}
    whole, larger = {"photo": (20, 30), "mask": (20, 30)}, {"photo": (40, 60), "mask": (40, 60)}
    ids = [
        compute_array_pixel_id(images, whole),
        compute_array_pixel_id(images, larger),
        compute_array_pixel_id({"photo": replace(PHOTO, resize="crop"), "mask": replace(MASK, resize="crop")}, larger),
        compute_array_pixel_id({"photo": PHOTO}, {"photo": (20, 30)}),
        compute_array_pixel_id({"picture": PHOTO}, {"picture": (20, 30)}),
    ]
    assert len(set(ids)) == len(ids)
    assert compute_array_pixel_id(images, whole) == ids[0]
