"""A batch in a notebook."""

from __future__ import annotations

import base64
import io
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.sample_batches import flat, noise, some_batch, some_masked_batch

from streamd.client import notebook
from streamd.client.notebook import encode_png
from streamd.core.display import format_hex_colour, get_class_colour
from streamd.core.sampler import BadRow
from streamd.core.spec import LabelSpec

TOO_LARGE_BYTES = 1_500_000  # beyond it notebooks become slow to save and to open


def pixels(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        image.verify()  # checks every checksum
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def pictures(page: str) -> list[npt.NDArray[np.uint8]]:
    return [pixels(base64.b64decode(data)) for data in re.findall(r'src="data:image/png;base64,([^"]*)"', page)]


class Balance(HTMLParser):
    """Tags that are open, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert {name for name, _ in attrs} <= {"style", "title", "width", "height", "alt", "src"}
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 1, 1), (5, 7, 3), (7, 5, 1), (160, 160, 3)])
def test_a_png_holds_the_exact_pixels(shape: tuple[int, int, int]) -> None:
    image = noise(1, *shape)[0]
    assert np.array_equal(pixels(encode_png(image)), image if shape[2] == 3 else image[:, :, 0])


def test_a_subsampled_image_becomes_a_png_though_its_memory_is_not_contiguous() -> None:
    image = noise(1, 400, 100)[0]
    assert np.array_equal(pixels(encode_png(image[::3, ::3])), image[::3, ::3])


def test_a_batch_is_shown_with_its_pictures_labels_and_ids() -> None:
    batch = some_batch(noise(3, 6, 8))
    page = batch._repr_html_()
    assert np.array_equal(np.stack(pictures(page)), batch.images)
    text = Balance(page).text.splitlines()
    assert text == ["train 0:12 · 3 samples · 6x8 RGB", "cat", "#100", "Zoë", "#101", "cat", "#102"]


def test_known_names_are_shown_below_the_pictures_and_long_ones_shortened() -> None:
    asked: list[list[int]] = []
    long = "drive/of/a/long/summer/0001.jpg"

    def find_names(sample_ids: Sequence[int]) -> dict[int, str]:
        asked.append(list(sample_ids))
        return {100: "cat/1.jpg", 102: long}

    batch = replace(some_batch(noise(4, 6, 8), without=[3]), find_names=find_names)
    page = batch._repr_html_()
    text = Balance(page).text.splitlines()[1:10]
    assert text == ["cat", "#100", "cat/1.jpg", "Zoë", "#101", "cat", "#102", "…g/summer/0001.jpg", "no sample"]
    assert f'title="{long}"' in page
    assert asked == [[100, 101, 102]]


def test_a_large_batch_shows_32_rows_and_counts_the_others() -> None:
    page = some_batch(flat(1056))._repr_html_()
    assert len(pictures(page)) == 32
    assert Balance(page).text.endswith("and 1,024 more\n")


@pytest.mark.parametrize("side", [160, 300])
def test_the_page_stays_small_even_when_nothing_can_be_compressed(side: int) -> None:
    page = some_batch(noise(64, side, side))._repr_html_()
    shown = len(pictures(page))
    assert len(page) < TOO_LARGE_BYTES
    assert shown > 8
    assert f"and {64 - shown} more" in page


def test_text_stays_small_too() -> None:
    labels = [(LabelSpec(f"n{number}", "string"), ["<" * 1024] * 64) for number in range(40)]
    bad = [BadRow(row, row, "&" * 4000, "'" * 200, "substituted") for row in range(64)]
    assert len(some_batch(flat(64), labels, bad=bad)._repr_html_()) < TOO_LARGE_BYTES


def test_names_are_text_and_never_markup() -> None:
    evil = '"><script>alert(1)</script>'
    label = LabelSpec("label", "category", classes=(evil,))
    bad = [BadRow(0, 5, evil, "' onload='x", "substituted")]
    page = Balance(some_batch(flat(1), [(label, [0])], bad=bad)._repr_html_())
    assert page.seen == {"div", "img"}
    assert page.open == []
    assert evil in page.text.splitlines()


def test_control_characters_in_names_are_escaped() -> None:
    evil = "a\x1b[2J\u202egpj"
    label = LabelSpec("label", "category", classes=(evil,))
    page = some_batch(flat(1), [(label, [0])], bad=[BadRow(0, 5, evil, "cut", "substituted")])._repr_html_()
    assert page.count("a\\x1b[2J\\u202egpj") == 3  # the line, its tip, and that of the mark
    assert not {"\x1b", "\u202e"} & set(page)


def test_bad_rows_are_marked_and_say_why() -> None:
    bad = [BadRow(0, 5, "a.jpg", "cut short", "substituted"), BadRow(1, 6, "b.jpg", "no image", "masked")]
    page = some_batch(flat(3), without=[1, 2], bad=bad)._repr_html_()
    assert Balance(page).text.splitlines()[1:] == ["cat", "#100", "substituted", "masked", "no sample"]
    assert 'title="a.jpg: cut short"' in page
    assert 'title="b.jpg: no image"' in page
    assert page.count("opacity:0.35") == 2


def test_a_page_keeps_no_view_of_the_images_so_that_their_lease_ends() -> None:
    batch = some_batch(noise(2, 6, 8))
    images = weakref.ref(batch.images)
    page = batch._repr_html_()
    del batch
    assert page
    assert images() is None


def test_a_standalone_page_has_every_pixel_of_every_row_and_the_file_names() -> None:
    batch = some_batch(noise(40, 170, 8))
    page = notebook.render_batch_page(batch, {100: "cat/<0>.png", 139: "dog.png"})
    assert np.array_equal(np.stack(pictures(page)), batch.images)
    assert page.startswith("<!doctype html>")
    lines = re.sub("<[^>]*>", "\n", page).split("\n")
    assert {"#100", "cat/&lt;0&gt;.png", "#101", "#139", "dog.png"} <= set(lines)


def test_a_mask_lies_over_its_photo_with_a_legend_of_its_classes() -> None:
    page = some_masked_batch(2, 40, 30)._repr_html_()
    found = pictures(page)
    assert [each.shape for each in found] == [(40, 30, 3)] * 2
    assert found[0][0, 0].tolist() == [100] * 3, "where the mask has no class, the photo is as it was"
    assert "photo + mask" in page
    assert re.findall(r"</span>(\d+)</div>", page) == ["0", "1", "2"]
    assert all(f"background:{format_hex_colour(get_class_colour(number))}" in page for number in range(3))


def test_boxes_and_points_are_drawn_with_escaped_class_names() -> None:
    boxes = LabelSpec("boxes", "boxes", 5, classes=("<cat>", "dog"), rows=2)
    points = LabelSpec("points", "points", 2, rows=2)
    rows = np.array([[[1, 2, 5, 4, 0], [-1] * 5]], np.float32)
    marks = np.array([[[3, 1], [-1, -1]]], np.float32)
    page = some_batch(flat(1), [(boxes, rows), (points, marks)])._repr_html_()
    assert page.count("<rect ") == 2
    assert '<rect x="1.00" y="2.00" width="4.00" height="2.00"' in page
    assert ">&lt;cat&gt;</text>" in page
    assert "<cat>" not in page
    assert page.count("<circle ") == 1
