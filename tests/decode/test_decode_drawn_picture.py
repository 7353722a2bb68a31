"""Pictures as people look at them, with masks, boxes, points and text, and the sheet of a batch: its pixels."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.sample_batches import flat, noise, some_batch, some_masked_batch

from streamd.client import Batch
from streamd.core.display import (
    MARK_COLOURS,
    PicturePlan,
    ShownBox,
    ShownPicture,
    ShownPoint,
    get_box_colour,
    get_class_colour,
)
from streamd.core.sampler import BadRow
from streamd.core.spec import LabelSpec
from streamd.decode.drawn_picture import (
    compute_shown_sizes,
    draw_sheet,
    draw_shown_picture,
    draw_text,
    measure_width,
    shorten_text,
)

DARK = np.zeros((20, 30, 3), np.uint8)
PLAN = PicturePlan("", "photo", (20, 30))


def test_enlarged_pixels_are_squares() -> None:
    pixels = noise(1, 20, 30)[0]
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, pixels), (80, 120)))
    assert np.array_equal(found, np.repeat(np.repeat(pixels, 4, axis=0), 4, axis=1))


def test_the_outline_of_a_class_is_a_pixel_wide_however_large_the_picture_is() -> None:
    mask = np.full((20, 30), 255, np.uint8)
    mask[5:15, 10:20] = 2
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, DARK, mask), (80, 120)))
    outline = (found == get_class_colour(2)).all(axis=2)
    assert outline[20, 40:80].all()
    assert outline[20:60, 40].all()
    assert not outline[21:59, 41:79].any()
    assert outline.sum() == 2 * 40 + 2 * 38


def test_a_box_is_drawn_where_it_lies_and_named_above_it() -> None:
    box = ShownBox(10, 10, 20, 15, "dog", get_box_colour(3))
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, DARK, boxes=(box,)), (80, 120)))
    coloured = (found == box.colour).all(axis=2)
    assert coloured[40:60, 40].all()
    assert coloured[59, 40:80].all()
    assert not coloured[44:56, 44:76].any()
    assert coloured[28:38].any(), "its name"
    assert not coloured[64:].any()


def test_a_name_without_room_above_its_box_lies_within_the_picture() -> None:
    box = ShownBox(25, 0, 30, 20, "a very long name of a class", get_box_colour(3))
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, DARK, boxes=(box,)), (80, 120)))
    assert (found[:14] == box.colour).all(axis=2).any()


def test_boxes_without_area_and_at_the_edges_can_be_drawn() -> None:
    boxes = tuple(
        ShownBox(*sides, "x", get_box_colour(0)) for sides in ((0, 0, 0, 0), (30, 20, 30, 20), (0, 0, 30, 20))
    )
    assert draw_shown_picture(ShownPicture(PLAN, DARK, boxes=boxes), (10, 15)).size == (15, 10)


def test_a_point_is_drawn_where_it_lies() -> None:
    point = ShownPoint(10, 5, get_box_colour(4))
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, DARK, points=(point,)), (80, 120)))
    places = np.argwhere((found == point.colour).all(axis=2))
    assert np.abs(places.mean(axis=0) - (20, 40)).max() <= 1


# --- text


WHITE = (255, 255, 255)
BLACK = (0, 0, 0)


def ink(text: str, size: int = 40) -> npt.NDArray[np.bool_]:
    """Where `text` leaves ink, (80, 400)."""
    image = Image.new("RGB", (400, 80), WHITE)
    draw_text(image, (10, 20), text, size, BLACK)
    return np.asarray(image)[:, :, 0] < 128


def test_composed_and_decomposed_letters_look_the_same() -> None:
    assert np.array_equal(ink("Zo\u00eb"), ink("Zoe\u0308"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("猫", r"\u732b"),
        ("a\nb", r"a\nb"),
        ("\x1b[31m", r"\x1b[31m"),
        ("Straße", "Strasse"),
        ("Zoë Müller", "Zoe Muller"),
        ("1\N{EN DASH}2", "1-2"),
        ("\u202efdp", r"\u202efdp"),
    ],
)
def test_characters_missing_from_the_font_are_spelled_out(text: str, said: str) -> None:
    assert np.array_equal(ink(text, 20), ink(said, 20))


def test_an_empty_text_leaves_the_paper_white() -> None:
    assert not ink("").any()
    assert measure_width("", 20) == 0


@pytest.mark.parametrize("middle", [False, True])
def test_a_shortened_text_fits_and_says_that_it_is_shortened(middle: bool) -> None:
    text = "cat/IMG_2024_Müller_000012.jpg"
    short = shorten_text(text, 12, 100, middle=middle)
    assert measure_width(short, 12) <= 100
    assert measure_width(f"{short}m", 12) > 90
    head, tail = short.split("…")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert bool(tail) == middle


def test_a_text_that_fits_stays_whole() -> None:
    assert shorten_text("cat", 12, measure_width("cat", 12)) == "cat"


def test_a_text_with_no_room_becomes_an_ellipsis() -> None:
    assert shorten_text("cat.jpg", 12, 1) == "…"


# --- the sheet


MARGIN, GAP = 24, 16  # pixels around the cells, and between two of them
HEAD = 80  # more than the title needs
INK_FREE = 90  # a grey that no text and no edge has


def drawn(batch: Batch, rows: int = 256, files: dict[int, str] | None = None) -> npt.NDArray[np.uint8]:
    return np.asarray(draw_sheet(batch, files or {}, rows))


def count_pixels(sheet: npt.NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    """How many pixels have just this colour."""
    return int((sheet == colour).all(axis=2).sum())


def places(sheet: npt.NDArray[np.uint8], image: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Where `image` lies on the sheet, pixel for pixel."""
    high, wide = image.shape[:2]
    corners = np.argwhere((sheet[: -high + 1, : -wide + 1] == image[0, 0]).all(axis=2)).tolist()
    return [(y, x) for y, x in corners if np.array_equal(sheet[y : y + high, x : x + wide], image)]


