"""Labels in a pack are those of the data, and read back to the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.pack_streams import stream_of, write_table

from streamd.cli.pack.batches import PackJob
from streamd.cli.pack.label_cells import (
    build_label_reading_settings,
    build_label_setting,
    collect_sample_cells,
    compute_text_width,
)
from streamd.core.spec import LabelSpec


def test_cells_hold_the_labels_of_the_table(pack_job: PackJob) -> None:
    values = collect_sample_cells(pack_job.stream.manifest, np.array([4, 1]))
    assert {name: each.tolist() for name, each in values.items()} == {
        "name": ["e.png", "b.png"],
        "label": ["dog", "dog"],
        "angle": [7.5, -1.25],
        "tags": [[1, 1], [0, 0]],
        "text": ["y", "naïve"],
        "where": [[9, 10], [3, 4]],
    }
    assert [compute_text_width(each) for each in pack_job.stream.spec.labels.values()] == [3, 0, 0, len("two words"), 0]


def test_labels_called_name_or_weight_keep_their_names(tmp_path: Path) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"]["labels"] = {
        each: {"type": "int", "from": "x"} for each in ("name", "weight", "weight_")
    }
    config["streams"]["train"]["weights"] = "y"
    with stream_of(config, tmp_path / "list") as stream:
        values = collect_sample_cells(stream.manifest, np.array([2]))
        assert {name: each.tolist() for name, each in values.items()} == {
            "name_": ["c.png"],
            "name": [5],
            "weight": [5],
            "weight_": [5],
            "weight__": [6.0],
        }
        assert build_label_reading_settings(stream.spec)["weights"] == "weight__"
        assert build_label_reading_settings(stream.spec, "json:{}")["weights"] == "json:weight__"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (LabelSpec("a", "category", classes=("cat", "dog"), counts=(1, 1)), "category"),
        (LabelSpec("a", "category", classes=(0, 1, 10), counts=(1, 1, 1)), "category"),
        (
            LabelSpec("a", "category", classes=("dog", "cat"), counts=(1, 1)),
            {"type": "category", "classes": ["dog", "cat"]},
        ),
        (
            LabelSpec("a", "category", classes=("0", "1", "nan"), counts=(1, 1, 1)),
            {"type": "category", "classes": ["0", "1", "nan"]},
        ),
        (
            LabelSpec("a", "category", classes=("[a, b]", "c"), counts=(1, 1)),
            {"type": "category", "classes": ["[a, b]", "c"]},
        ),
        (LabelSpec("a", "category", classes=(0, 1), counts=(1, 0)), {"type": "category", "classes": [0, 1]}),
        (LabelSpec("a", "tags", classes=("x",), counts=(1,)), {"type": "tags", "classes": ["x"]}),
        (LabelSpec("a", "float"), "float"),
    ],
)
def test_classes_are_listed_when_the_data_alone_would_number_them_differently(spec: LabelSpec, wanted: object) -> None:
    assert build_label_setting(spec, "") == wanted


def test_a_source_that_differs_from_the_label_name_is_written() -> None:
    assert build_label_setting(LabelSpec("a", "int"), "/labels/a") == {"type": "int", "from": "/labels/a"}
