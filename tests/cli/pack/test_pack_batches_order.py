"""The one stream that is packed: its samples, its classes, its order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images
from support.pack_streams import stream_of, write_table

from streamd.cli.pack.batches import build_packing_stream, compute_pack_batch_rows, list_and_open_stream
from streamd.config.load import load_config
from streamd.errors import ConfigError


def test_samples_are_packed_once_each_in_stored_order_or_in_one_global_order(tmp_path: Path) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"] |= {"shuffle": {"kind": "full", "seed": 3}, "drop_remainder": True, "batch_size": 4}
    with stream_of(config, tmp_path / "list") as stored, stream_of(config, tmp_path / "more", shuffled=True) as mixed:
        orders = [
            np.concatenate([each.compute_planned_ids(0, index) for index in range(3)]) for each in (stored, mixed)
        ]
    assert orders[0].tolist() == [0, 1, 2, 3, 4]
    assert sorted(orders[1].tolist()) == [0, 1, 2, 3, 4] != orders[1].tolist()


def test_classes_are_those_that_other_streams_share(tmp_path: Path) -> None:
    write_images(tmp_path / "a", {"cat": 1, "dog": 1})
    write_images(tmp_path / "b", {"bird": 1, "dog": 1})
    streams = {"train": stream_config(tmp_path / "a"), "validation": stream_config(tmp_path / "b")}
    with list_and_open_stream(load_config({"streams": streams}), "train", tmp_path / "list", lambda *_: None) as stream:
        assert stream.spec.labels["label"].classes == ("bird", "cat", "dog")
        assert stream.spec.samples == 2
    assert not (tmp_path / "list").exists()


def test_streams_that_have_nothing_to_do_with_it_are_not_looked_at(tmp_path: Path) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["other"] = {**stream_config(tmp_path / "missing"), "labels": {}}
    with stream_of(config, tmp_path / "list") as stream:
        assert stream.spec.name == "train"


def test_an_unknown_stream_names_the_near_one(tmp_path: Path) -> None:
    config = load_config(write_table(tmp_path / "data"))
    with (
        pytest.raises(ConfigError, match=r"no stream 'trian'; did you mean 'train'\?"),
        list_and_open_stream(config, "trian", tmp_path / "list", lambda *_: None),
    ):
        pass


@pytest.mark.parametrize(("policy", "packed"), [(None, "mask"), ("substitute", "mask"), ("fail", "fail")])
def test_a_bad_sample_leaves_its_row_empty_unless_it_shall_fail(tmp_path: Path, policy: str, packed: str) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"]["bad_samples"] = {"policy": policy}
    with stream_of(config, tmp_path / "list") as stream:
        assert stream.spec.bad_policy == packed


@pytest.mark.parametrize(
    ("side", "memory_bytes", "rows"),
    [(128, 1 << 30, 64), (16, 1 << 30, 5440), (2000, 1 << 30, 1), (128, 1 << 20, 2), (1, 1 << 40, 65536)],
)
def test_batches_are_whole_tasks_of_some_megabytes(tmp_path: Path, side: int, memory_bytes: int, rows: int) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"]["image"] = {"size": [side, side]}
    with stream_of(config, tmp_path / "list") as stream:
        assert compute_pack_batch_rows(stream, memory_bytes) == rows
        assert build_packing_stream(stream, shuffled=False, batch_rows=rows).spec.batch_size == rows
