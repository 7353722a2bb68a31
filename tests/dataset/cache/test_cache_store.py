"""A cache returns only what was decoded, after kills, truncation and damage too; other rows are decoded again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cached_stream import file_in, fill, gathered, held, open_cache, place, row_of, rows_of, shape_of, spoil_row
from support.opened_streams import Serve
from support.served_folder import change_times, file_of, serve
from support.tar_shards import pack
from test_cache_file import no_file_larger_than

from streamd.core.sampler import PAD_ID
from streamd.core.spec import PixelId
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset import cache as cache_module
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.cache import RECORD_TYPE, CacheFile, DecodedCache, UnfitCacheError
from streamd.limits import PAGE_BYTES
from streamd.worker.stream_reader import StreamReader


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    return serve_images({"cat": 9})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


Reopen = Callable[..., DecodedCache]


@pytest.fixture
def reopen(source: StreamReader, folder: Path) -> Iterator[Reopen]:
    """Opens the cache as another process would; it is closed after the test."""
    with ExitStack() as opened:

        def open_another(max_bytes: int | None = None, *, writable: bool = True) -> DecodedCache:
            return opened.enter_context(closing(open_cache(source, place(folder, max_bytes, writable=writable))))

        yield open_another


@pytest.fixture
def cache(reopen: Reopen) -> DecodedCache:
    return reopen()


def fill_and_close(folder: Path, source: StreamReader, ids: Iterable[int]) -> None:
    """A process keeps these samples, and ends."""
    with closing(open_cache(source, place(folder))) as cache:
        fill(cache, source, list(ids))


def test_only_published_rows_are_gathered(source: StreamReader, cache: DecodedCache) -> None:
    assert held(cache, [0, 1, 2]) == [False] * 3
    fill(cache, source, [0, 7, 3])
    assert held(cache, [0, 1, 7, PAD_ID, 3]) == [True, False, True, False, True]
    mask, images = gathered(cache, source, [7, 3, 3, 0])
    assert mask == [True] * 4
    assert np.array_equal(images, rows_of(source, [7, 3, 3, 0]))


def test_a_partly_cached_task_gets_its_cached_rows(source: StreamReader, cache: DecodedCache) -> None:
    fill(cache, source, [1, 8])
    mask, images = gathered(cache, source, [8, 2, PAD_ID, 1])
    assert mask == [True, False, False, True]
    assert np.array_equal(images[[0, 3]], rows_of(source, [8, 1]))


def test_prefetching_advises_the_system_of_the_cached_rows(
    source: StreamReader, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache, source, [1, 8])
    asked: list[bytes] = []

    def advise(descriptor: int, offset: int, nbytes: int, _: int) -> None:
        asked.append(os.pread(descriptor, nbytes, offset))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    cache.prefetch_rows(np.array([8, 2, PAD_ID, 1], np.int64))
    assert asked == [row_of(source, 8).tobytes(), row_of(source, 1).tobytes()]


def test_no_process_holds_an_unpublished_row(source: StreamReader, cache: DecodedCache, reopen: Reopen) -> None:
    cache.write_sample(4, {"image": row_of(source, 4)}, {})
    assert cache.unpublished_rows == 1
    other = reopen()
    assert held(cache, [4]) == held(other, [4]) == [False]
    cache.publish_rows()
    assert cache.unpublished_rows == 0
    assert held(cache, [4]) == held(other, [4]) == [True]


def test_rows_are_synced_before_their_records_are_written(
    source: StreamReader, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, written = CacheFile.sync_rows, list[bool]()

    def look(file: CacheFile) -> None:
        written.append(bool(file.map_row_records()["checksum"].any()))
        sync(file)

    monkeypatch.setattr(CacheFile, "sync_rows", look)
    cache.write_sample(2, {"image": row_of(source, 2)}, {})
    cache.write_sample(5, {"image": row_of(source, 5)}, {})
    assert written == []
    cache.publish_rows()
    assert written == [False]
    assert held(cache, [2, 5]) == [True, True]
    cache.publish_rows()
    assert len(written) == 1, "there was nothing to publish"


def test_rows_written_during_a_sync_are_published_by_the_next(
    source: StreamReader, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = CacheFile.sync_rows

    def slowly(file: CacheFile) -> None:
        monkeypatch.setattr(CacheFile, "sync_rows", sync)
        cache.write_sample(6, {"image": row_of(source, 6)}, {})
        sync(file)

    monkeypatch.setattr(CacheFile, "sync_rows", slowly)
    cache.write_sample(2, {"image": row_of(source, 2)}, {})
    cache.publish_rows()
    assert held(cache, [2, 6]) == [True, False]
    cache.publish_rows()
    assert held(cache, [2, 6]) == [True, True]


def test_closing_publishes_rows_for_the_next_process(source: StreamReader, reopen: Reopen, folder: Path) -> None:
    with closing(open_cache(source, place(folder))) as first:
        first.write_sample(3, {"image": row_of(source, 3)}, {})  # which closing publishes
    mask, images = gathered(reopen(writable=False), source, [3])
    assert mask == [True]
    assert np.array_equal(images[0], row_of(source, 3))


def test_a_damaged_row_is_remarked_and_decoded_again(source: StreamReader, reopen: Reopen, folder: Path) -> None:
    fill_and_close(folder, source, range(9))
    spoil_row(file_in(folder, source), shape_of(source), 5)
    cache = reopen()
    assert held(cache, [5]) == [True], "until it is looked at"
    mask, images = gathered(cache, source, [4, 5, 6])
    assert mask == [True, False, True]
    assert np.array_equal(images[[0, 2]], rows_of(source, [4, 6]))
    assert held(cache, [5]) == [False]
    (remark,) = cache.remarks
    assert "damaged" in remark
    fill(cache, source, [5])
    assert np.array_equal(gathered(cache, source, [5])[1][0], row_of(source, 5))


def test_many_damaged_rows_cause_one_remark(source: StreamReader, reopen: Reopen, folder: Path) -> None:
    fill_and_close(folder, source, range(9))
    for sample_id in (1, 2, 3):
        spoil_row(file_in(folder, source), shape_of(source), sample_id)
    cache = reopen()
    assert gathered(cache, source, [0, 1, 2, 3])[0] == [True, False, False, False]
    assert len(cache.remarks) == 1


def listed_at(stream: ServedStream, mtime_ns: int) -> StreamReader:
    """The stream, its files all written at one time."""
    for sample_id in range(9):
        change_times(file_of(stream, sample_id), mtime_ns)
    listed = serve(stream.manifest.root, stream.manifest_path.parent, rescan=True)
    return StreamReader.open(listed.spec, listed.manifest_path)


def test_pixels_in_the_place_of_another_sample_count_as_damage(stream: ServedStream, folder: Path) -> None:
    source = listed_at(stream, 10**18)
    shape = shape_of(source)
    fill_and_close(folder, source, [1, 2])
    data = bytearray(file_in(folder, source).read_bytes())
    for at, size in ((PAGE_BYTES, RECORD_TYPE.itemsize), (shape.rows_offset, shape.row_bytes)):
        data[at + 2 * size : at + 3 * size] = data[at + size : at + 2 * size]
    file_in(folder, source).write_bytes(data)
    with closing(open_cache(source, place(folder))) as cache:
        assert gathered(cache, source, [1, 2])[0] == [True, False]
    source.close()


def test_files_with_an_mtime_of_zero_are_not_mistaken_for_cached_ones(stream: ServedStream, folder: Path) -> None:
    source = listed_at(stream, 0)
    with closing(open_cache(source, place(folder))) as cache:
        assert held(cache, [3]) == gathered(cache, source, [3])[0] == [False]
        assert cache.remarks == []
    source.close()


def test_a_process_checks_a_row_once(
    source: StreamReader, reopen: Reopen, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_and_close(folder, source, [1, 2])
    checked: list[int] = []
    real = DecodedCache._compute_row_checksum

    def check(cache: DecodedCache, sample_id: int, row: Pixels) -> int:
        checked.append(sample_id)
        return real(cache, sample_id, row)

    monkeypatch.setattr(DecodedCache, "_compute_row_checksum", check)
    cache = reopen()
    for _ in range(3):
        assert gathered(cache, source, [2, 1])[0] == [True] * 2
    assert checked == [2, 1]


def test_a_file_that_is_listed_again_with_another_mtime_is_decoded_again(
    source: StreamReader, stream: ServedStream, folder: Path
) -> None:
    fill_and_close(folder, source, [3, 4])
    change_times(file_of(stream, 3), 10**18)
    listed = serve(stream.manifest.root, stream.manifest_path.parent, rescan=True)
    assert listed.spec.content_id == stream.spec.content_id
    with (
        closing(StreamReader.open(listed.spec, listed.manifest_path)) as later,
        closing(open_cache(later, place(folder))) as cache,
    ):
        assert held(cache, [3, 4]) == [False, True]
        cache.write_sample(3, {"image": row_of(source, 8)}, {})
        cache.publish_rows()
        assert np.array_equal(gathered(cache, later, [3])[1][0], row_of(source, 8))


def test_samples_of_a_shard_that_is_listed_again_are_decoded_again(
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


def test_a_stream_with_another_pixel_id_does_not_read_these_rows(
    source: StreamReader, reopen: Reopen, folder: Path
) -> None:
    fill_and_close(folder, source, [3])
    with closing(DecodedCache.open(place(folder), source.spec, source.manifest, PixelId("f" * 32))) as other:
        assert held(other, [3]) == [False]
    assert held(reopen(), [3]) == [True]


def test_a_small_cache_keeps_the_first_samples(source: StreamReader, reopen: Reopen, folder: Path) -> None:
    shape = shape_of(source)
    cache = reopen(shape.file_bytes(4))
    fill(cache, source, [8, 3, 4, 0])
    assert held(cache, list(range(9))) == [True, False, False, True] + [False] * 5
    assert file_in(folder, source).stat().st_size == shape.file_bytes(4)


def test_rows_beyond_the_end_of_a_truncated_file_are_not_held(
    source: StreamReader, reopen: Reopen, folder: Path
) -> None:
    fill_and_close(folder, source, range(9))
    os.truncate(file_in(folder, source), shape_of(source).file_bytes(6) - 1)
    cache = reopen(writable=False)
    assert held(cache, list(range(9))) == [True] * 5 + [False] * 4
    assert np.array_equal(gathered(cache, source, [4])[1][0], row_of(source, 4))
    assert gathered(cache, source, [4, 8, 5])[0] == [True, False, False]


def test_rows_of_a_truncated_and_reallocated_file_are_not_gathered(
    source: StreamReader, reopen: Reopen, folder: Path
) -> None:
    fill_and_close(folder, source, range(9))
    os.truncate(file_in(folder, source), shape_of(source).file_bytes(6))
    assert gathered(reopen(), source, list(range(9)))[0] == [True] * 6 + [False] * 3


def test_a_deleted_cache_stays_usable_where_it_is_open_and_the_next_process_begins_an_empty_one(
    source: StreamReader, cache: DecodedCache, reopen: Reopen, folder: Path
) -> None:
    fill(cache, source, [3])
    file_in(folder, source).unlink()
    fill(cache, source, [4])
    assert gathered(cache, source, [3, 4])[0] == [True, True]
    assert held(reopen(), [3, 4]) == [False, False]


def test_a_failed_write_ends_caching_and_keeps_earlier_rows(source: StreamReader, cache: DecodedCache) -> None:
    fill(cache, source, [1])
    with no_file_larger_than(shape_of(source).file_bytes(5)):
        cache.write_sample(2, {"image": row_of(source, 2)}, {})
        cache.write_sample(6, {"image": row_of(source, 6)}, {})
    cache.write_sample(3, {"image": row_of(source, 3)}, {})
    cache.publish_rows()
    assert held(cache, [1, 2, 3, 6]) == [True, True, False, False]
    (remark,) = cache.remarks
    assert remark == "the cache cannot be written: File too large; nothing more is cached until streamd is restarted"


def test_rows_that_cannot_be_synced_are_not_published(
    source: StreamReader, cache: DecodedCache, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: CacheFile) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(CacheFile, "sync_rows", refuse)
    fill(cache, source, [1])
    assert held(cache, [1]) == [False]
    assert cache.unpublished_rows == 0
    assert "Input/output error" in cache.remarks[0]
    assert held(reopen(), [1]) == [False]


def test_rows_beyond_the_unpublished_bound_are_left_for_another_epoch(
    source: StreamReader, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "CACHE_UNPUBLISHED_BYTES", 2 * source.spec.image.row_bytes)
    cache = reopen()
    fill(cache, source, [1, 2, 3])
    assert held(cache, [1, 2, 3]) == [True, True, False]
    fill(cache, source, [3])
    assert held(cache, [1, 2, 3]) == [True, True, True]


def test_a_reader_sees_rows_of_the_writer_and_writes_none(
    source: StreamReader, cache: DecodedCache, reopen: Reopen
) -> None:
    reader = reopen(writable=False)
    fill(reader, source, [2])
    assert (held(reader, [2]), reader.remarks) == ([False], [])
    fill(cache, source, [5])
    assert gathered(reader, source, [2, 5])[0] == [False, True]


def test_a_file_that_cannot_grow_is_remarked(source: StreamReader, reopen: Reopen) -> None:
    fill(reopen(shape_of(source).file_bytes(3)), source, [1])
    with no_file_larger_than(shape_of(source).file_bytes(5)):
        cache = reopen()
    fill(cache, source, [2, 4])
    assert held(cache, [1, 2, 4]) == [True, False, False]
    assert "make room, or set a smaller max" in cache.remarks[0]


def test_a_cache_with_rows_of_another_size_is_refused(source: StreamReader, reopen: Reopen, folder: Path) -> None:
    fill_and_close(folder, source, [])
    path = file_in(folder, source)
    path.write_bytes(replace(shape_of(source), row_bytes=7).header_page_bytes.ljust(path.stat().st_size, b"\0"))
    with pytest.raises(UnfitCacheError, match="it is a cache of another version"):
        reopen()
