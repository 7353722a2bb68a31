"""Where the samples of a contact sheet and their pictures lie."""

from __future__ import annotations

from itertools import pairwise

import pytest

from streamd.cli.show.contact_sheet import SheetGrid, choose_reduced_side, compute_shown_size

TOP = 80


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
    assert compute_shown_size(*stored) == shown


@pytest.mark.parametrize("cells", [1, 2, 7, 32, 100, 256, 1024])
@pytest.mark.parametrize("shape", [(32, 32), (128, 128), (66, 200), (600, 100)])
def test_cells_neither_overlap_nor_leave_the_sheet(cells: int, shape: tuple[int, int]) -> None:
    grid = SheetGrid.compute_grid_layout(cells, [compute_shown_size(*shape)], label_lines=2, note_lines=2, top=TOP)
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
    assert SheetGrid.compute_grid_layout(cells, [(128, 128)], label_lines=1, note_lines=0, top=TOP).columns == columns


@pytest.mark.parametrize("pictures", [2, 3, 12])
def test_the_pictures_of_a_sample_stand_side_by_side_within_its_cell(pictures: int) -> None:
    grid = SheetGrid.compute_grid_layout(5, [(60, 90)] * pictures, 1, 0, TOP, title_lines=1)
    places = [grid.locate_picture(3, number) for number in range(pictures)]
    x, y = grid.locate_cell(3)
    assert places[0] == (x, y + grid.title_height)
    assert all(right[0] - left[0] > 90 for left, right in pairwise(places))
    assert places[-1][0] + 90 == x + grid.cell_width
    assert grid.title_height > 12


def test_many_pictures_of_a_sample_are_smaller_and_those_with_boxes_larger() -> None:
    sides = [choose_reduced_side(pictures, is_drawn_on=False) for pictures in (1, 2, 3, 6, 12)]
    assert sides == sorted(sides, reverse=True)
    assert sides[0] == 240
    assert choose_reduced_side(1, is_drawn_on=True) > 240
