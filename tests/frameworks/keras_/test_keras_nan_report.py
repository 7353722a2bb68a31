"""Which samples a NaN loss is blamed on, and the message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamd.core.spec import ImageSpec
from streamd.frameworks.keras.nan_guard import (
    PixelFault,
    StepRecord,
    describe_loss,
    find_pixel_faults,
    find_suspects,
)

pytestmark = pytest.mark.train


def step(index: int, ids: list[int], **labels: Any) -> StepRecord:
    return StepRecord(0, index, np.array(ids), {name: np.asarray(values) for name, values in labels.items()})


SOUND = step(3, [7, 8], angle=[0.0, 1.0], kind=[2, 0])
SPOILED = step(4, [1, 5], angle=[np.nan, 1.0], box=[[1.0, 2.0], [np.inf, 0.0]])


def test_samples_with_any_non_finite_label_are_found() -> None:
    assert SOUND.find_non_finite_labels() == {}
    assert SPOILED.find_non_finite_labels() == {"angle": [1], "box": [5]}


def test_steps_with_non_finite_labels_are_suspected_or_else_all_steps() -> None:
    assert find_suspects([SOUND, SPOILED]) == [SPOILED]
    assert find_suspects([SOUND, SOUND]) == [SOUND, SOUND]


def test_a_spoiled_label_is_reported_with_its_samples_and_files() -> None:
    assert describe_loss(float("nan"), "train", [SPOILED], {1: "left/1.jpg"}).splitlines() == [
        "the loss is nan after batch 0:4 of 'train'",
        "label 'angle' is NaN or infinite in 1 of 2 samples, which makes the loss NaN or infinite: fix #1 left/1.jpg",
        "label 'box' is NaN or infinite in 1 of 2 samples, which makes the loss NaN or infinite: fix #5",
    ]


def test_many_spoiled_samples_are_counted() -> None:
    told = describe_loss(float("nan"), "train", [step(0, list(range(20)), angle=np.full(20, np.nan))], {})
    assert told.endswith(
        "in 20 of 20 samples, which makes the loss NaN or infinite: fix #0, #1, #2, #3, #4, #5, #6, #7 and 12 more"
    )


def test_finite_labels_leave_only_the_weights_to_blame() -> None:
    told = describe_loss(float("inf"), "train", [SOUND], {7: "7.jpg"})
    assert told.startswith(
        "the loss is inf after batch 0:3 of 'train'\nall its labels and pixels are finite, so the weights"
    )
    assert "smaller learning rate" in told


IMAGES = {
    "bands": ImageSpec(2, 2, 1, mode="raw", dtype="float32"),
    "mask": ImageSpec(2, 2, 1, mode="index", fill=255),
    "photo": ImageSpec(2, 2, 3),
}


def test_pixels_that_are_not_finite_and_targets_without_a_class_are_found() -> None:
    bands, mask = np.zeros((3, 2, 2, 1), np.float32), np.zeros((3, 2, 2), np.uint8)
    bands[1, 0, 1], mask[[0, 2], 1, 1] = np.inf, 255
    arrays: dict[str, Any] = {"bands": bands, "mask": mask, "photo": np.full((3, 2, 2, 3), 255, np.uint8)}
    ids = np.array([4, 6, 9])
    faults = find_pixel_faults(arrays, ids, IMAGES, ("mask",))
    assert faults == [PixelFault("bands", (6,)), PixelFault("mask", (4, 9), 255)]
    assert find_pixel_faults({"mask": mask}, ids, IMAGES, ()) == []


def test_a_spoiled_image_is_reported_with_its_samples_and_files() -> None:
    faults = [PixelFault("bands", (7,)), PixelFault("mask", (8,), 255), PixelFault("bands", (8,))]
    assert describe_loss(float("nan"), "train", [SOUND], {7: "7.tif"}, faults).splitlines()[1:] == [
        (
            "image 'bands' has pixels that are NaN or infinite in 2 of 2 samples, which makes the loss NaN or "
            "infinite: fix #7 7.tif, #8"
        )
    ]


def test_class_numbers_of_no_class_are_a_cause_that_may_not_be_the_only_one() -> None:
    told = describe_loss(float("nan"), "train", [SOUND], {}, [PixelFault("mask", (8, -1), 255)])
    assert "image 'mask' has the number 255, which stands for no class, in 2 of 2 samples (#8, a row without" in told
    assert "SparseCategoricalCrossentropy(ignore_class=255)" in told
    assert told.endswith(
        "all its labels are finite; if its images are too, the weights have overflowed: try a smaller "
        "learning rate, or an optimizer with clipnorm"
    )


def test_images_that_could_not_be_examined_are_not_called_finite() -> None:
    assert "if its images are too" in describe_loss(float("nan"), "train", [SOUND], {}, None)


@pytest.mark.parametrize("spoiled", [SOUND, SPOILED])
def test_steps_executed_together_are_reported_as_a_range(spoiled: StepRecord) -> None:
    told = describe_loss(float("nan"), "train", [SOUND, spoiled], {})
    assert f"after batches 0:3 to {spoiled.batch_position_text} of 'train', which were executed together" in told
