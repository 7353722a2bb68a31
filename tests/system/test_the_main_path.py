"""From a file through a worker process, a slot, the scheduler and the ROUTER to a client in another process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images

import streamd


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("d") / "data", {"cat": 30, "dog": 33})


@pytest.fixture(scope="module")
def daemon(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    config = {"workers": 2, "streams": {"train": stream_config(folder)}}
    with DaemonProcess(tmp_path_factory.mktemp("d"), config) as process:
        yield process


@pytest.fixture
def doomed(start_daemon: Start, folder: Path) -> DaemonProcess:
    """A daemon that a test may kill."""
    return start_daemon({"workers": 2, "streams": {"train": stream_config(folder)}})


def test_every_image_arrives_once_with_its_own_pixels_and_label(daemon: DaemonProcess, folder: Path) -> None:
    assert daemon.pid != os.getpid()
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        names = [*sorted((folder / "cat").iterdir()), *sorted((folder / "dog").iterdir())]
        seen: list[int] = []
        for batch in stream:
            assert batch.images.flags.writeable is False
            for row, sample_id in enumerate(batch.sample_ids.tolist()):
                pixels = simplejpeg.decode_jpeg(names[sample_id].read_bytes())
                expected = cv2.resize(pixels, (32, 32), interpolation=cv2.INTER_LINEAR_EXACT)
                assert np.array_equal(batch.images[row], expected)
                assert batch.labels["label"][row] == ("dog" in str(names[sample_id]))
                seen.append(sample_id)
    assert sorted(seen) == list(range(63))
    assert seen != sorted(seen)
    assert [(each.missed, each.repeated, each.samples, each.ok) for each in stream.receipts] == [(0, 0, 63, True)]


def test_an_image_for_a_trained_model_has_the_pixels_that_were_served(daemon: DaemonProcess, folder: Path) -> None:
    names = [*sorted((folder / "cat").iterdir()), *sorted((folder / "dog").iterdir())]
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        batch = next(iter(stream))
        for row, sample_id in enumerate(batch.sample_ids.tolist()):
            assert np.array_equal(streamd.load_image(names[sample_id], stream.spec), batch.images[row])


def test_pixels_come_by_socket_where_memory_cannot_be_shared(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(descriptor: int, nbytes: int) -> memoryview:
        raise PermissionError(errno.EACCES, f"no mapping of {nbytes} bytes of {descriptor}")

    monkeypatch.setattr("streamd.client.io_thread.map_readable", refuse)
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=2) as stream:
        keys = [(batch.epoch, batch.index) for batch in stream]
    assert keys == [(epoch, index) for epoch in range(2) for index in range(8)]
    assert [receipt.ok for receipt in stream.receipts] == [True, True]
    assert capsys.readouterr().err.count("memory cannot be shared here") == 1


def test_workers_end_when_their_daemon_is_killed(doomed: DaemonProcess) -> None:
    workers = doomed.workers()
    assert len(workers) == 2
    doomed.process.kill()
    doomed.process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers have ended")
