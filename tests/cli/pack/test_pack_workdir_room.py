"""Room on the disk: asked for with the arithmetic, and named when it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from streamd.cli.pack.workdir import PackWorkdir, check_free_space, measure_allocated_bytes, translate_disk_full_error
from streamd.errors import PackError


def test_a_pack_that_cannot_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        with pytest.raises(PackError, match=r"out takes about 8192 TiB, of which 0 bytes are written, and .* are free"):
            check_free_space(work, 1 << 53)
        check_free_space(work, 1000)


def test_what_is_written_already_needs_no_more_room(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
        (work.product_path / "part").write_bytes(bytes(100_000))
        assert 100_000 <= measure_allocated_bytes(work.product_path) < 200_000
        free = os.statvfs(tmp_path)
        check_free_space(work, free.f_bavail * free.f_frsize + 50_000)


def test_a_full_disk_is_told_with_what_is_still_to_be_written(tmp_path: Path) -> None:
    with (
        PackWorkdir(tmp_path / "out") as work,
        pytest.raises(PackError) as told,
        translate_disk_full_error(work, lambda: 1 << 20),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "No space left on device: about 1 MiB are still to be written" in str(told.value)
    assert "the same command goes on" in str(told.value)


def test_other_refusals_of_the_disk_are_what_they_are(tmp_path: Path) -> None:
    with (
        PackWorkdir(tmp_path / "out") as work,
        pytest.raises(OSError, match="Input/output"),
        translate_disk_full_error(work, lambda: 0),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
