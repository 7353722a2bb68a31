"""The file of a cache: its layout, how it grows, and which other files are refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.cached_stream import place
from support.sample_specs import some_spec

from streamd.core.spec import ImageSpec, PixelId
from streamd.dataset.cache import RECORD_TYPE, CacheFile, CacheLayout, UnfitCacheError, lock_file_name
from streamd.limits import PAGE_BYTES

SHAPE = CacheLayout("c" * 32, PixelId("d" * 32), 1000, 100)


@contextmanager
def no_file_larger_than(nbytes: int) -> Iterator[None]:
    """What a full disk or a quota would do, whoever runs the tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_records_and_rows_begin_at_pages_and_follow_each_other() -> None:
    assert len(SHAPE.header_page_bytes) == PAGE_BYTES
    assert SHAPE.rows_offset == PAGE_BYTES + 4 * PAGE_BYTES >= PAGE_BYTES + 1000 * RECORD_TYPE.itemsize
    assert SHAPE.file_bytes(3) - SHAPE.file_bytes(2) == 100


@pytest.mark.parametrize("rows", [0, 1, 999, 1000])
def test_a_file_has_room_for_the_rows_that_it_was_made_for(rows: int) -> None:
    assert SHAPE.count_rows(SHAPE.file_bytes(rows)) == rows
    assert SHAPE.count_rows(SHAPE.file_bytes(rows) + 99) == rows
    assert SHAPE.count_rows(SHAPE.file_bytes(rows) - 1) == max(0, rows - 1)


def test_no_file_has_room_for_more_samples_than_there_are() -> None:
    assert SHAPE.count_rows(1 << 40) == 1000
    assert SHAPE.count_rows(0) == 0


def test_a_new_file_is_empty_and_has_its_space_allocated(tmp_path: Path) -> None:
    file = CacheFile.open(place(tmp_path), SHAPE)
    found = (tmp_path / SHAPE.cache_file_name).stat()
    assert (file.rows, file.writable_rows, file.trouble) == (1000, 1000, "")
    assert found.st_size == SHAPE.file_bytes(1000)
    assert found.st_blocks * 512 >= found.st_size
    assert found.st_mode & 0o777 == 0o600
    assert (tmp_path / SHAPE.cache_file_name).read_bytes() == SHAPE.header_page_bytes.ljust(
        SHAPE.file_bytes(1000), b"\0"
    )
    file.close()


def test_max_bounds_the_file_and_its_number_of_rows(tmp_path: Path) -> None:
    file = CacheFile.open(place(tmp_path, SHAPE.file_bytes(400) + 50), SHAPE)
    assert (file.rows, file.writable_rows) == (400, 400)
    assert (tmp_path / SHAPE.cache_file_name).stat().st_size <= SHAPE.file_bytes(400) + 50
    file.close()


def test_a_larger_max_adds_to_a_file_and_a_smaller_one_takes_nothing_away(tmp_path: Path) -> None:
    small = CacheFile.open(place(tmp_path, SHAPE.file_bytes(10)), SHAPE)
    small.write_row(9, memoryview(b"x" * 100))
    large = CacheFile.open(place(tmp_path, SHAPE.file_bytes(20)), SHAPE)
    again = CacheFile.open(place(tmp_path, SHAPE.file_bytes(5)), SHAPE)
    assert [(file.rows, file.writable_rows) for file in (small, large, again)] == [(10, 10), (20, 20), (20, 5)]
    assert os.pread(again.descriptor, 100, SHAPE.file_bytes(9)) == b"x" * 100
    for file in (small, large, again):
        file.close()


def test_a_process_that_may_not_write_reads_a_file_and_creates_none(tmp_path: Path) -> None:
    with pytest.raises(UnfitCacheError, match="No such file"):
        CacheFile.open(place(tmp_path, writable=False), SHAPE)
    assert list(tmp_path.iterdir()) == []
    CacheFile.open(place(tmp_path, SHAPE.file_bytes(7)), SHAPE).close()
    file = CacheFile.open(place(tmp_path, writable=False), SHAPE)
    assert (file.rows, file.writable_rows) == (7, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_row(0, memoryview(b"x" * 100))
    file.close()


def test_a_max_without_room_for_a_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfitCacheError, match="max leaves no room for a single sample"):
        CacheFile.open(place(tmp_path, SHAPE.file_bytes(1) - 1), SHAPE)


