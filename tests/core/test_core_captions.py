"""The captions of a batch's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sample_batches import CLASS, flat, some_batch

from streamd.core.bad_samples import BadRow
from streamd.core.captions import build_captions, format_batch_heading, format_image_form, format_label
from streamd.core.spec import ImageSpec, LabelSpec

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
        (ImageSpec(24, 32, 4, mode="raw", dtype="uint16"), "24x32 raw, 4 channels uint16"),
    ],
)
def test_an_image_is_described_by_its_size_and_mode(image: ImageSpec, words: str) -> None:
    assert format_image_form(image) == words
