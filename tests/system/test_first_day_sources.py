"""A typical table with vectors, text and tags, through a real daemon, checked sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, write_images

from streamd.client import Client

CLASSES = {"cat": 12, "dog": 12, "owl": 1}
WORDS = ("rot", "grün", "blau und weiß", "")


def row_of(name: str) -> dict[str, Any]:
    """The table's row for an image, by rules that a test can repeat."""
    kind, number = name.removesuffix(".jpg").split("/")
    at = int(number) + 100 * list(CLASSES).index(kind)
    tags = [tag for bit, tag in enumerate(("round", "small", "red")) if at >> bit & 1]
    return {"name": name, "at": at, "tags": ";".join(tags), "text": WORDS[at % 4], "driver": at % 5}


ROWS = [row_of(f"{kind}/{number:04}.jpg") for kind, count in CLASSES.items() for number in range(count)]


def streams() -> dict[str, Any]:
    table = {"kind": "table", "path": "all.csv", "image": "path", "root": "data"}
    labels = {
        "box": {"from": ["left", "top"], "type": "float"},
        "tags": "tags",
        "text": "string",
        "at": {"from": "left", "type": "int"},
    }
    return {
        "fold": {
            "source": {**table, "where": {"fold": 2}}, "labels": labels,
            "shuffle": "none", "image": {"size": [16, 16]}, "batch_size": 4,
        },
        "drivers": {
            "like": "fold", "source": {**table, "part": "train"},
            "split": {"validation": 0.5, "seed": 5, "by": "driver"}, "drop_remainder": "pad",
        },
        "others": {"like": "drivers", "source": {**table, "part": "validation"}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    write_images(place / "data", CLASSES)
    lines = [
        f"{row['name']},{row['at'] % 3},{row['at']},{-row['at']}.5,{row['tags']},{row['text']},{row['driver']}"
        for row in ROWS
    ]
    (place / "all.csv").write_text("\n".join(["path,fold,left,top,tags,text,driver", *lines]), encoding="utf-8")
    with DaemonProcess(place, {"streams": streams()}) as daemon:
        yield daemon


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


def test_rows_are_chosen_and_carry_vectors_strings_and_tags(client: Client) -> None:
    found = epoch(client, "fold")
    expected = [row for row in ROWS if row["at"] % 3 == 2]
    assert list(found) == [row["name"] for row in expected]
    classes = client.streams()["fold"].labels["tags"].classes
    for row in expected:
        labels = found[row["name"]]
        assert labels["box"].tolist() == [row["at"], float(f"{-row['at']}.5")]
        assert (labels["at"], labels["text"]) == (row["at"], row["text"])
        assert {str(classes[tag]) for tag in np.flatnonzero(labels["tags"])} == set(
            filter(None, row["tags"].split(";"))
        )


def test_a_split_by_driver_puts_no_driver_on_both_sides_and_padding_rows_have_empty_text(client: Client) -> None:
    train, validation = epoch(client, "drivers"), epoch(client, "others")
    sides = [{row_of(name)["driver"] for name in part} for part in (train, validation)]
    assert sides[0] & sides[1] == set()
    assert sides[0] | sides[1] == set(range(5))
    with client.subscribe("drivers", epochs=1) as stream:
        *_, last = (batch.copy() for batch in stream)
    empty = last.weights == 0
    assert empty.sum() == -len(train) % 4 > 0
    assert set(last.labels["text"][empty]) == {""}
    assert not last.labels["tags"][empty].any()