def test_a_failed_allocation_takes_no_space(tmp_path: Path) -> None:
    with (
        no_file_larger_than(SHAPE.file_bytes(500)),
        pytest.raises(UnfitCacheError, match=r"needs 0\.00 GiB, which it cannot get \(.* max"),
    ):
        CacheFile.open(place(tmp_path), SHAPE)
    assert (tmp_path / SHAPE.cache_file_name).stat().st_size == 0


def test_a_file_with_holes_has_them_filled(tmp_path: Path) -> None:
    CacheFile.open(place(tmp_path), SHAPE).close()
    path = tmp_path / SHAPE.cache_file_name
    os.truncate(path, PAGE_BYTES)
    os.truncate(path, SHAPE.file_bytes(1000))
    assert path.stat().st_blocks * 512 < SHAPE.file_bytes(1000)
    CacheFile.open(place(tmp_path), SHAPE).close()
    assert path.stat().st_blocks * 512 >= SHAPE.file_bytes(1000)


def test_a_file_that_cannot_grow_is_only_read(tmp_path: Path) -> None:
    CacheFile.open(place(tmp_path, SHAPE.file_bytes(300)), SHAPE).close()
    with no_file_larger_than(SHAPE.file_bytes(500)):
        file = CacheFile.open(place(tmp_path), SHAPE)
    assert (file.rows, file.writable_rows) == (300, 0)
    assert "File too large" in file.trouble
    file.close()


def test_a_file_larger_than_the_free_space_is_refused_before_allocating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("the disk would be full for a moment"))
    with pytest.raises(UnfitCacheError, match=r"No space left on device; .* GiB are free"):
        CacheFile.open(place(tmp_path), replace(SHAPE, row_bytes=1 << 31, samples=1 << 24))


def test_a_write_that_is_incomplete_is_an_error(tmp_path: Path) -> None:
    file = CacheFile.open(place(tmp_path), SHAPE)
    with no_file_larger_than(SHAPE.file_bytes(500) + 30), pytest.raises(OSError, match="No space left"):
        file.write_row(500, memoryview(b"x" * 100))
    file.close()


def test_another_file_under_the_name_of_the_cache_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / SHAPE.cache_file_name
    path.write_bytes(b"precious".ljust(SHAPE.file_bytes(1000), b"!"))
    before = path.read_bytes()
    with pytest.raises(UnfitCacheError, match="it is not a cache, or it is a cache of another version; remove it"):
        CacheFile.open(place(tmp_path), SHAPE)
    assert path.read_bytes() == before


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / SHAPE.cache_file_name).symlink_to(tmp_path / "victim")
    with pytest.raises(UnfitCacheError, match="symbolic links"):
        CacheFile.open(place(tmp_path / "cache"), SHAPE)
    assert not (tmp_path / "victim").exists()


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CacheFile.open(place(tmp_path), SHAPE).close()
    real = os.fstat
    owner = os.geteuid() + 1
    monkeypatch.setattr(os, "fstat", lambda each: os.stat_result((*real(each)[:4], owner, *real(each)[5:])))
    with pytest.raises(UnfitCacheError, match="it is not a regular file of this user;"):
        CacheFile.open(place(tmp_path), SHAPE)


def test_other_samples_or_pixels_have_another_file() -> None:
    names = {
        SHAPE.cache_file_name,
        replace(SHAPE, content_id="e" * 32).cache_file_name,
        replace(SHAPE, pixel_id=PixelId("e" * 32)).cache_file_name,
    }
    assert len(names) == 3


def test_streams_of_the_same_samples_and_images_share_a_lock() -> None:
    spec = some_spec(content_id="a" * 32)
    assert lock_file_name(spec) == lock_file_name(some_spec(content_id="a" * 32, name="other", batch_size=7, seed=9))
    assert lock_file_name(spec) != lock_file_name(some_spec(content_id="b" * 32))
    assert lock_file_name(spec) != lock_file_name(
        some_spec(content_id="a" * 32, images={"image": ImageSpec(5, 7, 3, exact=True)})
    )
