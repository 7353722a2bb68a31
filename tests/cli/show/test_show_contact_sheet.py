"""The contact sheet: its pixels and its captions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from support.sample_batches import flat, noise, some_batch, some_masked_batch

from streamd.cli.show.contact_sheet import SheetGrid, compute_shown_size, draw_sheet
from streamd.client import Batch
from streamd.core.bad_samples import BadRow
from streamd.core.class_colours import get_box_colour, get_class_colour
from streamd.core.spec import LabelSpec

TOP = 80
RED = (200, 36, 44)
ORANGE = (190, 98, 0)


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
    for colour in (RED, ORANGE):
        assert count_pixels(sheet, colour) > 4 * 3 * 120
    clean = drawn(some_batch(flat(4)))
    assert count_pixels(clean, RED) + count_pixels(clean, ORANGE) == 0


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
    grid = SheetGrid.compute_grid_layout(2, [compute_shown_size(6, 8)], label_lines=1, note_lines=2, top=TOP)
    start = grid.locate_cell(1)[0] - 10
    assert (sheet[TOP:, start : start + 6] == 255).all()
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
