"""Daemons that restart with another configuration or other pixels under a running stream."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, write_images
from support.short_stream import CLASSES, FULL, SAMPLES, STEPS, all_rows, rows

import streamd
from streamd.errors import StreamChangedError

pytestmark = pytest.mark.long

# A module that every Python process imports when it starts: JPEGs decode a little brighter, where a file says so.
BRIGHTER: Final = """
import os
import simplejpeg

_decode = simplejpeg.decode_jpeg

def _brighter(*words, **options):
    pixels = _decode(*words, **options)
    if os.path.exists(os.environ["BRIGHTER"]):
        pixels |= 1
    return pixels

simplejpeg.decode_jpeg = _brighter
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", CLASSES)


@pytest.fixture
def alone(start_daemon: Start, folder: Path) -> DaemonProcess:
    return start_daemon({"workers": 1, "streams": {"train": stream_config(folder)}})


def come_back(daemon: DaemonProcess, folder: Path, **changes: object) -> None:
    """kill -9, and another configuration when it starts again."""
    config = json.loads(daemon.config.read_text())
    daemon.config.write_text(json.dumps({**config, "streams": {"train": stream_config(folder, **changes)}}))
    daemon.restart_after_kill()


@pytest.mark.fault("31", "the daemon comes back with another order, or with other images in the same order")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"batch_size": 84},
            r"a different order now: batch_size was 8 and is 84; to continue, serve the stream as it was before",
        ),
        ({"image": {"size": [64, 64]}}, r"changed in images; subscribe again: its order is the same"),
        ({"image": {"size": [16, 16]}}, r"changed in images; subscribe again: its order is the same"),
    ][: 3 if FULL else 2],
)
def test_a_running_stream_ends_when_its_daemon_restarts_with_another_configuration(
    alone: DaemonProcess, folder: Path, changes: dict[str, object], says: str
) -> None:
    with streamd.connect(alone.endpoint) as client, client.subscribe("train", epochs=1, prefetch=2) as stream:
        first = next(iter(stream)).copy()
        come_back(alone, folder, **changes)
        for _ in range(2):
            with pytest.raises(StreamChangedError, match=says):
                list(stream)
        assert first.images.shape == (8, 32, 32, 3)
        with client.subscribe("train", epochs=1) as again:
            assert sorted(rows(again)) == list(range(SAMPLES))
    assert [(each.complete, each.ok) for each in stream.receipts] == [(False, True)]


def test_a_seek_after_the_daemon_restarted_with_another_order_raises_the_same_error(
    alone: DaemonProcess, folder: Path
) -> None:
    with streamd.connect(alone.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        token = next(iter(stream)).token
        come_back(alone, folder, shuffle={"kind": "full", "seed": 9})
        stream.seek(token)
        with pytest.raises(StreamChangedError, match=r"shuffle\.seed was 0 and is 9"):
            list(stream)


@pytest.mark.long
@pytest.mark.fault("31", "the daemon comes back with a decoder that makes other pixels: noted in that epoch's receipt")
def test_a_receipt_notes_that_the_daemon_restarted_with_other_pixels(
    start_daemon: Start, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BRIGHTER)
    switch = tmp_path / "brighter"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "BRIGHTER": str(switch)}
    daemon = start_daemon({"workers": 1, "streams": {"train": stream_config(folder)}}, environment=environment)
    with streamd.connect(daemon.endpoint) as client:
        whole, as_it_was = all_rows(client, 3), client.batch("train", 1, 2)
        with client.subscribe("train", epochs=3, prefetch=2) as stream:
            batches = iter(stream)
            before = [next(batches).copy() for _ in range(STEPS + 2)]
            switch.touch()
            daemon.restart_after_kill()
            rest = [batch.copy() for batch in batches]
        assert np.any(rest[0].images != as_it_was.images)
        assert rows(before) + rows(rest) == whole
        receipts = [(receipt.changed, receipt.ok) for receipt in stream.receipts]
        assert receipts == [(False, True), (True, True), (False, True)]
        for saved, changed in ((before[-1], [True, False]), (rest[0], [True, False]), (rest[-2], [False])):
            with client.subscribe("train", epochs=3, resume=saved.token) as resumed:
                rows(resumed)
            assert [receipt.changed for receipt in resumed.receipts] == changed
