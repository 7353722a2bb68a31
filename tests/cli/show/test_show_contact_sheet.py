"""The contact sheet: its layout, its pixels and its text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.sample_batches import flat, noise, some_batch

from streamd.cli.show.contact_sheet import (
    SheetGrid,
    compute_picture_size,
    draw_sheet,
    draw_text,
    measure_width,
    shorten_text,
)
from streamd.client import Batch
from streamd.core.bad_samples import BadRow
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
    assert compute_picture_size(*stored) == shown


@pytest.mark.parametrize("cells", [1, 2, 7, 32, 100, 256, 1024])
@pytest.mark.parametrize("shape", [(32, 32), (128, 128), (66, 200), (600, 100)])
def test_cells_neither_overlap_nor_leave_the_sheet(cells: int, shape: tuple[int, int]) -> None:
    grid = SheetGrid.compute_grid_layout(cells, shape, label_lines=2, note_lines=2, top=TOP)
    across, down = grid.sheet_size
    boxes = sorted({grid.locate_cell(cell) for cell in range(cells)})
    assert len(boxes) == cells
    assert max(x for x, _ in boxes) + grid.cell_width < across
    assert max(y for _, y in boxes) + grid.cell_height < down
    assert min(y for _, y in boxes) == TOP
    columns, rows = sorted({x for x, _ in boxes}), sorted({y for _, y in boxes})
    assert all(right - left > grid.cell_width for left, right in pairwise(columns))
    assert all(lower - upper > grid.cell_height for upper, lower in pairwise(rows))


@pytest.mark.parametrize(("cells", "columns"), [(1, 1), (8, 8), (9, 5), (32, 8), (1024, 32)])
def test_a_sheet_is_as_wide_as_a_screen_and_wider_only_for_many(cells: int, columns: int) -> None:
    assert SheetGrid.compute_grid_layout(cells, (128, 128), label_lines=1, note_lines=0, top=TOP).columns == columns


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
    grid = SheetGrid.compute_grid_layout(2, (6, 8), label_lines=1, note_lines=2, top=TOP)
    start = grid.locate_cell(1)[0] - 10
    assert (sheet[TOP:, start : start + 6] == 255).all()
    assert (sheet[:, -16:] == 255).all()


def test_the_heading_has_room_above_a_single_tiny_image() -> None:
    sheet = drawn(some_batch(flat(1, 1, 1)))
    assert sheet.shape[1] > 300
    assert (sheet[:, -16:] == 255).all()


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
