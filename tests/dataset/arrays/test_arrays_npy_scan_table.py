"""Labels beside arrays of images: every type, one row for each image; other numbers of rows are refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.source_configs import Label, Npy, Split, Stream, assert_refused, part_of, refusal, scanned

from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.types import ListedValues
from streamd.dataset.scan import scan_source
from streamd.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Four images."""
    np.save(tmp_path / "x.npy", np.zeros((4, 2, 2), np.uint8))
    return str(tmp_path / "x.npy")


def label_of_array(path: str, array: Any, kind: str, **more: Any) -> tuple[ListedValues, LabelSpec]:
    """A label from an array beside the images."""
    file = Path(path).with_name("y.npy")
    np.save(file, array)
    found = scanned(Npy(path), y=Label(kind, file, **more))
    return found.labels["y"], found.specs["y"]


@pytest.mark.parametrize(
    ("array", "kind", "values"),
    [
        (np.array([3, -1, 0, 2], np.int8), "int", [3, -1, 0, 2]),
        (np.array([3, 1, 0, 2], ">u2"), "int", [3, 1, 0, 2]),
        (np.array([1.0, 2.0, 0.0, 7.0]), "int", [1, 2, 0, 7]),
        (np.array([True, False, False, True]), "int", [1, 0, 0, 1]),
        (np.array([0.5, 1, 2, -3], np.float16), "float", [0.5, 1, 2, -3]),
        (np.array([0.5, 1, 2, -3], ">f8").reshape(4, 1), "float", [0.5, 1, 2, -3]),
        (np.arange(8, dtype=np.float32).reshape(4, 2), "float", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (np.arange(8).reshape(4, 2), "int", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (np.array(["b", "ä", "", "b"]), "string", [b"b", "ä".encode(), b"", b"b"]),
        (np.array([b"b", b"a", b"", b"b"]), "string", [b"b", b"a", b"", b"b"]),
    ],
    ids=lambda each: f"{each.dtype} {each.shape}" if isinstance(each, np.ndarray) else None,
)
def test_an_array_of_labels_gives_the_values_of_a_column(path: str, array: Any, kind: str, values: list[Any]) -> None:
    found, spec = label_of_array(path, array, kind)
    assert (found.tolist(), spec.width) == (values, len(values[0]) if isinstance(values[0], list) else 0)


@pytest.mark.parametrize(
    ("array", "numbers", "classes"),
    [
        (np.array([10, 2, 2, 0]), [2, 1, 1, 0], (0, 2, 10)),
        (np.array([10, 2, 2, 0], np.uint8).reshape(4, 1), [2, 1, 1, 0], (0, 2, 10)),
        (np.array([2.0, 1.0, 1.0, 0.0]), [2, 1, 1, 0], (0, 1, 2)),
        (np.array(["dog", "cat", "cat", "eel"]), [1, 0, 0, 2], ("cat", "dog", "eel")),
        (np.array([b"dog", b"cat", b"cat", b"eel"]), [1, 0, 0, 2], ("cat", "dog", "eel")),
    ],
    ids=lambda each: f"{each.dtype} {each.shape}" if isinstance(each, np.ndarray) else None,
)
def test_classes_of_an_array_are_numbered_as_those_of_a_column(
    path: str, array: Any, numbers: list[int], classes: tuple[object, ...]
) -> None:
    values, spec = label_of_array(path, array, "category")
    assert (values.tolist(), spec.classes) == (numbers, classes)


def test_configured_classes_hold_for_an_array_and_its_row_is_named(path: str) -> None:
    assert label_of_array(path, np.array([1, 0, 0, 2]), "category", classes=(2, 1, 0))[0].tolist() == [1, 2, 2, 0]
    says = r"labels\.y: '7' \(y\.npy\[2\]\) is not one of the configured classes 2, 1, 0"
    with pytest.raises(ConfigError, match=says):
        label_of_array(path, np.array([1, 0, 7, 2]), "category", classes=(2, 1, 0))


@pytest.mark.parametrize(
    ("array", "kind", "told"),
    [
        (np.zeros(3), "float", "labels.y.from: 'y.npy' has 3 rows, but there are 4 images; it needs one row per image"),
        (
            np.zeros((4, 2, 2)),
            "float",
            "the array of y.npy holds lists of lists, which are boxes or points, but not type float",
        ),
        (np.zeros((), int), "int", "holds int64 (); labels must be numbers or text"),
        (np.zeros(4, complex), "float", "holds complex128 (4,); labels must be numbers or text"),
        (np.zeros((4, 2), int), "string", "labels.y.from: several numbers per row make a vector of type float or int"),
        (np.array([0, np.nan, 0, 0]), "float", "labels.y: y.npy[1] holds nan, which is not a finite number"),
        (np.array([0, 0.5, 0, 0]), "int", "labels.y: y.npy[1] holds 0.5, which is not a whole number"),
        (np.array(["a", "b", "c", "d"]), "int", "labels.y: y.npy[0]: the array holds 'a', which is not a number"),
        (np.array([b"\xff", b"", b"", b""]), "string", "the array of y.npy holds binary, which is not text"),
        (np.array(["a", "b", "", "d"]), "category", "labels.y: y.npy[2]: the array has no value"),
        (np.array([2**63, 0, 0, 0], np.uint64), "int", "the array of y.npy holds uint64, which is not a number"),
    ],
    ids=lambda each: f"{each.dtype} {each.shape}" if isinstance(each, np.ndarray) else None,
)
def test_an_array_that_makes_no_label_is_refused_with_its_row_or_shape(
    path: str, array: Any, kind: str, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        label_of_array(path, array, kind)
    assert told in str(caught.value).replace(f"{Path(path).parent}/", "")


def test_a_table_that_is_too_short_or_too_long_is_refused_with_both_counts(path: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    for rows in (3, 5):
        table.write_text("y\n" + "1\n" * rows)
        assert refusal(Npy(path, table, {"y": 1}), y=Label("int")) == (
            f"streams.train.source.table: '{table}' has {rows} rows, but there are 4 images; it needs one row per "
            "image, in the order of the images: correct the rows, or the path of the images"
        )


def test_a_label_without_a_column_asks_for_a_table_or_an_array(path: str) -> None:
    assert refusal(Npy(path), angle=Label("float")) == (
        "streams.train.labels.angle: no table has a column 'angle'; add table: FILE under source, or take the "
        "label from an array with from: FILE.npy"
    )


def test_an_unused_table_causes_a_warning(path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t.csv").write_text("y\n1\n")
    with caplog.at_level(logging.WARNING):
        scan_source(Stream(Npy(path, tmp_path / "t.csv"), {}), lambda _: None)
    assert f"no column of '{tmp_path}/t.csv' is used; name its columns in labels" in caplog.text


def test_the_column_under_names_gives_the_images_their_display_names(path: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("name,file,kind\nx,a.jpg,1\ny,,2\nz,c.jpg,1\nw,d.jpg,1\n")
    found = scanned(Npy(path, table=table, where={"kind": 1}, names="file"))
    assert list(found.display_names or ()) == [b"a.jpg", b"c.jpg", b"d.jpg"]
    assert list(found.sample_names()) == [b"x.npy[0]", b"x.npy[2]", b"x.npy[3]"]
    assert scanned(Npy(path, table=table), kind=Label("int")).display_names is None
    near = r"source\.names: .* has no column 'fil'; its columns are: name, file, kind; did you mean 'file'"
    assert_refused(Npy(path, table=table, names="fil"), near)


def test_a_split_by_a_column_needs_a_table(path: str) -> None:
    with pytest.raises(ConfigError, match=r"split\.by: no table has a column 'drive'; add table: FILE"):
        part_of(Npy(path, part="train"), Split(by="drive"))
