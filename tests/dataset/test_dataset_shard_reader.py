"""Images are read from the listed shards, of which a bounded number is open."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.served_folder import change_times, serve
from support.tar_shards import pack

from streamd.core.sampler import PAD_ID, BadSample
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset import shard_reader
from streamd.dataset.paths.open_beneath import UnfitFileError
from streamd.errors import ConfigError, DataAwayError
from streamd.limits import MAX_FILE_BYTES
from streamd.worker.stream_reader import StreamReader

IMAGES = {f"{shard}{row}.jpg": f"{shard}{row}".encode() * (row * 300) for shard in "abc" for row in range(4)}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of four images."""
    for shard in "abc":
        pack(tmp_path / f"shards/{shard}.tar", {name: data for name, data in IMAGES.items() if name.startswith(shard)})
    return tmp_path / "shards"


@pytest.fixture
def stream(shards: Path, tmp_path: Path) -> Iterator[ServedStream]:
    stream = serve(shards, tmp_path / "state", source={"kind": "tar", "path": str(shards)}, labels={})
    yield stream
    stream.manifest.close()


def open_shards() -> list[str]:
    """The shards that this process has open."""
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(link.name for link in links if link.suffix == ".tar")


def reason(source: StreamReader, sample_id: int) -> str:
    """Why a sample cannot be read now, though nothing is held against it."""
    (bad,) = source.read_files(np.array([sample_id], np.int64))
    assert isinstance(bad, BadSample)
    assert (bad.sample_id, bad.lasting) == (sample_id, False)
    return bad.reason


def test_a_group_has_the_bytes_of_its_images_and_none_for_padding(source: StreamReader) -> None:
    expected = list(IMAGES.values())
    assert source.read_files(np.array([7, PAD_ID, 0, 11], np.int64)) == [expected[7], None, expected[0], expected[11]]
    assert [source.read_sample(sample_id) for sample_id in range(12)] == expected
    assert source.manifest.file_name(6) == b"b.tar/b2.jpg"


def test_open_shards_are_bounded_and_a_closed_reader_has_none(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_reader, "MAX_OPEN_SHARDS", 2)
    source = StreamReader.open(stream.spec, stream.manifest_path)
    for sample_id in (0, 4, 8, 9, 5):
        source.read_sample(sample_id)
    assert open_shards() == ["b.tar", "c.tar"]
    source.close()
    assert open_shards() == []


def test_threads_may_read_while_shards_are_closed(stream: ServedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_reader, "MAX_OPEN_SHARDS", 1)
    source, expected = StreamReader.open(stream.spec, stream.manifest_path), list(IMAGES.values())
    ids = np.random.default_rng(0).integers(0, 12, (8, 100))
    with ThreadPoolExecutor(8) as pool:
        for row, blobs in zip(ids, pool.map(source.read_files, ids), strict=True):
            assert blobs == [expected[sample_id] for sample_id in row]
    source.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: change_times(path, 1),
        lambda path: os.truncate(path, 512),
        lambda path: pack(path.with_suffix(".new"), {"other.jpg": b"other"}).replace(path),
    ],
    ids=["touched", "cut", "replaced"],
)
def test_a_changed_shard_is_not_read_and_its_samples_are_not_lastingly_bad(
    source: StreamReader, shards: Path, change: Callable[[Path], object]
) -> None:
    assert source.read_sample(5) == IMAGES["b1.jpg"]
    change(shards / "b.tar")
    changed = "'b.tar' has changed since it was listed; restart with --rescan to list it again"
    assert reason(source, 5) == reason(source, 6) == changed
    assert source.read_sample(0) == IMAGES["a0.jpg"]
    change(shards / "a.tar")
    assert "'a.tar' has changed" in reason(source, 1)


def test_a_shard_that_is_gone_is_away_and_read_again_when_it_is_back(source: StreamReader, shards: Path) -> None:
    assert source.read_sample(5) == IMAGES["b1.jpg"]
    kept = (shards / "b.tar").read_bytes()
    mtime_ns = (shards / "b.tar").stat().st_mtime_ns
    (shards / "b.tar").unlink()
    away = source.read_sample(5)
    assert away == BadSample(5, "'b.tar' is not there: No such file or directory", lasting=False, away=True)
    assert source.read_sample(0) == IMAGES["a0.jpg"]
    (shards / "b.tar").write_bytes(kept)
    change_times(shards / "b.tar", mtime_ns)
    assert source.read_sample(5) == IMAGES["b1.jpg"]


def test_shards_whose_folder_is_mounted_over_are_read_where_its_path_leads(source: StreamReader, shards: Path) -> None:
    below = shards.rename(shards.with_name("below"))  # as the folder under a mount point, which stays open
    shards.mkdir()
    for path in below.iterdir():
        path.rename(shards / path.name)
    assert source.read_sample(5) == IMAGES["b1.jpg"]


def test_an_open_shard_is_read_on_after_it_was_moved(source: StreamReader, shards: Path) -> None:
    assert source.read_sample(5) == IMAGES["b1.jpg"]
    (shards / "b.tar").rename(shards / "moved")
    assert source.read_sample(6) == IMAGES["b2.jpg"]


def test_a_changed_shard_is_refused_at_the_start(stream: ServedStream, shards: Path) -> None:
    change_times(shards / "c.tar", 1)
    with pytest.raises(ConfigError, match=r"^'c\.tar' is stale: changed since it was listed; restart with --rescan"):
        StreamReader.open(stream.spec, stream.manifest_path)
    (shards / "b.tar").unlink()
    with pytest.raises(DataAwayError, match=r"^'b\.tar' is not there: No such file or directory$"):
        StreamReader.open(stream.spec, stream.manifest_path)


def test_an_image_beyond_the_largest_size_is_refused(source: StreamReader) -> None:
    assert source.shard_reader is not None
    with pytest.raises(UnfitFileError, match="has 268435457 bytes, and at most 268435456 are allowed"):
        source.shard_reader.read_image(0, MAX_FILE_BYTES + 1)


def test_all_images_of_a_group_are_prefetched_before_the_first_is_read(
    source: StreamReader, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shards / "c.tar").unlink()
    asked: list[bytes] = []

    def advise(descriptor: int, offset: int, nbytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        asked.append(os.pread(descriptor, nbytes, offset))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    (blob, pad, gone, other), _ = source.read_files_timed(np.array([5, PAD_ID, 11, 2], np.int64), is_ahead=True)
    assert [blob, other] == asked == [IMAGES["b1.jpg"], IMAGES["a2.jpg"]]
    assert pad is None
    assert isinstance(gone, BadSample)
