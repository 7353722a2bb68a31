"""What people see of a batch: captions, colours, pixels of 8 bits, and pictures with what lies on them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from support.sample_batches import CLASS, flat, noise, some_batch, some_masked_batch
from support.sample_specs import some_spec

from streamd.client import Batch
from streamd.core.display import (
    BatchDisplay,
    Colour,
    build_captions,
    build_shown_pixels,
    choose_text_colour,
    colour_class_numbers,
    describe_shown_numbers,
    format_batch_heading,
    format_hex_colour,
    format_label,
    format_stream_images,
    get_box_colour,
    get_class_colour,
    lay_mask_over,
    measure_levels,
    plan_pictures,
    resample_mask,
    scale_size,
)
from streamd.core.sampler import BadRow
from streamd.core.spec import ImageSpec, LabelSpec, PixelType
from streamd.limits import SHOWN_CLASSES, SHOWN_PICTURES

# --- words


PHOTO = ImageSpec(24, 32, 3)
MASK = ImageSpec(24, 32, 1, mode="index", like="photo", fill=255)
BOXES = LabelSpec("boxes", "boxes", 5, classes=("cat", "dog"), rows=3)
ANGLE = LabelSpec("angle", "float")
BOX = LabelSpec("box", "float", width=5)
TAGS = LabelSpec("tags", "tags", width=3, classes=("red", "round", "shiny"))
NOTE = LabelSpec("note", "string")
COUNT = LabelSpec("count", "int")
DETECTED = LabelSpec("detected", "boxes", width=5, rows=4, classes=("cat", "dog"))


@pytest.mark.parametrize(
    ("label", "value", "words"),
    [
        (CLASS, np.int64(1), "Zoë"),
        (CLASS, np.int64(-1), "class -1"),
        (CLASS, np.int64(2), "class 2"),
        (LabelSpec("digit", "category", classes=(0, 7)), np.int64(1), "7"),
        (ANGLE, np.float32(-0.12345), "-0.123"),
        (COUNT, np.int64(1234567), "1,234,567"),
        (BOX, np.array([1, 2.5, -0.3333, 4, 5], dtype=np.float32), "1 2.5 -0.333 …"),
        (LabelSpec("pair", "int", width=2), np.array([3, 40000]), "3 40,000"),
        (TAGS, np.array([1, 0, 1], dtype=np.float32), "red, shiny"),
        (TAGS, np.zeros(3, dtype=np.float32), "no tags"),
        (NOTE, np.str_("a b"), "a b"),
        (DETECTED, np.array([[0, 0, 1, 1, 1], [0, 0, 2, 2, 0], [0, 1, 2, 2, 1], [-1] * 5]), "3 (cat, 2 dog)"),
        (DETECTED, np.full((4, 5), -1.0), "0"),
        (LabelSpec("joints", "points", width=2, rows=3), np.array([[-1, -1], [0, 0], [3, 4]]), "2"),
    ],
)
def test_a_label_is_formatted_by_its_kind(label: LabelSpec, value: Any, words: str) -> None:
    assert format_label(label, value) == words


@pytest.mark.parametrize(
    ("labels", "lines"),
    [
        ([(CLASS, [1])], ("Zoë",)),
        ([(NOTE, ["hello"])], ("hello",)),
        ([(ANGLE, [0.5])], ("angle 0.5",)),
        ([(CLASS, [0]), (ANGLE, [0.5])], ("label cat", "angle 0.5")),
        ([(NOTE, ["x" * 500])], ("x" * 119 + "…",)),
    ],
)
def test_only_a_single_class_or_text_label_is_shown_without_its_name(
    labels: list[tuple[LabelSpec, Any]], lines: tuple[str, ...]
) -> None:
    (caption,) = build_captions(some_batch(flat(1), labels), 9)
    assert caption.labels == lines


def test_the_first_of_many_labels_are_shown_and_the_rest_counted() -> None:
    labels = [(LabelSpec(f"n{number}", "int"), [number]) for number in range(9)]
    (caption,) = build_captions(some_batch(flat(1), labels), 1)
    assert caption.labels == ("n0 0", "n1 1", "n2 2", "n3 3", "n4 4", "and 4 more labels")


def test_a_caption_marks_an_unusual_row() -> None:
    bad = [BadRow(1, 7, "a.jpg", "cut short", "substituted"), BadRow(2, 8, "b.jpg", "no image", "masked")]
    batch = some_batch(flat(5), without=[2, 3], bad=bad)
    batch.weights[4] = 0
    told = build_captions(batch, 5)
    assert [each.mark for each in told] == ["", "substituted", "masked", "no sample", "weight 0"]
    assert [each.bad for each in told] == [None, *bad, None, None]
    assert [each.sample_id for each in told] == [100, 101, -1, -1, 104]


def test_a_sample_of_weight_zero_shows_labels_and_an_empty_row_none() -> None:
    batch = some_batch(flat(2), [(CLASS, [1, 0])], without=[1])
    batch.weights[0] = 0
    assert [each.labels for each in build_captions(batch, 2)] == [("Zoë",), ()]


def test_captions_are_limited_by_the_request_and_the_batch() -> None:
    batch = some_batch(flat(3))
    assert [len(build_captions(batch, rows)) for rows in (1, 3, 9)] == [1, 3, 3]


def test_the_heading_counts_only_real_samples() -> None:
    assert format_batch_heading(some_batch(flat(2000, 5, 7, 3), without=[0])) == "train 0:12 · 1,999 samples · 5x7 RGB"
    assert format_batch_heading(some_batch(flat(1, 5, 7, 1))) == "train 0:12 · 1 sample · 5x7 L"
    assert format_batch_heading(some_batch(flat(1, 5, 7, 1)), 9) == "train 0:12 · 9 samples · 5x7 L", "its beginning"


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (ImageSpec(24, 32, 3), "24x32 RGB"),
        (ImageSpec(24, 32, 1), "24x32 L"),
        (ImageSpec(24, 32, 4, mode="RGBA"), "24x32 RGBA"),
        (ImageSpec(24, 32, 1, mode="index"), "24x32 index"),
        (ImageSpec(24, 32, 1, mode="index", dtype="uint16"), "24x32 index uint16"),
        (ImageSpec(24, 32, 3, views=2), "24x32 RGB, 2 views"),
        (ImageSpec(24, 32, 1, mode="raw", dtype="float32"), "24x32 raw, 1 channel float32"),
        (ImageSpec(24, 32, 3, frames=4), "24x32 RGB, 4 frames"),
        (ImageSpec(24, 32, 4, mode="raw", dtype="uint16"), "24x32 raw, 4 channels uint16"),
    ],
)
def test_an_image_is_described_by_its_size_and_mode(image: ImageSpec, words: str) -> None:
    assert format_stream_images(some_spec(images={"image": image})) == words
    assert format_stream_images(some_spec(images={"a": image, "b": PHOTO})) == f"a {words}, b 24x32 RGB"


# --- colours


# What people without one kind of cones see, in linear light: Viénot, Brettel and Mollon, 1999.
PROTANOPE = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPE = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])
APART = 30  # of 255: a difference in brightness or hue that nobody overlooks


def seen(colour: Colour, sight: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float]:
    linear = (np.array(colour) / 255) ** 2.2
    return list((np.clip(sight @ linear, 0, 1) ** (1 / 2.2) * 255).tolist())


@pytest.mark.parametrize("sight", [np.eye(3), PROTANOPE, DEUTERANOPE])
def test_the_first_eight_classes_differ_for_every_kind_of_sight(
    sight: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> None:
    colours = [seen(get_class_colour(number), sight) for number in range(8)]
    for one, other in combinations(colours, 2):
        assert np.linalg.norm(np.subtract(one, other)) > APART


def test_the_colours_of_the_first_22_classes_differ_and_then_repeat() -> None:
    assert len({get_class_colour(number) for number in range(22)}) == 22
    assert get_class_colour(22) == get_class_colour(1)
    assert get_class_colour(0) == (0, 0, 0)
    assert get_box_colour(0) != (0, 0, 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_numbers_of_masks_have_the_colours_of_their_classes(dtype: type[np.uint8 | np.uint16]) -> None:
    numbers = np.array([[0, 1, 22], [7, 43, 255]], dtype)
    found = colour_class_numbers(numbers)
    assert [tuple(pixel) for pixel in found.reshape(-1, 3).tolist()] == [
        get_class_colour(number) for number in numbers.ravel().tolist()
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_mask_tints_its_picture_except_where_it_is_transparent(channels: int) -> None:
    picture, numbers = np.full((9, 9, channels), 100, np.uint8), np.full((9, 9), 255, np.uint8)
    numbers[2:7, 2:7] = 1
    found = lay_mask_over(picture, numbers, 255)
    assert found.shape == (9, 9, 3)
    assert found[0, 0].tolist() == [100] * 3
    assert tuple(found[2, 2].tolist()) == get_class_colour(1), "the outline"
    inside = found[4, 4].astype(int)
    assert (np.abs(inside - (np.array(get_class_colour(1)) + 100) / 2) <= 1).all()


def test_the_background_darkens_its_picture_and_has_no_outline() -> None:
    picture, numbers = np.full((4, 6, 3), 200, np.uint8), np.zeros((4, 6), np.uint8)
    numbers[:, 3:] = 2
    found = lay_mask_over(picture, numbers, 255)
    assert set(found[:, :3].ravel().tolist()) == {130}


@pytest.mark.parametrize("number", range(21))
def test_letters_contrast_with_every_colour(number: int) -> None:
    colour = get_box_colour(number)
    letters = choose_text_colour(colour)
    assert abs(np.mean(letters) - np.mean(colour)) > 80


def test_a_colour_is_written_as_web_pages_do() -> None:
    assert format_hex_colour((230, 159, 0)) == "#e69f00"


# --- pixels of 8 bits


def test_pixels_of_8_bits_are_shown_as_they_are() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert build_shown_pixels(pixels, ImageSpec(2, 4, 3)) is pixels


@pytest.mark.parametrize(
    ("dtype", "bounds", "black", "white"),
    [("uint16", None, 0, 65535), ("uint16", (200.0, 4000.0), 200, 4000), ("float32", None, 0, 1)],
)
def test_raw_numbers_are_scaled_from_their_range(
    dtype: PixelType, bounds: tuple[float, float] | None, black: float, white: float
) -> None:
    numbers = np.array([[[black], [white], [(black + white) / 2]]], dtype)
    image = ImageSpec(1, 3, 1, mode="raw", dtype=dtype, range=bounds)
    assert build_shown_pixels(numbers, image)[0, :, 0].tolist() in ([0, 255, 127], [0, 255, 128])


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (2, 1), (3, 3), (12, 3)])
def test_the_first_channels_are_shown(channels: int, shown: int) -> None:
    numbers = np.full((2, 3, channels), 7, np.uint8)
    assert build_shown_pixels(numbers, ImageSpec(2, 3, channels, mode="raw")).shape == (2, 3, shown)


def test_what_is_no_number_is_black_and_infinity_white() -> None:
    numbers = np.array([[[np.nan], [np.inf], [-np.inf], [1e30]]], np.float32)
    found = build_shown_pixels(numbers, ImageSpec(1, 4, 1, mode="raw", dtype="float32"))
    assert found[0, :, 0].tolist() == [0, 255, 0, 255]


def test_transparent_pixels_show_a_checkerboard() -> None:
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[:, :, :3] = 10, 20, 30
    pixels[0, 0, 3] = 255
    found = build_shown_pixels(pixels, ImageSpec(32, 32, 4, mode="RGBA"))
    assert found[0, 0].tolist() == [10, 20, 30]
    assert {tuple(pixel) for pixel in found.reshape(-1, 3)[1:].tolist()} == {(250,) * 3, (205,) * 3}


def test_half_transparent_pixels_mix_with_the_checkerboard() -> None:
    pixels = np.full((1, 1, 4), (0, 0, 0, 51), np.uint8)
    assert build_shown_pixels(pixels, ImageSpec(1, 1, 4, mode="RGBA"))[0, 0].tolist() == [200] * 3


def test_class_numbers_have_the_colours_of_their_classes_and_their_fill_has_none() -> None:
    image = ImageSpec(1, 3, 1, mode="index", dtype="uint16", fill=900)
    found = build_shown_pixels(np.array([[3, 22, 900]], np.uint16), image)[0].tolist()
    assert found[:2] == [list(get_class_colour(3)), list(get_class_colour(22))]
    assert found[2] in ([250] * 3, [205] * 3)


def test_deep_numbers_are_stretched_to_what_a_batch_holds() -> None:
    numbers = np.full((2, 100, 100, 4), 1000, np.uint16)
    numbers[:, :50, :, :3] = 3000
    numbers[:, 50:, :, 3] = 60000  # a channel that is not shown
    numbers[0, 0, 0] = 65535  # a broken pixel
    image = ImageSpec(100, 100, 4, mode="raw", dtype="uint16")
    levels = measure_levels(numbers, image)
    assert levels is not None
    assert list(levels) == [1000, 3000]
    shown = build_shown_pixels(numbers[1], image, levels)
    assert (shown[0, 0].tolist(), shown[99, 0].tolist()) == ([255] * 3, [0] * 3)
    assert describe_shown_numbers(image, levels) == "1,000 is black and 3,000 white; the first 3 of 4 channels"


def test_numbers_of_8_bits_keep_their_range() -> None:
    image = ImageSpec(2, 2, 3, mode="raw")
    assert measure_levels(np.full((1, 2, 2, 3), 7, np.uint8), image) == (0, 255)
    assert describe_shown_numbers(image, (0, 255)) == "0 is black and 255 white"


@pytest.mark.parametrize("number", [5.0, np.nan])
def test_a_batch_of_one_number_only_can_be_shown(number: float) -> None:
    image = ImageSpec(2, 2, 1, mode="raw", dtype="float32")
    low, high = measure_levels(np.full((1, 2, 2, 1), number, np.float32), image)
    assert low < high


# --- pictures


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
    pictures = BatchDisplay(clip, 2)
    assert len(pictures.build_row(0)) == SHOWN_PICTURES
    assert pictures.notes == [f"the first {SHOWN_PICTURES} of {SHOWN_PICTURES + 3} pictures a sample are shown"]


def test_boxes_and_points_that_are_there_are_listed_with_names_and_colours() -> None:
    points = LabelSpec("points", "points", 2, rows=3)
    boxes = np.array([[[1, 2, 5, 4, 1], [0, 0, 8, 6, 7], [-1] * 5]], np.float32)
    marks = np.array([[[-1, -1], [3, 2], [0, 0]]], np.float32)
    (shown,) = BatchDisplay(some_batch(flat(1), [(BOXES, boxes), (points, marks)]), 1).build_row(0)
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
    shown = BatchDisplay(batch, 2).build_row(1)
    wanted = [batch.arrays["mask"][1]] if not views else list(batch.arrays["mask"][1])
    assert len(shown) == len(wanted)
    for picture, mask in zip(shown, wanted, strict=True):
        assert picture.mask is not None
        assert np.array_equal(picture.mask, mask)
        assert picture.blend_mask()[0, 0].tolist() == [100] * 3


def test_rows_without_a_sample_have_no_mask() -> None:
    batch = masked()
    empty = replace(batch, sample_ids=np.array([100, -1]))
    assert BatchDisplay(empty, 2).build_row(1)[0].mask is None


def test_the_legend_has_the_classes_of_the_shown_rows_without_the_fill() -> None:
    wanted = [(str(number), get_class_colour(number)) for number in (0, 1, 2)]
    assert BatchDisplay(masked(), 2).list_classes() == wanted
    empty = replace(masked(), sample_ids=np.array([-1, -1]))
    assert BatchDisplay(empty, 2).list_classes() == []


def test_the_fill_of_one_mask_is_a_class_of_another() -> None:
    batch = masked()
    other = np.full((2, 24, 32), 0, np.uint8)
    other[:, 0] = 255
    images = {**batch.spec.images, "other": ImageSpec(24, 32, 1, mode="index", fill=0)}
    both = replace(batch, arrays={**batch.arrays, "other": other}, spec=replace(batch.spec, images=images))
    assert [name for name, _ in BatchDisplay(both, 2).list_classes()] == ["0", "1", "2", "255"]


def test_of_very_many_classes_the_first_are_listed_and_the_others_counted() -> None:
    batch = masked()
    batch.arrays["mask"][:] = np.arange(24 * 32).reshape(24, 32) % 200
    *classes, rest = BatchDisplay(batch, 2).list_classes()
    assert len(classes) == SHOWN_CLASSES
    assert rest == (f"and {200 - SHOWN_CLASSES} more classes", None)


def test_pictures_are_subsampled_with_their_masks() -> None:
    (shown,) = BatchDisplay(masked(), 2, max_side=16).build_row(0)
    assert shown.mask is not None
    assert (shown.pixels.shape, shown.mask.shape, shown.plan.size) == ((12, 16, 3), (12, 16), (24, 32))


def test_a_mask_takes_the_size_of_its_picture_by_the_nearest_pixels() -> None:
    numbers = np.array([[1, 2], [3, 4]], np.uint8)
    assert resample_mask(numbers, (4, 2)).tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert resample_mask(numbers, (1, 1)).tolist() == [[4]]


@pytest.mark.parametrize(
    ("shape", "thin"),
    [
        ((5, 7), (5, 7)),
        ((160, 160), (160, 160)),
        ((161, 40), (81, 20)),
        ((224, 224), (112, 112)),
        ((1, 4000), (1, 160)),
    ],
)
def test_only_a_picture_with_a_longer_side_is_subsampled(shape: tuple[int, int], thin: tuple[int, int]) -> None:
    images = noise(1, *shape)
    (shown,) = BatchDisplay(some_batch(images), 1, max_side=160).build_row(0)
    step = -(-max(shape) // 160)
    assert shown.pixels.shape == (*thin, 3)
    assert np.array_equal(shown.pixels, images[0, ::step, ::step])


@pytest.mark.parametrize(
    ("size", "longer", "scaled"),
    [((30, 60), 120, (60, 120)), ((300, 500), 224, (134, 224)), ((1, 4000), 112, (1, 112))],
)
def test_a_scaled_size_keeps_its_shape_and_no_side_vanishes(
    size: tuple[int, int], longer: int, scaled: tuple[int, int]
) -> None:
    assert scale_size(size, longer) == scaled


def test_deep_numbers_are_noted_with_the_levels_that_are_shown() -> None:
    image = ImageSpec(4, 4, 4, mode="raw", dtype="uint16")
    spec = some_spec(images={"band": image}, labels={})
    numbers = np.arange(2 * 64, dtype=np.uint16).reshape(2, 4, 4, 4) * 100
    batch = Batch({"band": numbers}, {}, np.ones(2, np.float32), np.arange(2), (), 0, 0, lambda: "", spec)
    pictures = BatchDisplay(batch, 2)
    (note,) = pictures.notes
    assert note.startswith("band: ")
    assert note.endswith("the first 3 of 4 channels")
    assert np.ptp(pictures.build_row(1)[0].pixels) > 100
