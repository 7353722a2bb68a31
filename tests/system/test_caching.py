"""A cached stream serves the same pixels as one without a cache, whatever happens to the cache and its daemon."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.served_folder import file_of, serve

import streamd
from streamd.dataset.cache import RECORD_TYPE
from streamd.decode.decoders import decode_image
from streamd.limits import PAGE_BYTES

pytestmark = pytest.mark.long

Pictures = dict[int, bytes]

CLASSES = {"cat": 40, "dog": 44}
SAMPLES = 84
ROW_BYTES = 32 * 32 * 3
ROWS_OFFSET = 2 * PAGE_BYTES


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", CLASSES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def cached(
    data: Path, folder: Path, max_bytes: int | None = None, workers: int = 1, **changes: object
) -> dict[str, object]:
    """A configuration with one cached stream."""
    cache = {"path": str(folder)} if max_bytes is None else {"path": str(folder), "max": max_bytes}
    return {"workers": workers, "streams": {"train": stream_config(data, cache=cache, **changes)}}


def epoch(daemon: DaemonProcess, between: Callable[[int], object] = lambda _: None) -> Pictures:
    """Every sample of an epoch with its pixels; `between` gets the index of each batch."""
    pictures: Pictures = {}
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        for batch in stream:
            rows = zip(batch.sample_ids.tolist(), batch.images, strict=True)
            pictures |= {sample_id: image.tobytes() for sample_id, image in rows}
            assert not batch.bad
            between(batch.index)
        assert [(each.ok, each.complete) for each in stream.receipts] == [(True, True)]
    return pictures


def count(daemon: DaemonProcess) -> tuple[int, int]:
    """Rows that came from the cache so far, and rows that did not."""
    with streamd.connect(daemon.endpoint) as client:
        numbers = client.stats()["stream.train"]
    return int(numbers["cache_hits"]), int(numbers["cache_misses"])


def file_in(folder: Path) -> Path:
    (path,) = folder.glob("*.cache")
    return path


def published(folder: Path) -> int:
    """The number of samples whose cache records are written."""
    records = np.fromfile(file_in(folder), RECORD_TYPE, SAMPLES, offset=PAGE_BYTES)
    return int(np.count_nonzero(records["checksum"]))


def wait_for_rows(folder: Path, rows: int = SAMPLES) -> None:
    wait_until(lambda: published(folder) == rows, f"{rows} rows are published")


@pytest.fixture
def plain(tmp_path: Path, data: Path) -> Pictures:
    """The pixels of every sample, decoded without a cache."""
    stream = serve(data, tmp_path / "state")
    row = np.empty(stream.spec.image_shape, np.uint8)
    pictures = {}
    for sample_id in range(SAMPLES):
        decode_image(file_of(stream, sample_id).read_bytes(), row, stream.spec.image)
        pictures[sample_id] = row.tobytes()
    stream.manifest.close()
    return pictures


def test_the_second_epoch_reads_no_file_and_neither_does_the_next_daemon(
    start_daemon: Start, data: Path, folder: Path
) -> None:
    daemon = start_daemon(cached(data, folder, workers=2))
    first = epoch(daemon)
    wait_for_rows(folder)
    shutil.rmtree(data / "cat")
    shutil.rmtree(data / "dog")
    assert epoch(daemon) == first
    assert count(daemon) == (SAMPLES, SAMPLES)
    assert daemon.terminate() == 0
    daemon.start()
    assert epoch(daemon) == first
    assert count(daemon) == (SAMPLES, 0)
    assert daemon.terminate() == 0
    data.rmdir()
    daemon.start()
    assert epoch(daemon) == first
    assert "data.away" not in daemon.log.read_text()


@pytest.mark.parametrize("rows", [21, 63])
def test_a_cache_that_holds_part_of_the_data_serves_that_part_in_every_epoch(
    start_daemon: Start, data: Path, folder: Path, plain: Pictures, rows: int
) -> None:
    room = ROWS_OFFSET + rows * ROW_BYTES
    daemon = start_daemon(cached(data, folder, room))
    assert epoch(daemon) == plain
    wait_for_rows(folder, rows)
    assert epoch(daemon) == epoch(daemon) == plain
    assert count(daemon) == (2 * rows, SAMPLES + 2 * (SAMPLES - rows))
    assert file_in(folder).stat().st_size <= room


@pytest.mark.fault("4", "kill -9 of the daemon while its workers fill a cache, three times an epoch")
def test_a_daemon_killed_while_it_fills_the_cache_never_shows_a_torn_row(
    start_daemon: Start, data: Path, folder: Path, plain: Pictures
) -> None:
    daemon = start_daemon(cached(data, folder, workers=2))

    def kill(index: int) -> None:
        if index in {1, 4, 8}:
            daemon.restart_after_kill()

    assert epoch(daemon, kill) == plain
    assert epoch(daemon) == plain
    wait_for_rows(folder)
    assert epoch(daemon) == plain


@pytest.mark.long
def test_damaged_cache_rows_are_found_and_rewritten(
    start_daemon: Start, data: Path, folder: Path, plain: Pictures
) -> None:
    daemon = start_daemon(cached(data, folder))
    epoch(daemon)
    wait_for_rows(folder)
    assert daemon.terminate() == 0
    with file_in(folder).open("r+b") as file:
        for sample_id in (3, 50, 83):
            file.seek(ROWS_OFFSET + sample_id * ROW_BYTES + 100)
            file.write(bytes(range(7)))
    daemon.start()
    assert epoch(daemon) == plain
    assert count(daemon) == (SAMPLES - 3, 3)
    wait_until(lambda: "rows of the cache were damaged" in daemon.log.read_text(), "it is logged")
    assert daemon.terminate() == 0
    daemon.start()
    assert epoch(daemon) == plain
    assert count(daemon) == (SAMPLES, 0)


def test_streams_of_one_daemon_share_a_cache(start_daemon: Start, data: Path, folder: Path) -> None:
    config: dict[str, Any] = cached(data, folder)
    config["streams"]["again"] = {"like": "train", "batch_size": 4, "shuffle": {"seed": 5}}
    daemon = start_daemon(config)
    epoch(daemon)
    wait_for_rows(folder)
    with streamd.connect(daemon.endpoint) as client, client.subscribe("again", epochs=1) as stream:
        assert sum(len(batch.sample_ids) for batch in stream) == SAMPLES
        assert client.stats()["stream.again"]["cache_hits"] == SAMPLES
    assert "cache.read_only" not in daemon.log.read_text()


@pytest.mark.long
def test_a_cache_deleted_in_use_keeps_working_and_is_created_again_at_the_next_start(
    start_daemon: Start, data: Path, folder: Path, plain: Pictures
) -> None:
    daemon = start_daemon(cached(data, folder))
    epoch(daemon)
    wait_for_rows(folder)
    assert epoch(daemon, lambda _: shutil.rmtree(folder, ignore_errors=True)) == plain
    assert not folder.exists()
    assert daemon.terminate() == 0
    daemon.start()
    assert epoch(daemon) == plain
    assert count(daemon) == (0, SAMPLES)
    wait_for_rows(folder)


@pytest.mark.long
@pytest.mark.fault("26", "the cache cut off under the workers that map it, and allocated again")
def test_a_cache_truncated_under_its_readers_marks_no_sample_bad(
    start_daemon: Start, data: Path, folder: Path, plain: Pictures
) -> None:
    daemon = start_daemon(cached(data, folder, workers=2))
    epoch(daemon)
    wait_for_rows(folder)
    os.truncate(file_in(folder), PAGE_BYTES)
    assert epoch(daemon) == plain
    wait_until(lambda: "SIGBUS" in daemon.log.read_text(), "a worker's death is logged")
    assert "sample.bad" not in daemon.log.read_text()
    wait_until(lambda: epoch(daemon) == plain and published(folder) == SAMPLES, "the cache is full again")


@pytest.mark.long
def test_bad_samples_are_not_cached(start_daemon: Start, data: Path, folder: Path) -> None:
    (data / "cat/0007.jpg").write_bytes(b"\xff\xd8\xff" + bytes(500))
    daemon = start_daemon(cached(data, folder, bad_samples={"policy": "mask"}))
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=2) as stream:
        masked = [row.sample_id for batch in stream for row in batch.bad]
    assert masked == [7, 7]
    wait_for_rows(folder, SAMPLES - 1)
    assert daemon.terminate() == 0
    records = np.fromfile(file_in(folder), RECORD_TYPE, SAMPLES, offset=PAGE_BYTES)
    assert np.flatnonzero(records["checksum"] == 0).tolist() == [7]


@pytest.fixture
def no_large_file() -> Iterator[None]:
    """Limits the size of files, as a full disk or a quota does; slots of these streams still fit.

    The daemon's own hard limit, since a daemon raises a soft one: it is forked with what `getrlimit` says here.
    """
    most = ROWS_OFFSET + 30 * ROW_BYTES
    find_limit = resource.getrlimit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            resource, "getrlimit", lambda which: (most, most) if which == resource.RLIMIT_FSIZE else find_limit(which)
        )
        yield


@pytest.mark.fault("22", "no space for the cache, by a limit on the size of files")
@pytest.mark.usefixtures("no_large_file")
def test_a_full_disk_is_logged_once_and_the_stream_runs_without_its_cache(
    start_daemon: Start, data: Path, folder: Path, plain: Pictures
) -> None:
    daemon = start_daemon(cached(data, folder))
    assert epoch(daemon) == epoch(daemon) == plain
    assert count(daemon) == (0, 2 * SAMPLES)
    (line,) = [line for line in daemon.log.read_text().splitlines() if "stream.remark" in line]
    assert "nothing is cached" in line
    assert "make room, or set a smaller max" in line