@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_of_a_small_image_is_a_square_of_its_colour(channels: int) -> None:
    batch = some_batch(noise(3, 40, 30, channels))
    sheet = drawn(batch)
    for row in range(3):
        large = np.repeat(np.repeat(batch.images[row], 4, axis=0), 4, axis=1)
        assert len(places(sheet, np.broadcast_to(large, (160, 120, 3)))) == 1


def test_images_appear_in_the_order_of_their_rows() -> None:
    images = noise(9, 100, 100)
    sheet = drawn(some_batch(images))
    where = [places(sheet, image)[0] for image in images]
    assert where == sorted(where)


def test_bad_rows_are_framed_in_a_colour_of_their_own() -> None:
    bad = [BadRow(0, 5, "a.jpg", "cut short", "substituted"), BadRow(1, 6, "b.jpg", "no image", "masked")]
    sheet = drawn(some_batch(flat(4), without=[1], bad=bad))
    for colour in (MARK_COLOURS["substituted"], MARK_COLOURS["masked"]):
        assert count_pixels(sheet, colour) > 4 * 3 * 120
    clean = drawn(some_batch(flat(4)))
    assert [count_pixels(clean, colour) for colour in MARK_COLOURS.values()] == [0] * len(MARK_COLOURS)


def test_a_row_that_does_not_count_is_hatched() -> None:
    image = flat(2, 160, 160, colour=0)
    sheet = drawn(some_batch(image, without=[1]))
    assert len(places(sheet, image[0])) == 1


def test_no_more_rows_are_drawn_than_asked_for() -> None:
    images = noise(9, 100, 100)
    sheet = drawn(some_batch(images), rows=4)
    assert [len(places(sheet, image)) for image in images] == [1] * 4 + [0] * 5


@pytest.mark.parametrize(
    "changed",
    [
        {"files": {100: "cat/2.jpg"}},
        {"labels": [1, 1]},
        {"bad": [BadRow(0, 5, "a.jpg", "other", "substituted")]},
    ],
)
def test_file_label_and_reason_are_written(changed: dict[str, object]) -> None:
    label = LabelSpec("label", "category", classes=("cat", "dog"))

    def sheet(files: object = None, labels: object = (0, 1), bad: object = None) -> npt.NDArray[np.uint8]:
        verdicts = bad or [BadRow(0, 5, "a.jpg", "cut short", "substituted")]
        batch = some_batch(flat(2), [(label, labels)], bad=verdicts)  # type: ignore[arg-type]  # from the table above
        return drawn(batch, files=files or {100: "cat/1.jpg"})  # type: ignore[arg-type]  # as above

    assert np.array_equal(sheet(), sheet())
    assert not np.array_equal(sheet(), sheet(**changed))


def test_names_of_any_length_and_script_stay_within_their_cell() -> None:
    label = LabelSpec("label", "category", classes=("猫" * 60, "m" * 400))
    batch = some_batch(flat(2), [(label, [0, 1])], bad=[BadRow(1, 5, "x" * 4000, "y" * 200, "substituted")])
    files = {100: "a/" + "é" * 3000, 101: "b"}
    sheet = drawn(batch, files=files)
    second = MARGIN + 160 + GAP  # an image of 8 pixels is enlarged to 160
    assert (sheet[HEAD:, second - 10 : second - 4] == 255).all()
    assert (sheet[:, -16:] == 255).all()


def test_the_heading_has_room_above_a_single_tiny_image() -> None:
    sheet = drawn(some_batch(flat(1, 1, 1)))
    assert sheet.shape[1] > 300
    assert (sheet[:, -16:] == 255).all()


