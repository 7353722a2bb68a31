"""One process writes a cache; another one logs why it may not."""

from __future__ import annotations

import fcntl
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamd.dataset.cache import WriterLocks

_HOLD = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 66), 2); print('held', flush=True); sys.stdin.read()"


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process holds the lock."""
    command = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a/b/writer.lock"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What is logged, though a test before may have configured it away."""
    monkeypatch.setattr(logging.getLogger("streamd"), "propagate", True)
    return caplog


def is_free(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_lock_is_held_until_it_is_released_as_often_as_it_was_acquired(path: Path) -> None:
    locks = WriterLocks()
    assert locks.acquire_lock(path)
    assert locks.acquire_lock(path)
    locks.release_lock(path)
    assert not is_free(path)
    locks.release_lock(path)
    assert is_free(path)
    with pytest.raises(KeyError):
        locks.release_lock(path)


def test_the_folder_and_the_lock_are_private_to_the_user(path: Path) -> None:
    locks = WriterLocks()
    assert locks.acquire_lock(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    locks.release_lock(path)


def test_a_lock_that_another_process_holds_is_not_acquired_and_a_warning_says_so(
    path: Path, log: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir(parents=True)
    with held_elsewhere(path):
        assert not WriterLocks().acquire_lock(path)
    assert "another streamd is writing to it" in log.text
    assert str(path.parent) in log.text


def test_the_lock_of_a_process_that_was_killed_is_free(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with held_elsewhere(path) as process:
        process.kill()
        process.wait()
        locks = WriterLocks()
        assert locks.acquire_lock(path)
        locks.release_lock(path)


def test_a_folder_that_cannot_be_created_is_logged(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert not WriterLocks().acquire_lock(tmp_path / "file/cache/writer.lock")
    assert "it cannot be written (Not a directory)" in log.text
