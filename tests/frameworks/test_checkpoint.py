"""Saved states of a run: kills, damage and full disks, and folders that one training owns."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamd.errors import ConfigError
from streamd.frameworks import checkpoint
from streamd.frameworks.checkpoint import Checkpoints

ARRAYS: list[npt.NDArray[Any]] = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.zeros((0, 4), np.int64),
    np.array(7, np.uint8),
    np.array(["a", "bcd"]),
    np.arange(6)[::2],
]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, said: list[str]) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "a", 2, said.append)


def steps(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.directory.iterdir() if path.name.startswith("step"))


def newest(checkpoints: Checkpoints) -> Any:
    saved = checkpoints.load_newest_state()
    return saved and saved.content["step"]


def save(checkpoints: Checkpoints, *numbers: int) -> None:
    for number in numbers:
        checkpoints.save_state(number, {"step": number}, ARRAYS)


def test_a_state_is_loaded_unchanged(checkpoints: Checkpoints) -> None:
    content = {"loss": [0.1, float("inf")], "name": "größe", "none": None}
    checkpoints.save_state(3, content, ARRAYS)
    saved = checkpoints.load_newest_state()
    assert saved is not None
    assert saved.content == content
    for array, original in zip(saved.arrays, ARRAYS, strict=True):
        assert (array.dtype, array.shape) == (original.dtype, original.shape)
        np.testing.assert_array_equal(array, original)


def test_a_folder_without_a_state_has_none(checkpoints: Checkpoints, said: list[str]) -> None:
    assert checkpoints.load_newest_state() is None
    assert said == []


def test_the_newest_states_by_number_stay(checkpoints: Checkpoints) -> None:
    save(checkpoints, 9, 9_999_999, 10_000_000)
    assert steps(checkpoints) == ["step-10000000", "step-9999999"]
    assert newest(checkpoints) == 10_000_000


def test_saving_a_step_again_replaces_the_first_state(checkpoints: Checkpoints) -> None:
    save(checkpoints, 3)
    checkpoints.save_state(3, {"step": "again"}, [])
    assert newest(checkpoints) == "again"


DEEP = f'{{"version": 1, "digest": "", "body": {"[" * 100_000}{"]" * 100_000}}}'


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param("state.json", lambda data: data[:-9], id="a state that is truncated"),
        pytest.param("state.json", lambda data: data.replace(b'"step": 8', b'"step": 9'), id="another state"),
        pytest.param("state.json", lambda _: DEEP.encode(), id="a state without end"),
        pytest.param("state.json", lambda _: b"[]", id="a state that is no object"),
        pytest.param("arrays.bin", lambda data: data[:-9], id="arrays that are truncated"),
        pytest.param("arrays.bin", lambda data: data[:2] + bytes([data[2] ^ 16]) + data[3:], id="a flipped bit"),
        pytest.param("arrays.bin", lambda _: None, id="no arrays"),
        pytest.param("state.json", lambda _: None, id="no state"),
    ],
)
def test_a_damaged_state_is_skipped_with_a_message_and_removed_by_the_next_save(
    checkpoints: Checkpoints, said: list[str], name: str, damage: Callable[[bytes], bytes | None]
) -> None:
    save(checkpoints, 4, 8)
    path = checkpoints.directory / "step-0000008" / name
    damaged = damage(path.read_bytes())
    path.unlink()
    if damaged is not None:
        path.write_bytes(damaged)
    assert newest(checkpoints) == 4
    assert len(said) == 1
    assert "step-0000008 is damaged and is skipped: " in said[0]
    save(checkpoints, 6)
    assert steps(checkpoints) == ["step-0000004", "step-0000006"]


def test_a_half_written_state_is_ignored(checkpoints: Checkpoints, said: list[str], tmp_path: Path) -> None:
    save(checkpoints, 4)
    half = checkpoints.directory / ".tmp"
    half.mkdir()
    (half / "arrays.bin").write_bytes(b"half")
    again = Checkpoints(tmp_path / "run" / "a", 2, said.append)
    assert newest(again) == 4
    save(again, 5)
    assert newest(again) == 5
    assert said == []


def test_a_state_that_another_training_writes_is_not_touched(checkpoints: Checkpoints) -> None:
    written = checkpoints.directory / ".tmp" / "arrays.bin"
    written.parent.mkdir()
    written.write_bytes(b"half")
    Checkpoints(checkpoints.directory, 2, print)
    assert written.read_bytes() == b"half"
    assert [path.name for path in checkpoints.directory.iterdir()] == [".tmp"]


def test_a_removed_folder_is_created_again_before_it_is_claimed(
    checkpoints: Checkpoints, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[bool] = []
    monkeypatch.setattr(checkpoint, "claim_folder", lambda folder, _: claimed.append(folder.exists()))
    save(checkpoints, 4)
    assert checkpoints.has_states()
    checkpoints.claim_folder(bool)
    assert not said
    shutil.rmtree(checkpoints.directory.parent)
    assert not checkpoints.has_states()
    checkpoints.claim_folder(bool)
    assert [line.partition(" was removed")[0] for line in said] == [str(checkpoints.directory)]
    assert claimed == [True, True]
    save(checkpoints, 5)
    assert steps(checkpoints) == ["step-0000005"]


def test_a_full_disk_loses_only_the_state_being_written(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 4)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("streamd.frameworks.checkpoint.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save(checkpoints, 5)
    assert newest(checkpoints) == 4
    assert not (checkpoints.directory / ".tmp").exists()
    save(checkpoints, 6)
    assert newest(checkpoints) == 6


def test_an_unreadable_state_is_an_error_and_not_a_fresh_start(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 4)

    def broken(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("streamd.frameworks.checkpoint.read_regular_file", broken)
    with pytest.raises(ConfigError, match=r"step-0000004 cannot be read \(Input/output error\): fix that, or move"):
        checkpoints.load_newest_state()


def test_a_state_of_a_later_version_is_refused(checkpoints: Checkpoints) -> None:
    save(checkpoints, 4)
    path = checkpoints.directory / "step-0000004" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ConfigError, match="is of version 2, but this streamd reads version 1"):
        checkpoints.load_newest_state()


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"nothing can be saved in .*: name a folder that you may write to"):
            Checkpoints(place, 2, print)


# --- folders that belong to one training

CLAIM = dedent(
    """
    import os, shutil, sys
    from pathlib import Path
    from streamd.errors import ConfigError
    from streamd.frameworks.checkpoint import claim_folder
    folder, running = Path(sys.argv[1]), {"first", "second"}
    def first():
        return "first" in running
    def second():
        return "second" in running
    def attempt(is_at_work=first, folder=folder):
        try:
            claim_folder(folder, is_at_work)
        except ConfigError as error:
            return str(error)
        return "claimed"
    """
)
OTHER_PROCESS = "another trainer is saving to {}: give each one, and each rank, a folder of its own"
OTHER_FIT = "another fit in this process is saving to {}: give each one a folder of its own"


def outcomes(folder: Path, program: str) -> list[str]:
    """The lines printed by a process that claims a folder."""
    command = [sys.executable, "-u", "-c", CLAIM + dedent(program), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def attempts(folder: Path) -> list[str]:
    """The answers to another process that claims a folder twice, and to its child."""
    return outcomes(
        folder,
        """
        print(attempt())
        print(attempt())
        if os.fork() == 0:
            print(attempt(), flush=True)
            os._exit(0)
        os.wait()
        """,
    )


@pytest.mark.long
def test_a_folder_belongs_to_the_process_that_claimed_it_and_not_to_its_child(tmp_path: Path) -> None:
    refused = OTHER_PROCESS.format(tmp_path)
    assert attempts(tmp_path) == ["claimed", "claimed", refused]
    with (tmp_path / ".lock").open("rb+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert attempts(tmp_path) == [refused] * 3
    assert attempts(tmp_path)[0] == "claimed"


def test_a_folder_belongs_to_one_running_fit_of_a_process(tmp_path: Path) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    assert outcomes(
        folder,
        """
        print(attempt())
        print(attempt(second))
        print(attempt(second, folder.parent / "link"))
        print(attempt(second, folder.parent))
        running.remove("first")
        print(attempt(second))
        running.add("first")
        print(attempt(first))
        """,
    ) == ["claimed", OTHER_FIT.format(folder), OTHER_FIT.format(link), "claimed", "claimed", OTHER_FIT.format(folder)]


def test_a_folder_that_was_removed_and_made_again_is_claimed_again(tmp_path: Path) -> None:
    assert outcomes(
        tmp_path / "run",
        """
        def child():
            if os.fork() == 0:
                print(attempt(), flush=True)
                os._exit(0)
            os.wait()
        def descriptors():
            return len(os.listdir("/proc/self/fd"))
        folder.mkdir()
        print(attempt())
        before = descriptors()
        shutil.rmtree(folder)
        folder.mkdir()
        print(attempt())
        child()
        print(descriptors() - before)
        """,
    ) == ["claimed", "claimed", OTHER_PROCESS.format(tmp_path / "run"), "0"]


def test_a_lock_that_is_lost_with_another_descriptor_of_its_file_is_taken_again(tmp_path: Path) -> None:
    """POSIX drops a process's lock when that closes any descriptor of the file, as one that copies the folder does."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert outcomes(
        folder,
        """
        def copy():
            shutil.copytree(folder, folder.parent / "copy", dirs_exist_ok=True)
        def child(ready, wait):
            if os.fork() == 0:
                print(attempt(), flush=True)
                os.write(ready, b"x")
                os.read(wait, 1)
                os._exit(0)
        (heard, ready), (wait, end) = os.pipe(), os.pipe()
        print(attempt())
        copy()
        print(attempt())
        child(ready, wait)
        os.read(heard, 1)
        copy()
        child(ready, wait)
        os.read(heard, 1)
        print(attempt())
        os.write(end, b"xx")
        os.wait(), os.wait()
        print(attempt())
        """,
    ) == ["claimed", "claimed", OTHER_PROCESS.format(folder), "claimed", OTHER_PROCESS.format(folder), "claimed"]
