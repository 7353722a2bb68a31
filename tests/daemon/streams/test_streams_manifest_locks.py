"""Daemons share the lock of a list; listing again needs it alone, and the error names the holder."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Final

import pytest

from streamd.daemon.streams.manifest_locks import (
    ManifestLock,
    ManifestLocks,
    acquire_shared_locks,
    hold_exclusive_locks,
)
from streamd.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0123456789abcdef.lock"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What is logged, though a test before may have configured it away."""
    monkeypatch.setattr(logging.getLogger("streamd"), "propagate", True)
    return caplog


def is_free(path: Path) -> bool:
    try:
        with hold_exclusive_locks({"train": path}, ["train"]):
            return True
    except ConfigError:
        return False


def test_daemons_share_a_lock_until_the_last_one_releases_it(path: Path) -> None:
    one, other = ManifestLock(path), ManifestLock(path)
    assert acquire_shared_locks([one, other])
    one.release_lock()
    assert not is_free(path)
    other.release_lock()
    assert is_free(path)


def test_a_lock_is_not_shared_while_samples_are_listed(path: Path) -> None:
    lock = ManifestLock(path)
    with hold_exclusive_locks({"train": path}, ["train"]):
        assert not lock.acquire_shared()
    assert lock.acquire_shared()


def test_a_lock_is_released_with_its_last_stream(tmp_path: Path) -> None:
    locks, paths = ManifestLocks(), {"a": tmp_path / "1.lock", "b": tmp_path / "1.lock", "c": tmp_path / "2.lock"}
    had = locks.get_or_create_locks(paths)
    assert had["a"] is had["b"] is locks.get_or_create_locks(paths)["a"]
    assert acquire_shared_locks(had.values())
    del had["a"], had["c"]
    gc.collect()
    assert [is_free(paths[name]) for name in "ac"] == [False, True]
    had.clear()
    gc.collect()
    assert is_free(paths["a"])


def test_a_lock_is_for_its_user_alone(path: Path) -> None:
    assert is_free(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_hold_locks_is_logged_and_its_lists_are_served(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    lock = ManifestLock(tmp_path / "file" / "1.lock")
    assert "cannot be locked (Not a directory)" in log.text
    assert lock.acquire_shared()
    lock.release_lock()


def test_a_file_system_without_locks_is_logged_and_its_lists_are_served(
    path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with ExitStack() as held:
        held.enter_context(hold_exclusive_locks({"train": path}, ["train"]))
        assert ManifestLock(path).acquire_shared()
    assert "cannot be locked (No locks available)" in log.text


HOLD: Final = """
import fcntl, sys
file = open(sys.argv[1])
if sys.argv[2] == "hold":
    fcntl.flock(file, fcntl.LOCK_SH)
print("open", flush=True)
sys.stdin.read()
"""


def test_the_error_names_the_holder_of_a_lock_and_not_its_readers(path: Path) -> None:
    path.touch()
    with ExitStack() as ended:
        holder, reader = (
            ended.enter_context(subprocess.Popen([sys.executable, "-c", HOLD, path, does], stdin=PIPE, stdout=PIPE))
            for does in ("hold", "read")
        )
        for each in (holder, reader):
            ended.callback(each.kill)
            assert each.stdout is not None
            assert each.stdout.readline() == b"open\n"
        with pytest.raises(ConfigError, match=rf"another streamd \(pid {holder.pid}\) is serving"):
            ended.enter_context(hold_exclusive_locks({"train": path}, ["train"]))
