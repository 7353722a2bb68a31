"""Which pictures a sample is shown as, and what lies on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.sample_batches import flat, some_batch, some_masked_batch
from support.sample_specs import some_spec

from streamd.client import Batch
from streamd.core.class_colours import get_box_colour
from streamd.core.shown_pictures import BatchPictures, plan_pictures, resample_mask, subsample_image
from streamd.core.spec import ImageSpec, LabelSpec
from streamd.limits import SHOWN_CLASSES, SHOWN_PICTURES

PHOTO = ImageSpec(24, 32, 3)
MASK = ImageSpec(24, 32, 1, mode="index", like="photo", fill=255)
BOXES = LabelSpec("boxes", "boxes", 5, classes=("cat", "dog"), rows=3)


def titles(images: dict[str, ImageSpec], *labels: LabelSpec, axis: dict[str, int] | None = None) -> list[str]:
    spec = some_spec(images=images, labels={label.name: label for label in labels})
    shapes = {
        name: (axis[name], *image.shape) if axis and name in axis else image.shape for name, image in images.items()
    }
    return [plan.title for plan in plan_pictures(spec, shapes)]


def test_the_only_picture_of_a_sample_needs_no_title() -> None:
    assert titles({"image": PHOTO}) == [""]


def test_each_image_is_a_picture_in_the_order_of_the_stream() -> None:
    assert titles({"left": PHOTO, "right": PHOTO}) == ["left", "right"]


@pytest.mark.parametrize("other", [MASK, replace(MASK, height=12, width=16)])
def test_a_mask_lies_over_the_picture_whose_geometry_it_has(other: ImageSpec) -> None:
    assert titles({"photo": PHOTO, "mask": other}) == ["photo + mask"]


def test_a_picture_that_follows_its_mask_has_it_too() -> None:
    images = {"mask": replace(MASK, like=None), "photo": replace(PHOTO, like="mask")}
    assert titles(images) == ["photo + mask"]


def test_two_masks_make_two_pictures_of_a_photo() -> None:
    assert titles({"photo": PHOTO, "a": MASK, "b": MASK}) == ["photo + a", "photo + b"]


def test_a_mask_with_a_geometry_of_its_own_is_a_picture_of_its_own() -> None:
    assert titles({"photo": PHOTO, "mask": replace(MASK, like=None)}) == ["photo", "mask"]


def test_each_view_and_each_frame_is_a_picture() -> None:
    assert titles({"photo": PHOTO, "mask": MASK}, axis={"photo": 2, "mask": 2}) == [
        "photo + mask 1 of 2",
        "photo + mask 2 of 2",
    ]


def test_boxes_are_drawn_on_the_image_that_they_follow() -> None:
    spec = some_spec(
        images={"left": PHOTO, "right": PHOTO}, labels={"a": BOXES, "b": replace(BOXES, name="b", image="right")}
    )
    plans = plan_pictures(spec, {"left": PHOTO.shape, "right": PHOTO.shape})
    assert [plan.labels for plan in plans] == [("boxes",), ("b",)]


def test_more_pictures_than_fit_are_counted_and_not_drawn() -> None:
    shape = (2, SHOWN_PICTURES + 3, 6, 8, 3)
    batch = some_batch(flat(2))
    clip = replace(batch, arrays={"image": np.zeros(shape, np.uint8)})
    pictures = BatchPictures(clip, 2)
    assert len(pictures.build_row(0)) == SHOWN_PICTURES
    assert pictures.notes == [f"the first {SHOWN_PICTURES} of {SHOWN_PICTURES + 3} pictures a sample are shown"]


def test_boxes_and_points_that_are_there_are_listed_with_names_and_colours() -> None:
    points = LabelSpec("points", "points", 2, rows=3)
    boxes = np.array([[[1, 2, 5, 4, 1], [0, 0, 8, 6, 7], [-1] * 5]], np.float32)
    marks = np.array([[[-1, -1], [3, 2], [0, 0]]], np.float32)
    (shown,) = BatchPictures(some_batch(flat(1), [(BOXES, boxes), (points, marks)]), 1).build_row(0)
    assert [(box.left, box.top, box.right, box.bottom, box.name) for box in shown.boxes] == [
        (1, 2, 5, 4, "dog"),
        (0, 0, 8, 6, "class 7"),
    ]
    assert [(point.x, point.y, point.colour) for point in shown.points] == [
        (3, 2, get_box_colour(1)),
        (0, 0, get_box_colour(2)),
    ]


def masked(views: int = 0) -> Batch:
    return some_masked_batch(2, 24, 32, views)


@pytest.mark.parametrize("views", [0, 2])
def test_each_picture_has_the_mask_of_its_own_view(views: int) -> None:
    batch = masked(views)
    shown = BatchPictures(batch, 2).build_row(1)
    wanted = [batch.arrays["mask"][1]] if not views else list(batch.arrays["mask"][1])
    assert len(shown) == len(wanted)
    for picture, mask in zip(shown, wanted, strict=True):
        assert picture.mask is not None
        assert np.array_equal(picture.mask, mask)
        assert picture.blend_mask()[0, 0].tolist() == [100] * 3


def test_rows_without_a_sample_have_no_mask() -> None:
    batch = masked()
    empty = replace(batch, sample_ids=np.array([100, -1]))
    assert BatchPictures(empty, 2).build_row(1)[0].mask is None


def test_the_legend_has_the_classes_of_the_shown_rows_without_the_fill() -> None:
    classes, left_out = BatchPictures(masked(), 2).list_classes()
    assert ([each.number for each in classes], left_out) == ([0, 1, 2], 0)


def test_of_very_many_classes_the_first_are_listed_and_the_others_counted() -> None:
    batch = masked()
    batch.arrays["mask"][:] = np.arange(24 * 32).reshape(24, 32) % 200
    classes, left_out = BatchPictures(batch, 2).list_classes()
    assert (len(classes), left_out) == (SHOWN_CLASSES, 200 - SHOWN_CLASSES)


def test_pictures_are_subsampled_with_their_masks() -> None:
    (shown,) = BatchPictures(masked(), 2, max_side=16).build_row(0)
    assert shown.mask is not None
    assert (shown.pixels.shape, shown.mask.shape, shown.plan.size) == ((12, 16, 3), (12, 16), (24, 32))


def test_a_mask_takes_the_size_of_its_picture_by_the_nearest_pixels() -> None:
    numbers = np.array([[1, 2], [3, 4]], np.uint8)
    assert resample_mask(numbers, (4, 2)).tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert resample_mask(numbers, (1, 1)).tolist() == [[4]]


def test_a_picture_small_enough_is_not_subsampled() -> None:
    image = np.zeros((5, 7, 3), np.uint8)
    assert subsample_image(image, 7).shape == (5, 7, 3)


def test_deep_numbers_are_noted_with_the_levels_that_are_shown() -> None:
    image = ImageSpec(4, 4, 4, mode="raw", dtype="uint16")
    spec = some_spec(images={"band": image}, labels={})
    numbers = np.arange(2 * 64, dtype=np.uint16).reshape(2, 4, 4, 4) * 100
    batch = Batch({"band": numbers}, {}, np.ones(2, np.float32), np.arange(2), (), 0, 0, lambda: "", spec)
    pictures = BatchPictures(batch, 2)
    (note,) = pictures.notes
    assert note.startswith("band: ")
    assert note.endswith("the first 3 of 4 channels")
    assert np.ptp(pictures.build_row(1)[0].pixels) > 100
