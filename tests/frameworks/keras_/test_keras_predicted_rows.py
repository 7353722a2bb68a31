"""The ids, labels and class names of predicted rows, joined from their batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, KIND, make_spec

from streamd.client import Batch
from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras.adapter import (
    BatchRows,
    copy_target_labels,
    find_class_names,
    join_sample_ids,
    join_target_labels,
)


def make_batch(labels: dict[str, Any], **arrays: Any) -> Batch:
    return Batch(arrays, labels, np.ones(2, np.float32), np.arange(2), (), 0, 0, str, make_spec())


def make_rows(targets: Any, *batches: tuple[list[int], dict[str, list[float]]]) -> list[BatchRows]:
    return [
        BatchRows(
            np.array(ids, np.int64).tobytes(),
            copy_target_labels(make_batch({name: np.array(values) for name, values in labels.items()}), targets),
        )
        for ids, labels in batches
    ]


def test_rows_come_in_the_order_of_the_batches_with_those_that_have_no_sample() -> None:
    rows = make_rows(["kind"], ([4, 2], {"kind": [1, 2], "angle": [0.5, 0.5]}), ([7, -1], {"kind": [2, 0]}))
    assert join_sample_ids(rows).tolist() == [4, 2, 7, -1]
    assert join_target_labels(rows, ["kind"]).tolist() == [1, 2, 2, 0]
    assert set(rows[0].labels) == {"kind"}


def test_several_targets_are_given_by_name() -> None:
    targets = ("kind", "angle")
    joined = join_target_labels(make_rows(targets, ([4], {"kind": [1], "angle": [0.5]})), targets)
    assert {name: values.tolist() for name, values in joined.items()} == {"kind": [1], "angle": [0.5]}


@pytest.mark.parametrize("rows", [None, []])
def test_joining_rows_before_a_prediction_raises_with_what_to_call(rows: Any) -> None:
    for join in (join_sample_ids, lambda each: join_target_labels(each, ["kind"])):
        with pytest.raises(ConfigError, match=r"call  model.predict\(data\)  first"):
            join(rows)


def test_labels_are_copied_since_the_owner_of_the_batch_may_write_them() -> None:
    labels = {"kind": np.array([1, 2])}
    kept = copy_target_labels(make_batch(labels), ["kind"])
    labels["kind"][:] = 0
    assert kept["kind"].tolist() == [1, 2]


def test_class_names_are_texts_of_the_only_target_that_has_classes() -> None:
    assert find_class_names(make_spec(ANGLE, KIND), ("angle", "kind")) == ["car", "cat", "dog"]
    for targets in (["angle"], []):
        with pytest.raises(ConfigError, match="exactly one target with classes"):
            find_class_names(make_spec(ANGLE, KIND), targets)


def test_masks_that_were_targets_are_kept_as_copies_and_have_no_class_names() -> None:
    masks = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    rows = [BatchRows(b"", copy_target_labels(make_batch({}, mask=masks), ["mask"]))] * 2
    masks[:] = 9
    assert join_target_labels(rows, ["mask"]).ravel().tolist() == [*range(8), *range(8)]
    spec = make_spec(images={"photo": ImageSpec(8, 8, 3), "mask": ImageSpec(8, 8, 1, mode="index")})
    with pytest.raises(ConfigError, match="are mask: image of mode index"):
        find_class_names(spec, ["mask"])
