"""Data as people have them on their first day, served by a real daemon to a real client, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, write_images

import streamd
from streamd.client import Client

CLASSES = {"cat": 12, "dog": 12, "owl": 1}
WORDS = ("rot", "grün", "blau und weiß", "")


def numbers_of(name: str) -> dict[str, Any]:
    """What the lists and tables of this module say of an image, by rules that a test can repeat."""
    kind, number = name.removesuffix(".jpg").split("/")
    at = int(number) + 100 * list(CLASSES).index(kind)
    tags = [tag for bit, tag in enumerate(("round", "small", "red")) if at >> bit & 1]
    return {"name": name, "kind": kind, "at": at, "tags": ";".join(tags), "text": WORDS[at % 4], "driver": at % 5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("d")
    write_images(place / "data", CLASSES)
    write_images(place / "data", {".cache/deep": 2})
    (place / "data" / "Thumbs.db").touch()
    rows = [numbers_of(f"{kind}/{number:04}.jpg") for kind, count in CLASSES.items() for number in range(count)]
    table = ["path,fold,left,top,tags,text,driver"]
    table += [
        f"{row['name']},{row['at'] % 3},{row['at']},{-row['at']}.5,{row['tags']},{row['text']},{row['driver']}"
        for row in rows
    ]
    (place / "all.csv").write_text("\n".join(table), encoding="utf-8")
    lines = [f"data/{row['name']} {row['kind']}" for row in reversed(rows)]
    (place / "list.txt").write_text("# path label\n\n" + "\n".join(lines))
    return place


def streams() -> dict[str, Any]:
    folder = {"kind": "folder", "path": "data"}
    table = {"kind": "table", "path": "all.csv", "image": "path", "root": "data"}
    labels = {
        "box": {"from": ["left", "top"], "type": "float"},
        "tags": "tags",
        "text": "string",
        "at": {"from": "left", "type": "int"},
    }
    return {
        "train": {
            "source": {**folder, "part": "train"}, "split": {"validation": 0.3},
            "image": {"size": [16, 16]}, "batch_size": 4,
        },
        "validation": {"like": "train", "source": {**folder, "part": "validation"}, "shuffle": "none"},
        "all": {"like": "train", "source": {**folder, "part": "all"}},
        "list": {"like": "train", "source": {"kind": "filelist", "path": "list.txt"}, "shuffle": "none"},
        "fold": {"like": "train", "source": {**table, "where": {"fold": 2}}, "labels": labels, "shuffle": "none"},
        "drivers": {
            "like": "fold", "source": {**table, "part": "train"},
            "split": {"validation": 0.5, "seed": 5, "by": "driver"}, "drop_remainder": "pad",
        },
        "others": {"like": "drivers", "source": {**table, "part": "validation"}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def endpoint(place: Path) -> Iterator[str]:
    daemon = DaemonProcess(place, {"streams": streams()}).start()
    yield daemon.endpoint
    daemon.kill()


@pytest.fixture
def client(endpoint: str) -> Iterator[Client]:
    with streamd.connect(endpoint) as client:
        yield client


def epoch(client: Client, stream: str) -> dict[str, dict[str, Any]]:
    """One epoch, by file name: the labels of each sample that was delivered."""
    found: dict[str, dict[str, Any]] = {}
    with client.subscribe(stream, epochs=1) as batches:
        for batch in batches:
            assert batch.images.any(axis=(1, 2, 3)).tolist() == (batch.weights == 1).tolist()
            there = batch.sample_ids >= 0
            names = client.names(stream, batch.sample_ids[there])
            for row, name in zip(np.flatnonzero(there).tolist(), names, strict=True):
                found[name] = {label: values[row] for label, values in batch.labels.items()}
        assert [receipt.ok for receipt in batches.receipts] == [True]
    return found


def test_the_parts_of_a_folder_make_the_whole_and_hidden_names_none(client: Client) -> None:
    train, validation, whole = (epoch(client, stream) for stream in ("train", "validation", "all"))
    assert set(train) & set(validation) == set()
    assert set(train) | set(validation) == set(whole)
    assert sorted(whole) == sorted(f"{kind}/{number:04}.jpg" for kind, n in CLASSES.items() for number in range(n))
    assert len(train) > len(validation) > 0


def test_the_classes_of_all_parts_and_of_the_list_are_one_list(client: Client) -> None:
    specs = {name: client.streams()[name].labels["label"] for name in ("train", "validation", "all", "list")}
    assert {spec.classes for spec in specs.values()} == {("cat", "dog", "owl")}
    assert specs["all"].counts == specs["list"].counts == (12, 12, 1)
    assert sorted([specs["train"].counts[2], specs["validation"].counts[2]]) == [0, 1]


def test_a_list_is_served_in_its_own_order_with_its_labels(client: Client) -> None:
    found = epoch(client, "list")
    expected = [f"data/{kind}/{number:04}.jpg" for kind, count in CLASSES.items() for number in range(count)]
    assert list(found) == expected[::-1]
    assert all(list(CLASSES)[labels["label"]] == name.split("/")[1] for name, labels in found.items())


def test_rows_are_chosen_and_carry_vectors_strings_and_tags(client: Client) -> None:
    found = epoch(client, "fold")
    expected = [numbers_of(f"{kind}/{number:04}.jpg") for kind, count in CLASSES.items() for number in range(count)]
    expected = [row for row in expected if row["at"] % 3 == 2]
    assert list(found) == [row["name"] for row in expected]
    classes = client.streams()["fold"].labels["tags"].classes
    for row in expected:
        labels = found[row["name"]]
        assert labels["box"].tolist() == [row["at"], float(f"{-row['at']}.5")]
        assert (labels["at"], labels["text"]) == (row["at"], row["text"])
        assert {str(classes[tag]) for tag in np.flatnonzero(labels["tags"])} == set(
            filter(None, row["tags"].split(";"))
        )


def test_labels_have_the_shapes_and_types_of_their_kind(client: Client) -> None:
    with client.subscribe("fold", epochs=1) as stream:
        batch = next(iter(stream))
        kinds = {name: (values.shape, values.dtype.kind) for name, values in batch.labels.items()}
        width = {name: label.width for name, label in stream.spec.labels.items()}
        assert kinds == {"box": ((4, 2), "f"), "tags": ((4, 3), "f"), "text": ((4,), "U"), "at": ((4,), "i")}
        assert width == {"box": 2, "tags": 3, "text": 0, "at": 0}


def test_no_driver_is_on_both_sides_and_rows_of_padding_have_empty_text(client: Client) -> None:
    train, validation = epoch(client, "drivers"), epoch(client, "others")
    sides = [{numbers_of(name)["driver"] for name in part} for part in (train, validation)]
    assert sides[0] & sides[1] == set()
    assert sides[0] | sides[1] == set(range(5))
    with client.subscribe("drivers", epochs=1) as stream:
        padding = [
            (text, tags.tolist())
            for batch in stream
            for text, tags in zip(
                batch.labels["text"][batch.weights == 0], batch.labels["tags"][batch.weights == 0], strict=True
            )
        ]
        assert padding == [("", [0.0, 0.0, 0.0])] * (-len(train) % 4)
        assert padding