def test_a_mask_is_laid_over_its_photo_and_explained_by_a_legend() -> None:
    masked = some_masked_batch(4, 160, 160)
    plain = drawn(some_batch(masked.arrays["photo"]))
    sheet = drawn(masked)
    assert places(plain, masked.arrays["photo"][0])
    assert not places(sheet, masked.arrays["photo"][0])
    for number in (1, 2):  # the classes' own colours: in the legend and along their outlines
        assert count_pixels(sheet, get_class_colour(number)) > 100
        assert count_pixels(plain, get_class_colour(number)) == 0


def test_boxes_are_drawn_in_the_colours_of_their_classes() -> None:
    label = LabelSpec("boxes", "boxes", 5, classes=("cat", "dog"), rows=2)
    rows = [[[20, 30, 90, 80, 1], [-1] * 5]]
    sheet = drawn(some_batch(flat(1, 160, 160), [(label, np.array(rows, np.float32))]))
    assert count_pixels(sheet, get_box_colour(1)) > 2 * (70 + 50)
    assert count_pixels(sheet, get_box_colour(0)) == 0


# --- where samples and their pictures lie on the sheet


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ((1, 1), (160, 160)),
        ((28, 28), (140, 140)),
        ((32, 64), (64, 128)),
        ((128, 128), (128, 128)),
        ((240, 100), (240, 100)),
        ((480, 960), (120, 240)),
        ((1, 4000), (1, 240)),
    ],
)
def test_small_images_grow_by_whole_factors_and_large_ones_shrink(
    stored: tuple[int, int], shown: tuple[int, int]
) -> None:
    assert compute_shown_sizes([PicturePlan("", "image", stored)]) == [shown]


def test_many_pictures_of_a_sample_are_smaller_and_those_with_boxes_larger() -> None:
    large = PicturePlan("", "image", (1000, 1000))
    sides = [compute_shown_sizes([large] * pictures)[0][0] for pictures in (1, 2, 3, 6, 12)]
    assert sides == sorted(sides, reverse=True)
    assert sides[0] == 240
    assert compute_shown_sizes([replace(large, labels=("boxes",))])[0][0] > 240


@pytest.mark.parametrize("cells", [1, 2, 7, 32, 100])
@pytest.mark.parametrize("shape", [(32, 32), (128, 128), (66, 200), (600, 100)])
def test_cells_neither_overlap_nor_leave_the_sheet(cells: int, shape: tuple[int, int]) -> None:
    sheet = drawn(some_batch(flat(cells, *shape, colour=INK_FREE)), rows=cells)
    high, wide = compute_shown_sizes([PicturePlan("", "image", shape)])[0]
    is_picture = (sheet == INK_FREE).all(axis=2)
    assert is_picture.sum() == cells * high * wide, "no picture covers another one or is cut"
    rows, columns = (np.flatnonzero(np.diff(is_picture.any(axis=axis).astype(int)) == 1) + 1 for axis in (1, 0))
    assert columns[0] == MARGIN
    assert columns[-1] + wide + MARGIN <= sheet.shape[1]
    assert rows[-1] + high + MARGIN < sheet.shape[0]
    assert all(right - left >= max(wide, 154) + GAP for left, right in pairwise(columns))
    assert all(lower - upper > high for upper, lower in pairwise(rows))


@pytest.mark.parametrize(("cells", "columns"), [(1, 1), (8, 8), (9, 5), (32, 8), (256, 16)])
def test_a_sheet_is_as_wide_as_a_screen_and_wider_only_for_many(cells: int, columns: int) -> None:
    sheet = drawn(some_batch(flat(cells, 128, 128, colour=INK_FREE)), rows=cells)
    is_column = (sheet == INK_FREE).all(axis=2).any(axis=0)
    assert np.count_nonzero(np.diff(is_column.astype(int)) == 1) == columns


@pytest.mark.parametrize("views", [2, 3, 12])
def test_the_pictures_of_a_sample_stand_side_by_side_with_titles_above(views: int) -> None:
    images = flat(1, 60, 90, colour=INK_FREE)
    batch = some_batch(images)
    sheet = drawn(replace(batch, arrays={"image": np.repeat(images[:, np.newaxis], views, axis=1)}))
    is_picture = (sheet == INK_FREE).all(axis=2)
    edges = np.diff(is_picture.any(axis=0).astype(int))
    starts, ends = np.flatnonzero(edges == 1) + 1, np.flatnonzero(edges == -1) + 1
    assert len(starts) == views
    assert starts[0] == MARGIN
    assert all(start - end == 6 for end, start in zip(ends[:-1], starts[1:], strict=True))
    top = np.flatnonzero(is_picture.any(axis=1))[0]
    titles = sheet[top - 17 : top - 1]
    assert all((titles[:, start:end] != 255).any() for start, end in zip(starts, ends, strict=True))
