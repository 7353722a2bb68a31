"""States of a run on disk, and what is left of them after kills, damage and full disks."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamd.errors import ConfigError
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


def test_a_state_comes_back_as_it_was(checkpoints: Checkpoints) -> None:
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


def test_the_newest_ones_stay(checkpoints: Checkpoints) -> None:
    save(checkpoints, 9, 10_000_000, 11_000_000)
    assert steps(checkpoints) == ["step-10000000", "step-11000000"]
    assert newest(checkpoints) == 11_000_000


def test_states_are_numbers_not_names(checkpoints: Checkpoints) -> None:
    save(checkpoints, 9_999_999, 10_000_000)
    assert newest(checkpoints) == 10_000_000


def test_the_same_step_again_takes_the_place_of_the_first(checkpoints: Checkpoints) -> None:
    save(checkpoints, 3)
    checkpoints.save_state(3, {"step": "again"}, [])
    assert newest(checkpoints) == "again"


def cut_state(folder: Path) -> None:
    path = folder / "state.json"
    path.write_bytes(path.read_bytes()[:-9])


def other_state(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(path.read_text().replace('"step": 8', '"step": 9'))


def deep_state(folder: Path) -> None:
    (folder / "state.json").write_text(f'{{"version": 1, "digest": "", "body": {"[" * 100_000}{"]" * 100_000}}}')


def no_object(folder: Path) -> None:
    (folder / "state.json").write_text("[]")


def cut_arrays(folder: Path) -> None:
    path = folder / "arrays.bin"
    path.write_bytes(path.read_bytes()[:-9])


def flipped_bit(folder: Path) -> None:
    path = folder / "arrays.bin"
    data = bytearray(path.read_bytes())
    data[2] ^= 16
    path.write_bytes(data)


def no_arrays(folder: Path) -> None:
    (folder / "arrays.bin").unlink()


def nothing(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    "damage",
    [cut_state, other_state, deep_state, no_object, cut_arrays, flipped_bit, no_arrays, nothing],
    ids=lambda f: f.__name__,
)
def test_a_damaged_state_is_passed_over_with_a_word_and_goes_with_the_next_save(
    checkpoints: Checkpoints, said: list[str], damage: Callable[[Path], None]
) -> None:
    save(checkpoints, 4, 8)
    damage(checkpoints.directory / "step-0000008")
    assert newest(checkpoints) == 4
    assert len(said) == 1
    assert "step-0000008 is damaged and passed over: " in said[0]
    save(checkpoints, 6)
    assert steps(checkpoints) == ["step-0000004", "step-0000006"]


def test_what_a_kill_left_half_written_is_no_state(checkpoints: Checkpoints, said: list[str], tmp_path: Path) -> None:
    save(checkpoints, 4)
    half = checkpoints.directory / ".tmp"
    half.mkdir()
    (half / "arrays.bin").write_bytes(b"half")
    again = Checkpoints(tmp_path / "run" / "a", 2, said.append)
    assert newest(again) == 4
    save(again, 5)
    assert newest(again) == 5
    assert said == []


def test_what_another_training_is_writing_stays_as_it_is(checkpoints: Checkpoints) -> None:
    written = checkpoints.directory / ".tmp" / "arrays.bin"
    written.parent.mkdir()
    written.write_bytes(b"half")
    Checkpoints(checkpoints.directory, 2, print)
    assert written.read_bytes() == b"half"
    assert [path.name for path in checkpoints.directory.iterdir()] == [".tmp"]


def test_a_folder_that_was_removed_is_made_again(checkpoints: Checkpoints) -> None:
    save(checkpoints, 4)
    assert checkpoints.has_states()
    assert not checkpoints.recreate_missing_folder()
    shutil.rmtree(checkpoints.directory.parent)
    assert not checkpoints.has_states()
    assert checkpoints.recreate_missing_folder()
    save(checkpoints, 5)
    assert steps(checkpoints) == ["step-0000005"]


def test_a_full_disk_costs_the_state_that_was_written_and_no_other(
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


def test_a_state_that_cannot_be_read_is_an_error_and_no_fresh_start(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 4)

    def broken(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", broken)
    with pytest.raises(ConfigError, match=r"step-0000004 cannot be read \(Input/output error\): see to that"):
        checkpoints.load_newest_state()


def test_a_state_of_a_later_version_is_refused(checkpoints: Checkpoints) -> None:
    save(checkpoints, 4)
    path = checkpoints.directory / "step-0000004" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ConfigError, match="is of version 2, and this streamd reads version 1"):
        checkpoints.load_newest_state()


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"nothing can be saved in .*: name a folder that you may write to"):
            Checkpoints(place, 2, print)
