"""What a transform receives, and that only a fitting result is written to a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from streamd.core.spec import LabelSpec
from streamd.worker.transforms import FailedTransformError, Function, StreamTransform, UnfitTransformError

SPECS: Final = (
    LabelSpec("kind", "category", classes=("cat", "dog", "emu")),
    LabelSpec("count", "int"),
    LabelSpec("angle", "float"),
    LabelSpec("box", "float", width=4),
    LabelSpec("steps", "int", width=2),
    LabelSpec("tags", "tags", width=3, classes=("a", "b", "c")),
    LabelSpec("text", "string", text_bytes=6),
)
VALUES: Final[dict[str, Any]] = {
    "kind": 2, "count": -7, "angle": 0.25, "box": [1, 2, 3, 4], "steps": [5, 6], "tags": [0, 1, 1], "text": "zwölf",
}  # fmt: skip
RNG: Final = np.random.default_rng(0)


class Batch:
    """Two rows and their labels; the transform is called on the second."""

    def __init__(self, *specs: LabelSpec) -> None:
        self.specs = {spec.name: spec for spec in specs or SPECS}
        self.images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
        self.columns: dict[str, np.ndarray[Any, Any]] = {}
        for name, spec in self.specs.items():
            column = self.columns[name] = np.zeros((2, spec.width) if spec.width else 2, spec.dtype)
            value = VALUES[name]
            column[1] = value.encode() if isinstance(value, str) else value

    def apply(self, function: Function) -> Any:
        StreamTransform(function, Path("/somewhere"), self.specs).transform_row(
            {"image": self.images[1]}, self.columns, 1, RNG
        )


def test_a_transform_gets_a_copy_of_the_image_labels_as_python_has_them_and_the_generator() -> None:
    batch, got = Batch(), list[Any]()

    def look(image: Any, labels: Any, rng: Any) -> Any:
        got.extend([image, labels, rng])
        return image, labels

    before = batch.images.copy()
    batch.apply(look)
    image, labels, rng = got
    assert rng is RNG
    assert (image.dtype, image.flags.writeable, image.flags.c_contiguous) == (np.uint8, True, True)
    assert np.array_equal(image, before[1])
    assert not np.shares_memory(image, batch.images)
    scalars = {name: value for name, value in labels.items() if not isinstance(value, np.ndarray)}
    assert scalars == {"kind": 2, "count": -7, "angle": 0.25, "text": "zwölf"}
    assert [type(each) for each in scalars.values()] == [int, int, float, str]
    arrays = {name: (value.tolist(), value.dtype.name) for name, value in labels.items() if name not in scalars}
    assert arrays == {
        "box": ([1, 2, 3, 4], "float32"), "steps": ([5, 6], "int64"), "tags": ([0, 1, 1], "float32"),
    }  # fmt: skip
    assert np.array_equal(batch.images, before)


def test_the_result_of_a_transform_is_written_to_its_row_only() -> None:
    batch = Batch()
    mirrored = batch.images[1, :, ::-1].copy()

    def flip(image: Any, labels: Any, _: Any) -> Any:
        labels["box"] *= -1
        made = {"kind": np.int32(0), "count": 9, "angle": -labels["angle"], "box": labels["box"], "steps": [1, 2]}
        return image[:, ::-1], made | {"tags": np.array([True, False, True]), "text": "öh"}

    batch.apply(flip)
    assert np.array_equal(batch.images[1], mirrored)
    assert batch.images[0].tolist() == np.arange(60).reshape(4, 5, 3).tolist()
    found = {name: column[1].tolist() for name, column in batch.columns.items()}
    assert found == {
        "kind": 0, "count": 9, "angle": -0.25, "box": [-1, -2, -3, -4], "steps": [1, 2], "tags": [1, 0, 1],
        "text": "öh".encode(),
    }  # fmt: skip
    assert not any(column[0].any() for name, column in batch.columns.items() if name != "text")


def test_an_image_that_a_transform_keeps_is_not_the_batch() -> None:
    batch, kept = Batch(), list[Any]()

    def keep(image: Any, labels: Any, _: Any) -> Any:
        kept.append(image)
        return image, labels

    batch.apply(keep)
    before = batch.images.copy()
    kept[0][:] = 0
    assert np.array_equal(batch.images, before)


def back(image: Any = None, **labels: Any) -> Function:
    """A transform that gives this back, and what it got for the rest."""
    return lambda given, values, _: (given if image is None else image, values | labels)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *_: None, r"it returns NoneType None; it must return the pair \(image, labels\)"),
        (lambda image, *_: image, r"it returns an array of uint8 \(4, 5, 3\); it must return the pair"),
        (lambda image, labels, _: (image, labels, 1), r"it returns a tuple of 3; it must return the pair"),
        (back([1]), "it returns an image of type list; it must return a NumPy array"),
        (back(np.zeros((4, 5, 3))), r"it returns an image of float64 \(4, 5, 3\); it must return uint8 \(4, 5, 3\)"),
        (
            back(np.zeros((5, 4, 3), np.uint8)),
            r"it returns an image of uint8 \(5, 4, 3\); it must return uint8 \(4, 5, 3\)",
        ),
        (lambda image, *_: (image, None), "it returns labels of type NoneType; it must return 'kind', "),
        (lambda image, *_: (image, {"kind": 1}), "it returns labels 'kind'; it must return 'kind', 'count', 'angle'"),
        (back(more=1), "'text', 'more'; it must return 'kind', 'count'"),
    ],
)
def test_an_image_or_labels_of_another_kind_are_refused(function: Function, says: str) -> None:
    with pytest.raises(UnfitTransformError, match=says):
        Batch().apply(function)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("kind", 1.0, "it returns label 'kind' as float 1.0; it must be a whole number"),
        ("kind", 3, "it returns label 'kind' as int 3; it must be from 0 to 2"),
        ("kind", -1, "it must be from 0 to 2"),
        ("kind", "cat", "it returns label 'kind' as str 'cat'; it must be a whole number"),
        ("count", 1 << 63, "it must be from"),
        ("angle", "0.5", "it must be a number"),
        ("angle", [0.5], "it must be a number"),
        ("angle", None, "it must be a number"),
        ("box", [1, 2, 3], r"it must be numbers of shape \(4,\)"),
        ("box", np.zeros((4, 1)), r"an array of float64 \(4, 1\); it must be numbers of shape \(4,\)"),
        ("box", [[1], [2, 3]], "it returns label 'box' as list"),
        ("steps", [1.5, 2], r"it must be whole numbers of shape \(2,\)"),
        ("text", b"bytes", "it must be a str"),
        ("text", "seven b", "it can have at most 6 bytes"),
    ],
)
def test_a_label_of_another_kind_is_refused_with_what_is_needed(name: str, value: Any, says: str) -> None:
    with pytest.raises(UnfitTransformError, match=says):
        Batch().apply(back(**{name: value}))


def test_a_refusal_names_the_line_that_the_function_is_at() -> None:
    def wrong(*_: Any) -> Any:
        return 1

    place = f"test_worker_transform_call.py:{wrong.__code__.co_firstlineno}"
    with pytest.raises(UnfitTransformError, match=f"transform at .*{place}: it returns int 1; "):
        Batch().apply(wrong)


@pytest.mark.parametrize("error", [ValueError("no box"), SystemExit(3), KeyboardInterrupt()])
def test_every_exception_of_a_transform_is_a_failed_transform_error(error: BaseException) -> None:
    def fail(*_: Any) -> Any:
        raise error

    with pytest.raises(FailedTransformError, match=f"transform raised {type(error).__name__}"):
        Batch().apply(fail)


def test_a_memory_error_of_a_transform_is_raised_unchanged() -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        Batch().apply(fail)


class NamedBatch:
    """A photo of bytes, its mask and a band of uint16; the transform is called on the second row."""

    def __init__(self) -> None:
        self.rows: dict[str, np.ndarray[Any, Any]] = {
            "photo": np.arange(2 * 4 * 5 * 4, dtype=np.uint8).reshape(2, 4, 5, 4),
            "mask": np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5),
            "band": np.arange(2 * 2 * 3, dtype=np.uint16).reshape(2, 2, 3, 1) * 1000,
        }
        self.boxes = np.full((2, 3, 5), -1, np.float32)
        self.boxes[1, 0] = [0, 1, 2, 3, 4]

    def apply(self, function: Function) -> None:
        spec = LabelSpec("boxes", "boxes", width=5, rows=3)
        transform = StreamTransform(function, Path("/somewhere"), {"boxes": spec}, by_name=True)
        transform.transform_row({name: each[1] for name, each in self.rows.items()}, {"boxes": self.boxes}, 1, RNG)


def test_a_transform_by_name_gets_copies_of_all_images_and_the_boxes_of_their_row() -> None:
    batch, got = NamedBatch(), dict[str, Any]()
    before = {name: each.copy() for name, each in batch.rows.items()}

    def look(images: Any, labels: Any, _: Any) -> Any:
        got.update(images, boxes=labels["boxes"])
        kept = dict(images)
        images.clear()  # its own dict
        return kept, labels

    batch.apply(look)
    assert list(got) == ["photo", "mask", "band", "boxes"]
    for name, rows in before.items():
        assert np.array_equal(got[name], rows[1])
        assert not np.shares_memory(got[name], batch.rows[name])
        assert np.array_equal(batch.rows[name], rows)
    assert got["boxes"].tolist() == [[0, 1, 2, 3, 4], [-1] * 5, [-1] * 5]


def test_the_images_that_a_transform_by_name_returns_are_written_to_their_rows_only() -> None:
    batch = NamedBatch()
    before = {name: each.copy() for name, each in batch.rows.items()}

    def flip(images: Any, labels: Any, _: Any) -> Any:
        boxes = labels["boxes"]
        boxes[0, [0, 2]] = 5 - boxes[0, [2, 0]]
        return {name: image[:, ::-1] for name, image in reversed(images.items())}, {"boxes": boxes}

    batch.apply(flip)
    for name, rows in before.items():
        assert np.array_equal(batch.rows[name][1], rows[1, :, ::-1])
        assert np.array_equal(batch.rows[name][0], rows[0])
    assert batch.boxes[:, 0].tolist() == [[-1] * 5, [3, 1, 5, 3, 4]]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            lambda *_: None,
            r"it returns NoneType None; it must return the pair \(images, labels\), and images is a dict",
        ),
        (
            lambda images, labels, _: (images["photo"], labels),
            r"it returns images as an array of uint8 \(4, 5, 4\); it must return a dict of 'photo', 'mask', 'band'",
        ),
        (
            lambda images, labels, _: ({"photo": images["photo"], "band": images["band"]}, labels),
            "it returns a dict without image 'mask'; it must return 'photo', 'mask', 'band'",
        ),
        (
            lambda images, labels, _: (images | {"more": 1}, labels),
            "it returns a dict of 'photo', 'mask', 'band', 'more'; it must return 'photo', 'mask', 'band'",
        ),
        (
            lambda images, labels, _: (images | {"mask": [1]}, labels),
            "it returns image 'mask' of type list; it must return a NumPy array",
        ),
        (
            lambda images, labels, _: (images | {"mask": images["mask"].astype(int)}, labels),
            r"it returns image 'mask' of int64 \(4, 5\); it must return uint8 \(4, 5\)",
        ),
        (
            lambda images, labels, _: (images | {"band": images["band"][:1]}, labels),
            r"it returns image 'band' of uint16 \(1, 3, 1\); it must return uint16 \(2, 3, 1\)",
        ),
        (
            lambda images, labels, _: (images, {"boxes": labels["boxes"][:1]}),
            r"it returns label 'boxes' as an array of float32 \(1, 5\); it must be numbers of shape \(3, 5\)",
        ),
    ],
)
def test_images_of_another_kind_are_refused_by_name(function: Function, says: str) -> None:
    with pytest.raises(UnfitTransformError, match=says):
        NamedBatch().apply(function)
