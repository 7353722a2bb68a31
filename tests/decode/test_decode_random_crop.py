"""Random crops: the ImageNet recipe with the random numbers of each sample, and the pixels of the crop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from golden_files import exif, stored
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.smooth_pictures import Pixels, apart, encoded, smooth

from streamd.core.spec import ImageSpec
from streamd.decode import jpeg
from streamd.decode.decoders import BadImageError, decode_image
from streamd.decode.geometry import Crop, CropDraw, compute_crop, compute_random_crop_draws, draw_geometry

RANDOM = ImageSpec(24, 32, 3, "random_crop")
SIZES = [(375, 500), (500, 375), (128, 128), (64, 1000), (1000, 64), (7, 5), (1, 1)]
Uniform = Callable[[float, float], float]


def drawn(image: ImageSpec, count: int, *, seed: int = 0, epoch: int = 0) -> list[CropDraw]:
    """What is drawn for the first `count` samples."""
    found = [each for each in compute_random_crop_draws(image, seed, epoch, np.arange(count)) if each is not None]
    assert len(found) == count
    return found


def recipe(height: int, width: int, image: ImageSpec, uniform: Uniform) -> Crop:
    """What torchvision's RandomResizedCrop does, by logarithms as it does, with numbers of `uniform` for torch's."""
    least, most = image.ratio
    for _ in range(10):
        area = uniform(*image.scale) * height * width
        ratio = math.exp(uniform(math.log(least), math.log(most)))
        wide, high = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        top, left = math.floor(uniform(0, height - high + 1)), math.floor(uniform(0, width - wide + 1))
        if 1 <= wide <= width and 1 <= high <= height:
            return Crop(left, top, wide, high)
    if width / height < least:
        wide, high = width, round(width / least)
    elif width / height > most:
        wide, high = round(height * most), height
    else:
        wide, high = width, height
    return Crop((width - wide) // 2, (height - high) // 2, wide, high)


def numbers_of(draw: CropDraw) -> Uniform:
    """What stands for torch's generator: it gives the numbers of `draw` in turn."""
    numbers = iter(draw.tolist())
    return lambda low, high: low + (high - low) * float(next(numbers))


@pytest.mark.parametrize("bounds", [{}, {"scale": (0.5, 0.6)}, {"ratio": (0.2, 5.0)}, {"ratio": (1.0, 1.0)}], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_crop_is_the_one_that_the_recipe_takes_of_the_same_numbers(
    size: tuple[int, int], bounds: dict[str, Any]
) -> None:
    image = replace(RANDOM, **bounds)
    for draw in drawn(image, 100):
        assert compute_crop(*size, image, draw) == recipe(*size, image, numbers_of(draw))


def test_crop_boxes_are_pinned() -> None:
    draws_of_five = drawn(RANDOM, 5, seed=3, epoch=2)
    assert [compute_crop(375, 500, RANDOM, draw).box for draw in draws_of_five] == [
        (96, 25, 377, 263),
        (99, 26, 454, 313),
        (34, 19, 352, 360),
        (226, 38, 446, 257),
        (74, 48, 279, 217),
    ]
    assert {compute_crop(64, 1000, RANDOM, draw).box for draw in draws_of_five} == {(457, 0, 542, 64)}  # none fits


def test_areas_and_logarithms_of_ratios_are_uniform() -> None:
    image = replace(RANDOM, scale=(0.1, 0.5))
    boxes = [compute_crop(4000, 6000, image, draw) for draw in drawn(image, 2000)]
    areas = np.sort([box.width * box.height / 24e6 for box in boxes])
    ratios = np.sort([math.log(box.width / box.height) for box in boxes])
    even = (np.arange(2000) + 0.5) / 2000
    assert np.abs(areas - (0.1 + 0.4 * even)).max() < 0.4 * 0.05  # Kolmogorov and Smirnov's distance
    assert np.abs(ratios - (2 * even - 1) * math.log(4 / 3)).max() < 2 * math.log(4 / 3) * 0.05


def test_positions_of_crops_are_uniform() -> None:
    image = replace(RANDOM, scale=(0.2, 0.2), ratio=(1.0, 1.0))
    boxes = [compute_crop(1000, 1000, image, draw) for draw in drawn(image, 2000)]
    assert {(box.width, box.height) for box in boxes} == {(447, 447)}
    for places in (np.sort([box.left for box in boxes]), np.sort([box.top for box in boxes])):
        assert np.abs(places / 553 - (np.arange(2000) + 0.5) / 2000).max() < 0.05
        assert places[0] >= 0
        assert places[-1] <= 553
    assert abs(np.corrcoef([box.left for box in boxes], [box.top for box in boxes])[0, 1]) < 0.1


@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.floats(0.0001, 1),
    st.floats(0.0001, 1),
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.integers(0, 50),
)
def test_a_crop_lies_in_its_picture_whatever_the_bounds(
    height: int, width: int, scale: float, other_scale: float, ratio: float, other_ratio: float, sample: int
) -> None:
    scales, ratios = sorted([scale, other_scale]), sorted([ratio, other_ratio])
    image = replace(RANDOM, scale=(scales[0], scales[1]), ratio=(ratios[0], ratios[1]))
    left, top, right, bottom = compute_crop(height, width, image, drawn(image, sample + 1)[sample]).box
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_a_draw_depends_only_on_sample_epoch_and_seed() -> None:
    ids = np.array([9, 2, 700, 2])
    together = compute_random_crop_draws(RANDOM, 1, 4, ids)
    alone = [compute_random_crop_draws(RANDOM, 1, 4, ids[place : place + 1])[0] for place in range(4)]
    assert np.array_equal(together, alone)  # type: ignore[arg-type]  # none of them is None
    others = [compute_random_crop_draws(RANDOM, 1, 5, ids), compute_random_crop_draws(RANDOM, 2, 4, ids)]
    assert all(not np.array_equal(together, other) for other in others)  # type: ignore[arg-type]  # as above
    assert len({str(each) for each in together}) == 3


