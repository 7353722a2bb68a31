"""Boxes of all formats become corners with a class; points keep their places; mistakes are named with their line."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.boxed_pictures import boxes, column, points

from streamd.core.spec import LabelSpec
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.manifest.columns import RaggedColumn
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError


def labelled(label: LabelSource, *cells: list[list[Any]]) -> tuple[RaggedColumn, LabelSpec]:
    values, specs, _ = convert_labels({"b": label}, {"b": [column(pa.array(list(map(json.dumps, cells))))]})
    found = values["b"]
    assert isinstance(found, RaggedColumn)
    return found, specs["b"]


def refusal(label: LabelSource, *cells: list[list[Any]]) -> str:
    with pytest.raises(ConfigError) as caught:
        labelled(label, *cells)
    return str(caught.value)


@pytest.mark.parametrize(
    ("form", "box"), [("xyxy", [10, 20, 40, 30]), ("xywh", [10, 20, 30, 10]), ("cxcywh", [25, 25, 30, 10])]
)
def test_boxes_of_each_format_become_corners_and_keep_their_order(form: str, box: list[float]) -> None:
    found, spec = labelled(boxes(format=form), [[0, 0, 0.5, 0.5, 2], [*box, 1]], [])
    assert found.tolist()[0][1] == [10, 20, 40, 30, 1]
    assert found.tolist()[0][0][4] == 2
    assert found.tolist()[1] == []
    assert (spec.shape, spec.dtype, spec.classes) == ((4, 5), "float32", ())


def test_the_spec_has_what_the_configuration_says() -> None:
    _, spec = labelled(boxes(7, unit="fraction", min_visible=0.25, image="photo"), [])
    assert (spec.type, spec.rows, spec.unit, spec.min_visible, spec.image) == ("boxes", 7, "fraction", 0.25, "photo")


def test_a_class_is_a_name_or_the_number_of_one() -> None:
    found, spec = labelled(boxes(classes=("cat", "dog")), [[0, 0, 1, 1, "dog"], [0, 0, 2, 2, 0], [0, 0, 2, 2]])
    assert found.numbers[:, 4].tolist() == [1, 0, 0]
    assert (spec.classes, spec.counts) == (("cat", "dog"), (2, 1))


def test_where_classes_are_numbers_a_cell_holds_the_class_itself() -> None:
    found, _ = labelled(boxes(classes=(1, 5, 7)), [[0, 0, 1, 1, 5], [0, 0, 2, 2, "7"]])
    assert found.numbers[:, 4].tolist() == [1, 2]
    assert "holds a box of class 2, which is neither" in refusal(boxes(classes=(1, 5, 7)), [[0, 0, 1, 1, 2]])


@pytest.mark.parametrize(
    ("classes", "given", "says"),
    [
        (("cat", "dog"), "dgo", "which is neither one of the classes cat, dog nor their number from 0 to 1; add it to"),
        (("cat", "dog"), 2, "which is neither one of the classes cat, dog nor their number from 0 to 1; add it to"),
        (("cat", "dog"), 0.5, "which is neither one of the classes cat, dog nor their number from 0 to 1; add it to"),
        (None, "dog", "a class is a whole number from 0 to 16,777,215, or one of the names under classes: correct it"),
        (None, -1, "a class is a whole number from 0 to 16,777,215, or one of the names under classes: correct it"),
    ],
)
def test_an_unknown_class_is_refused_with_its_line(
    classes: tuple[object, ...] | None, given: object, says: str
) -> None:
    told = refusal(boxes(classes=classes), [], [[0, 0, 1, 1, given]])
    assert told.startswith(f"labels.b: all.csv, line 3: column 'b' holds a box of class {given!r}")
    assert says in told
    assert ("did you mean 'dog'?" in told) is (given == "dgo")


def test_more_boxes_than_max_are_refused_with_the_largest_count() -> None:
    box = [0, 0, 1, 1]
    assert refusal(boxes(2), [box] * 3, [box] * 5, [box] * 4) == (
        "labels.b.max: all.csv, line 3 has 5 boxes, the most of all samples, but max is 2; write max: 5, or remove "
        "boxes from the data"
    )
    assert "has 3 points, the most of all samples" in refusal(points(2), [[0, 0]] * 3)


def test_a_box_that_ends_before_it_begins_is_refused_with_the_likely_format() -> None:
    assert refusal(boxes(), [[0, 0, 1, 1], [50, 50, 20, 30]]) == (
        "labels.b: all.csv, line 2 holds the box [50, 50, 20, 30], which ends before it begins; write format: xywh if "
        "its last two numbers are width and height, or correct it in the data"
    )
    assert "which has a width or height below 0; write format: xyxy" in refusal(boxes(format="xywh"), [[5, 5, -1, 3]])


def test_numbers_that_float32_does_not_hold_are_refused() -> None:
    assert "which are not all finite numbers; correct it" in refusal(boxes(), [[0, 0, 1e39, 1]])


def test_a_box_without_area_is_named_and_kept_for_check(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        found, _ = labelled(boxes(), [[0, 0, 1, 1]], [[7, 7, 7, 9]])
    assert found.counts.tolist() == [1, 1]
    (told,) = caplog.messages
    assert told == (
        "labels.b: 1 box has no area and will not be delivered, the first in all.csv, line 3: [7, 7, 7, 9]; correct or "
        "remove such boxes"
    )


@pytest.mark.parametrize(
    ("unit", "box", "says"),
    [
        ("fraction", [10, 10, 200, 300], "one has the number 300; write unit: pixel"),
        ("pixel", [0.1, 0.1, 0.5, 0.9], "no number of any box is above 1; write unit: fraction"),
    ],
)
def test_numbers_of_the_other_unit_are_warned_of(
    unit: str, box: list[float], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        labelled(boxes(unit=unit), [box, box])
    assert says in caplog.text


def test_points_keep_their_places_and_hidden_ones_are_nan() -> None:
    found, spec = labelled(points(), [[1, 2], [3, 4, 0], [5, 6, 1]], [])
    rows = found.read_sample(0)
    assert rows[[0, 2]].tolist() == [[1, 2], [5, 6]]
    assert np.isnan(rows[1]).all()
    assert (spec.type, spec.shape) == ("points", (4, 2))


def test_lists_of_lists_are_no_other_type() -> None:
    told = "labels.b: column 'b' of all.csv holds lists of lists, which are boxes or points, but not type float"
    with pytest.raises(ConfigError, match=told):
        convert_labels({"b": LabelSource("float")}, {"b": [column(pa.array([[[1.0, 2.0]]]))]})
