"""What a cache says it holds is what was decoded, whatever was killed, cut or damaged; all else is decoded again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cached_stream import file_in, fill, gathered, held, open_cache, place, row_of, rows_of, shape_of, spoil_row
from support.daemon_process import write_images
from support.served_folder import change_times, file_of, serve
from support.tar_shards import pack
from test_cache_file import no_file_larger_than

from streamd.core.sampler import PAD_ID
from streamd.core.spec import PixelId
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.cache import store as cache_room
from streamd.dataset.cache.file import RECORD_TYPE, CacheFile, UnfitCacheError
from streamd.dataset.cache.store import DecodedCache
from streamd.limits import PAGE_BYTES
from streamd.worker.stream_reader import StreamReader


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    stream = serve(write_images(tmp_path / "data", {"cat": 9}, size=(8, 8)), tmp_path / "state")
    yield stream
    stream.manifest.close()


@pytest.fixture
def source(stream: ServedStream) -> Iterator[StreamReader]:
    source = StreamReader.open(stream.spec, stream.manifest_path)
    yield source
    source.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(source: StreamReader, folder: Path) -> Iterator[DecodedCache]:
    cache = open_cache(source, place(folder))
    yield cache
    cache.close()


def reopened(source: StreamReader, folder: Path, *, writable: bool = True) -> DecodedCache:
    return open_cache(source, place(folder, writable=writable))


def test_what_was_kept_and_published_is_gathered_and_nothing_else(source: StreamReader, cache: DecodedCache) -> None:
    assert held(cache, [0, 1, 2]) == [False] * 3
    fill(cache, source, [0, 7, 3])
    assert held(cache, [0, 1, 7, PAD_ID, 3]) == [True, False, True, False, True]
    mask, images = gathered(cache, source, [7, 3, 3, 0])
    assert mask == [True] * 4
    assert np.array_equal(images, rows_of(source, [7, 3, 3, 0]))


def test_a_task_that_is_held_in_part_gets_its_part(source: StreamReader, cache: DecodedCache) -> None:
    fill(cache, source, [1, 8])
    mask, images = gathered(cache, source, [8, 2, PAD_ID, 1])
    assert mask == [True, False, False, True]
    assert np.array_equal(images[[0, 3]], rows_of(source, [8, 1]))


def test_what_is_held_of_a_task_to_come_is_asked_for_where_it_lies(
    source: StreamReader, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache, source, [1, 8])
    asked: list[bytes] = []

    def advise(descriptor: int, offset: int, nbytes: int, _: int) -> None:
        asked.append(os.pread(descriptor, nbytes, offset))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    cache.prefetch_rows(np.array([8, 2, PAD_ID, 1], np.int64))
    assert asked == [row_of(source, 8).tobytes(), row_of(source, 1).tobytes()]


def test_a_row_that_is_not_published_is_not_held_by_anybody(
    source: StreamReader, cache: DecodedCache, folder: Path
) -> None:
    cache.write_row(4, row_of(source, 4))
    assert cache.unpublished_rows == 1
    other = reopened(source, folder)
    assert held(cache, [4]) == held(other, [4]) == [False]
    cache.publish_rows()
    assert cache.unpublished_rows == 0
    assert held(cache, [4]) == held(other, [4]) == [True]
    other.close()


def test_rows_are_safe_on_the_disk_before_their_records_are_written(
    source: StreamReader, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, written = CacheFile.sync_rows, list[bool]()

    def look(file: CacheFile) -> None:
        written.append(bool(file.map_row_records()["checksum"].any()))
        sync(file)

    monkeypatch.setattr(CacheFile, "sync_rows", look)
    cache.write_row(2, row_of(source, 2))
    cache.write_row(5, row_of(source, 5))
    assert written == []
    cache.publish_rows()
    assert written == [False]
    assert held(cache, [2, 5]) == [True, True]
    cache.publish_rows()
    assert len(written) == 1, "there was nothing to publish"


def test_rows_kept_while_others_are_synced_wait_for_the_next_time(
    source: StreamReader, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = CacheFile.sync_rows

    def slowly(file: CacheFile) -> None:
        monkeypatch.setattr(CacheFile, "sync_rows", sync)
        cache.write_row(6, row_of(source, 6))
        sync(file)

    monkeypatch.setattr(CacheFile, "sync_rows", slowly)
    cache.write_row(2, row_of(source, 2))
    cache.publish_rows()
    assert held(cache, [2, 6]) == [True, False]
    cache.publish_rows()
    assert held(cache, [2, 6]) == [True, True]


def test_what_was_published_is_there_for_the_next_process(source: StreamReader, folder: Path) -> None:
    first = reopened(source, folder)
    first.write_row(3, row_of(source, 3))
    first.close()  # which publishes
    second = reopened(source, folder, writable=False)
    assert gathered(second, source, [3])[0] == [True]
    assert np.array_equal(gathered(second, source, [3])[1][0], row_of(source, 3))
    second.close()


def test_a_damaged_row_is_noticed_once_and_decoded_again(source: StreamReader, folder: Path) -> None:
    first = reopened(source, folder)
    fill(first, source, list(range(9)))
    first.close()
    spoil_row(file_in(folder, source), shape_of(source), 5)
    cache = reopened(source, folder)
    assert held(cache, [5]) == [True], "until it is looked at"
    mask, images = gathered(cache, source, [4, 5, 6])
    assert mask == [True, False, True]
    assert np.array_equal(images[[0, 2]], rows_of(source, [4, 6]))
    assert held(cache, [5]) == [False]
    (remark,) = cache.remarks
    assert "damaged" in remark
    fill(cache, source, [5])
    assert np.array_equal(gathered(cache, source, [5])[1][0], row_of(source, 5))
    cache.close()


def test_many_damaged_rows_are_one_remark(source: StreamReader, folder: Path) -> None:
    first = reopened(source, folder)
    fill(first, source, list(range(9)))
    first.close()
    for sample_id in (1, 2, 3):
        spoil_row(file_in(folder, source), shape_of(source), sample_id)
    cache = reopened(source, folder)
    assert gathered(cache, source, [0, 1, 2, 3])[0] == [True, False, False, False]
    assert len(cache.remarks) == 1
    cache.close()


def listed_at(stream: ServedStream, mtime_ns: int) -> StreamReader:
    """The stream, its files all written at one time."""
    for sample_id in range(9):
        change_times(file_of(stream, sample_id), mtime_ns)
    listed = serve(stream.manifest.root, stream.manifest_path.parent, rescan=True)
    return StreamReader.open(listed.spec, listed.manifest_path)


def test_pixels_in_another_samples_place_are_damage(stream: ServedStream, folder: Path) -> None:
    source = listed_at(stream, 10**18)
    first, shape = reopened(source, folder), shape_of(source)
    fill(first, source, [1, 2])
    first.close()
    data = bytearray(file_in(folder, source).read_bytes())
    for at, size in ((PAGE_BYTES, RECORD_TYPE.itemsize), (shape.rows_offset, shape.row_bytes)):
        data[at + 2 * size : at + 3 * size] = data[at + size : at + 2 * size]
    file_in(folder, source).write_bytes(data)
    cache = reopened(source, folder)
    assert gathered(cache, source, [1, 2])[0] == [True, False]
    cache.close()
    source.close()


def test_files_written_when_time_began_are_not_taken_for_kept(stream: ServedStream, folder: Path) -> None:
    source = listed_at(stream, 0)
    cache = reopened(source, folder)
    assert held(cache, [3]) == gathered(cache, source, [3])[0] == [False]
    assert cache.remarks == []
    cache.close()
    source.close()


def test_a_row_is_checked_once_in_a_process(
    source: StreamReader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = reopened(source, folder)
    fill(first, source, [1, 2])
    first.close()
    checked: list[int] = []
    real = DecodedCache._compute_row_checksum

    def check(cache: DecodedCache, sample_id: int, row: Pixels) -> int:
        checked.append(sample_id)
        return real(cache, sample_id, row)

    monkeypatch.setattr(DecodedCache, "_compute_row_checksum", check)
    cache = reopened(source, folder)
    for _ in range(3):
        assert gathered(cache, source, [2, 1])[0] == [True] * 2
    assert checked == [2, 1]
    cache.close()


def test_a_file_that_was_listed_anew_with_another_mtime_is_decoded_again(
    source: StreamReader, stream: ServedStream, folder: Path
) -> None:
    cache = reopened(source, folder)
    fill(cache, source, [3, 4])
    cache.close()
    change_times(file_of(stream, 3), 10**18)
    listed = serve(stream.manifest.root, stream.manifest_path.parent, rescan=True)
    assert listed.spec.content_id == stream.spec.content_id
    anew = StreamReader.open(listed.spec, listed.manifest_path)
    cache = reopened(anew, folder)
    assert held(cache, [3, 4]) == [False, True]
    cache.write_row(3, row_of(source, 8))
    cache.publish_rows()
    assert np.array_equal(gathered(cache, anew, [3])[1][0], row_of(source, 8))
    cache.close()
    anew.close()


def test_samples_of_a_shard_are_decoded_again_when_it_was_listed_anew(
    stream: ServedStream, folder: Path, tmp_path: Path
) -> None:
    for name, row in (("a", 0), ("b", 4)):
        pack(tmp_path / f"shards/{name}.tar", {f"{each}.jpg": file_of(stream, each).read_bytes() for each in (row, 3)})
    for age, known in ((None, [False] * 4), (1, [False, False, True, True])):
        if age is not None:
            change_times(tmp_path / "shards/a.tar", age)
        tars = {"kind": "tar", "path": str(tmp_path / "shards")}
        listed = serve(tmp_path, tmp_path / "state", rescan=True, source=tars, labels={})
        source = StreamReader.open(listed.spec, listed.manifest_path)
        cache = open_cache(source, place(folder))
        assert held(cache, [0, 1, 2, 3]) == known
        fill(cache, source, [0, 1, 2, 3])
        assert gathered(cache, source, [0, 3])[0] == [True, True]
        cache.close()
        source.close()


def test_other_pixels_never_read_what_these_wrote(source: StreamReader, folder: Path) -> None:
    cache = reopened(source, folder)
    fill(cache, source, [3])
    cache.close()
    other = DecodedCache.open(place(folder), source.spec, source.manifest, PixelId("f" * 32))
    assert held(other, [3]) == [False]
    other.close()
    same = reopened(source, folder)
    assert held(same, [3]) == [True]
    same.close()


def test_of_more_samples_than_there_is_room_for_the_first_are_kept(source: StreamReader, folder: Path) -> None:
    shape = shape_of(source)
    cache = open_cache(source, place(folder, shape.file_bytes(4)))
    fill(cache, source, [8, 3, 4, 0])
    assert held(cache, list(range(9))) == [True, False, False, True] + [False] * 5
    assert file_in(folder, source).stat().st_size == shape.file_bytes(4)
    cache.close()


def test_the_rows_of_a_file_that_was_cut_off_are_not_held(source: StreamReader, folder: Path) -> None:
    cache, shape = reopened(source, folder), shape_of(source)
    fill(cache, source, list(range(9)))
    cache.close()
    os.truncate(file_in(folder, source), shape.file_bytes(6) - 1)
    cache = reopened(source, folder, writable=False)
    assert held(cache, list(range(9))) == [True] * 5 + [False] * 4
    assert np.array_equal(gathered(cache, source, [4])[1][0], row_of(source, 4))
    assert gathered(cache, source, [4, 8, 5])[0] == [True, False, False]
    cache.close()


def test_a_file_cut_off_and_allocated_again_shows_no_zeros(source: StreamReader, folder: Path) -> None:
    cache = reopened(source, folder)
    fill(cache, source, list(range(9)))
    cache.close()
    os.truncate(file_in(folder, source), shape_of(source).file_bytes(6))
    cache = reopened(source, folder)
    assert gathered(cache, source, list(range(9)))[0] == [True] * 6 + [False] * 3
    cache.close()


def test_a_cache_that_was_deleted_goes_on_and_the_next_begins_anew(source: StreamReader, folder: Path) -> None:
    cache = reopened(source, folder)
    fill(cache, source, [3])
    file_in(folder, source).unlink()
    fill(cache, source, [4])
    assert gathered(cache, source, [3, 4])[0] == [True, True]
    anew = reopened(source, folder)
    assert held(anew, [3, 4]) == [False, False]
    cache.close()
    anew.close()


def test_a_disk_that_fails_ends_keeping_and_nothing_else(source: StreamReader, cache: DecodedCache) -> None:
    fill(cache, source, [1])
    with no_file_larger_than(shape_of(source).file_bytes(5)):
        cache.write_row(2, row_of(source, 2))
        cache.write_row(6, row_of(source, 6))
    cache.write_row(3, row_of(source, 3))
    cache.publish_rows()
    assert held(cache, [1, 2, 3, 6]) == [True, True, False, False]
    (remark,) = cache.remarks
    assert remark == "the cache cannot be written: File too large; nothing more is kept until streamd is restarted"


def test_rows_that_cannot_be_synced_are_not_published(
    source: StreamReader, cache: DecodedCache, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: CacheFile) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(CacheFile, "sync_rows", refuse)
    fill(cache, source, [1])
    assert held(cache, [1]) == [False]
    assert cache.unpublished_rows == 0
    assert "Input/output error" in cache.remarks[0]
    other = reopened(source, folder)
    assert held(other, [1]) == [False]
    other.close()


def test_what_the_disk_is_too_slow_for_is_left_for_another_epoch(
    source: StreamReader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_room, "CACHE_UNPUBLISHED_BYTES", 2 * source.spec.image.row_bytes)
    cache = reopened(source, folder)
    fill(cache, source, [1, 2, 3])
    assert held(cache, [1, 2, 3]) == [True, True, False]
    fill(cache, source, [3])
    assert held(cache, [1, 2, 3]) == [True, True, True]
    cache.close()


def test_a_reader_sees_what_the_writer_adds_and_adds_nothing(
    source: StreamReader, cache: DecodedCache, folder: Path
) -> None:
    reader = reopened(source, folder, writable=False)
    fill(reader, source, [2])
    assert (held(reader, [2]), reader.remarks) == ([False], [])
    fill(cache, source, [5])
    assert gathered(reader, source, [2, 5])[0] == [False, True]
    reader.close()


def test_room_that_could_not_be_had_is_remarked(source: StreamReader, folder: Path) -> None:
    small = open_cache(source, place(folder, shape_of(source).file_bytes(3)))
    fill(small, source, [1])
    small.close()
    with no_file_larger_than(shape_of(source).file_bytes(5)):
        cache = reopened(source, folder)
    fill(cache, source, [2, 4])
    assert held(cache, [1, 2, 4]) == [True, False, False]
    assert "make room, or set a smaller max" in cache.remarks[0]
    cache.close()


def test_a_cache_of_another_size_of_rows_is_not_taken_for_this_one(source: StreamReader, folder: Path) -> None:
    reopened(source, folder).close()
    path = file_in(folder, source)
    path.write_bytes(replace(shape_of(source), row_bytes=7).header_page_bytes.ljust(path.stat().st_size, b"\0"))
    with pytest.raises(UnfitCacheError, match="it is a cache of another version"):
        reopened(source, folder)
