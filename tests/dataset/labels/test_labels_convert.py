"""Cells become labels of the wanted type, in tables and lists alike."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.source_configs import Label, bits

from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.convert import Labels, convert_labels


def labelled(label: Label, *cells: Any) -> Labels:
    rows = SourceRows(Path("all.csv"), lambda row: f"all.csv, line {row + 2}")
    return convert_labels(
        {"t": label}, {"t": [Column(pa.chunked_array([list(cells)]), "column 't'", rows, "labels.t")]}
    )


def tags_of(*cells: Any) -> list[set[object]]:
    values, specs, _ = labelled(Label("tags"), *cells)
    rows = bits(values["t"], specs["t"].width)
    return [{specs["t"].classes[tag] for tag in np.flatnonzero(row)} for row in rows]


def test_tags_stand_between_bars_semicolons_and_commas() -> None:
    assert tags_of("red;round, small", "red|traffic light", " small ") == [
        {"red", "round", "small"},
        {"red", "traffic light"},
        {"small"},
    ]


def test_white_space_separates_tags_where_no_cell_has_another_separator_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "streamd.sources"):
        assert tags_of("haze primary", "clear\t water") == [{"haze", "primary"}, {"clear", "water"}]
        assert "labels.t: no cell holds | ; or , so white space separates the tags" in caplog.text
        caplog.clear()
        tags_of("a;b")
        assert caplog.text == ""


@pytest.mark.parametrize("empty", ["", "  ", ";", None])
def test_a_cell_without_tags_is_legal(empty: str | None) -> None:
    assert tags_of("a;b", empty) == [{"a", "b"}, set()]


def test_only_listed_classes_are_fixed() -> None:
    assert labelled(Label("tags", classes=("a",)), "a")[2] == {"t"}
    assert labelled(Label("tags"), "a")[2] == frozenset()


def test_a_column_of_text_is_one_label_of_any_type() -> None:
    assert labelled(Label("category"), "b", "a")[0]["t"].tolist() == [1, 0]
    assert labelled(Label("float"), "+0.5", "2")[0]["t"].tolist() == [0.5, 2.0]
    assert labelled(Label("int"), "7", "8")[0]["t"].tolist() == [7, 8]
    assert labelled(Label("string"), " x y ", None)[0]["t"].tolist() == [b"x y", b""]
