"""Transforms in a daemon: what trainers get, and an edit with a reload under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.daemon_reload import reload, said
from support.running_trainers import Trainer, trainers

import streamd

FLIP: Final = """\
def f(image, labels, rng):
    print("a word on standard output")
    return (image[:, ::-1] if rng.random() < 0.5 else image), labels
"""
INVERT: Final = """\
import helper
def f(image, labels, rng):
    return helper.inverted(image), labels
"""


def epoch(daemon: DaemonProcess, stream: str) -> dict[int, Any]:
    """The images of one epoch, by sample."""
    found: dict[int, Any] = {}
    with streamd.connect(daemon.endpoint) as client, client.subscribe(stream, epochs=1) as batches:
        for batch in batches:
            found |= dict(zip(batch.sample_ids.tolist(), np.array(batch.images), strict=True))
        assert [receipt.ok for receipt in batches.receipts] == [True]
    return found


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """Two streams of the same images, of which one is transformed; the transform lies beside the configuration."""
    plain = stream_config(write_images(tmp_path / "data", {"cat": 40, "dog": 40}), shuffle="none")
    streams = {"plain": plain, "train": plain | {"transform": "augment:f"}}
    (tmp_path / "augment.py").write_text(FLIP)
    (tmp_path / "helper.py").write_text("def inverted(image): return 255 - image\n")
    with DaemonProcess(tmp_path, {"workers": 2, "streams": streams}) as daemon:
        yield daemon


@pytest.mark.long
def test_new_workers_use_an_edited_transform_after_a_reload_and_other_streams_keep_running(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    images, flipped = epoch(daemon, "plain"), epoch(daemon, "train")
    changed = [not np.array_equal(flipped[each], images[each]) for each in images]
    assert 0 < sum(changed) < len(changed)
    assert all(np.array_equal(flipped[each], images[each][:, ::-1]) for each in images if changed[each])
    workers = set(daemon.workers())

    both = Trainer(daemon.endpoint, "plain", epochs=2, allowed=3), Trainer(daemon.endpoint, epochs=2, allowed=3)
    with trainers(*both) as (kept, ended):
        wait_until(lambda: len(kept.keys) == len(ended.keys) == 3, "both are reading")
        (tmp_path / "augment.py").write_text("def f(image, labels, rng):\n    return image / 255, labels\n")
        assert "; it must return uint8 (32, 32, 3)" in reload(daemon, "reload.failed")
        wait_until(lambda: set(daemon.workers()) == workers, "those that could not open it are gone")
        (tmp_path / "augment.py").write_text(INVERT)
        assert "kept=plain changed=train" in reload(daemon)
        assert [receipt.ok for receipt in kept.finish()] == [True, True]
        assert kept.stream.reconnects == 0
        with pytest.raises(
            streamd.StreamChangedError, match=r"transform differs; subscribe again: its order is the same"
        ):
            ended.finish()
    wait_until(lambda: len(daemon.workers()) == 2 and workers.isdisjoint(daemon.workers()), "all workers are new ones")
    assert all(np.array_equal(image, 255 - images[each]) for each, image in epoch(daemon, "train").items())

    (tmp_path / "helper.py").write_text("def inverted(image): return image\n")
    assert "changed=train" in reload(daemon)
    assert all(np.array_equal(image, images[each]) for each, image in epoch(daemon, "train").items())
    assert "kept=plain,train" in reload(daemon)
    assert said(daemon, "worker.died") == []