def test_nothing_is_drawn_for_other_resizes() -> None:
    assert compute_random_crop_draws(ImageSpec(8, 8, 3, "crop"), 0, 0, np.arange(3)) == [None] * 3


def shown(data: bytes, image: ImageSpec, draw: CropDraw | None) -> Pixels:
    row = np.full(image.shape, 77, dtype=np.uint8)
    decode_image(data, row, image, draw)
    return row


def reference(picture: Image.Image, image: ImageSpec, draw: CropDraw) -> Pixels:
    """Pillow's, from full size: as exact as can be."""
    box = compute_crop(picture.height, picture.width, image, draw).box
    cut = picture.convert("RGB" if image.channels == 3 else "L").crop(box)
    return np.asarray(cut.resize((image.width, image.height), Image.Resampling.BILINEAR)).reshape(image.shape)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["PNG", "WEBP", "JPEG"])
@pytest.mark.parametrize("size", [(24, 32), (9, 7), (200, 150)], ids=str)
def test_the_drawn_part_is_shown_in_every_format_and_size(size: tuple[int, int], name: str, channels: int) -> None:
    picture, image = smooth(90, 120), ImageSpec(*size, channels, "random_crop", exact=True)
    options = {"lossless": True} if name == "WEBP" else {"quality": 98, "subsampling": 0} if name == "JPEG" else {}
    data = encoded(picture, name, **options)
    for draw in drawn(image, 5):
        assert apart(shown(data, image, draw), reference(picture, image, draw)) <= (5 if name == "JPEG" else 0)


def watched_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (height, width) of every JPEG as it was decoded."""
    sizes: list[tuple[int, int]] = []
    pixels = jpeg._decode_pixels

    def watched(*given: Any) -> Pixels:
        found = pixels(*given)
        sizes.append((found.shape[0], found.shape[1]))
        return found

    monkeypatch.setattr(jpeg, "_decode_pixels", watched)
    return sizes


@pytest.mark.parametrize("size", [(120, 160), (60, 80), (30, 40), (15, 20), (300, 300)], ids=str)
def test_a_reduced_decode_shows_nearly_the_same_and_has_all_the_pixels_it_needs(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, image = smooth(480, 640), ImageSpec(*size, 3, "random_crop")
    data, sizes = encoded(picture), watched_sizes(monkeypatch)
    for draw in drawn(image, 12):
        mean = np.abs(shown(data, image, draw).astype(int) - reference(picture, image, draw)).mean()
        assert mean < 255 / min(size) + 1  # the part is cut to a pixel of what is shown, and the picture is a ramp
        geometry, reduced = draw_geometry(image, (480, 640), draw), sizes[-1]
        left, top, right, bottom = geometry.scale_to_source(reduced).pixel_box
        assert (right - left >= image.width and bottom - top >= image.height) or reduced == (480, 640)
    assert (min(sizes) < (480, 640)) == (size != (300, 300))


def test_the_crop_of_a_turned_file_is_upright() -> None:
    picture, image = smooth(200, 320), ImageSpec(30, 40, 3, "random_crop")
    turned = encoded(stored(picture, 6), exif=exif(6), quality=98, subsampling=0)
    for exact in (False, True):
        for draw in drawn(image, 6):
            spec = replace(image, exact=exact)
            assert apart(shown(turned, spec, draw), reference(picture, image, draw)) <= 12


def test_a_crop_of_a_picture_of_the_target_size_is_enlarged() -> None:
    image = replace(RANDOM, scale=(0.25, 0.25))
    for name in ("JPEG", "PNG"):
        (draw,) = drawn(image, 1)
        data = encoded(smooth(24, 32), name)
        assert apart(shown(data, image, draw), reference(smooth(24, 32), image, draw)) <= 16


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (2, 3)])
@pytest.mark.parametrize("name", ["JPEG", "PNG"])
def test_crops_of_the_smallest_pictures_fill_their_row(name: str, size: tuple[int, int]) -> None:
    grey = Image.new("RGB", (size[1], size[0]), (90, 90, 90))
    for image in (RANDOM, replace(RANDOM, channels=1, exact=True)):
        for draw in drawn(image, 5):
            assert (shown(encoded(grey, name), image, draw) == 90).all()


def test_without_a_draw_the_middle_is_shown() -> None:
    for name in ("JPEG", "PNG"):
        data = encoded(smooth(200, 300), name)
        assert np.array_equal(shown(data, RANDOM, None), shown(data, replace(RANDOM, resize="crop"), None))


def test_cmyk_and_damaged_files_are_treated_as_without_a_crop() -> None:
    (draw,) = drawn(RANDOM, 1)
    data = encoded(smooth(90, 120).convert("CMYK"))
    assert apart(shown(data, RANDOM, draw), reference(smooth(90, 120), RANDOM, draw)) <= 12
    with pytest.raises(BadImageError, match="a damaged JPEG"):
        shown(encoded(smooth(90, 120))[:-400], RANDOM, draw)
