"""A cache's place on the disk is worked out before anything is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.cli.check.findings import CacheEstimate
from streamd.cli.check.summary import estimate_cache
from streamd.dataset.cache.file import CacheFile, CacheLayout
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.worker_messages import CachePlace
from streamd.limits import PAGE_BYTES

ROW_BYTES = 32 * 32 * 3


def found(tmp_path: Path, **cache: object) -> CacheEstimate | None:
    folder = tmp_path / "data"
    if not folder.exists():
        write_images(folder, {"cat": 9}, size=(8, 8))
    wish = {"path": str(tmp_path / "deep/cache"), **cache} if cache else None
    stream = serve(folder, tmp_path / "state", cache=wish)
    try:
        return estimate_cache(stream)
    finally:
        stream.manifest.close()


def test_a_stream_without_a_cache_takes_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) is None


@pytest.mark.parametrize(
    ("most", "samples"), [(None, 9), (2 * PAGE_BYTES + 4 * ROW_BYTES + 1, 4), (2 * PAGE_BYTES, 0), (1 << 40, 9)]
)
def test_as_many_samples_as_fit_are_kept(tmp_path: Path, most: int | None, samples: int) -> None:
    cache = found(tmp_path, max=most)
    assert cache is not None
    assert (cache.samples, cache.bytes) == (samples, 2 * PAGE_BYTES + samples * ROW_BYTES)
    assert cache.all_bytes == 2 * PAGE_BYTES + 9 * ROW_BYTES
    assert cache.folder == str(tmp_path / "deep/cache")
    assert not (tmp_path / "deep").exists()


def test_what_a_cache_has_already_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.cli.check.summary._measure_free_bytes", lambda _: 1000)
    folder = tmp_path / "deep/cache"
    folder.mkdir(parents=True)
    before = found(tmp_path, max=None)
    stream = serve(tmp_path / "data", tmp_path / "state")
    shape = CacheLayout.from_stream_spec(stream.spec, compute_pixel_id(stream.spec.image))
    CacheFile.open(CachePlace(str(folder), None, writable=True), shape).close()
    stream.manifest.close()
    after = found(tmp_path, max=None)
    assert before is not None
    assert after is not None
    assert before.free_bytes == 1000
    assert after.free_bytes >= 1000 + after.bytes


def test_free_is_what_the_disk_has(tmp_path: Path) -> None:
    cache = found(tmp_path, max=None)
    assert cache is not None
    assert 0 < cache.free_bytes <= shutil.disk_usage(tmp_path).total
