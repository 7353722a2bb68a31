"""Bad samples survive the daemon and are recorded once, and a damaged list is refused."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from support.locked_files import until_waited_for

from streamd.core.sampler import BadSample
from streamd.daemon.streams.quarantine import Quarantine
from streamd.errors import ConfigError

FIVE = BadSample(5, "a damaged JPEG: no end")
NINE = BadSample(9, "truncated")
SEVEN = BadSample(7, 'stale "now"\nüber')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q"


def listed(path: Path, name: str = "a list") -> Quarantine:
    return Quarantine(path, lambda: name)


def loaded(path: Path, name: str = "a list") -> Quarantine:
    quarantine = listed(path, name)
    quarantine.load_bad_samples()
    return quarantine


def test_bad_samples_recorded_by_one_run_are_read_by_the_next(path: Path) -> None:
    assert listed(path).append_new_bad_samples([FIVE, SEVEN]) == [FIVE, SEVEN]
    assert loaded(path).reasons == {5: FIVE.reason, 7: SEVEN.reason}


def test_a_stream_without_bad_samples_has_no_file(path: Path) -> None:
    quarantine = loaded(path)
    assert quarantine.reasons == {}
    assert quarantine.append_new_bad_samples([]) == []
    assert list(path.parent.iterdir()) == []


def test_only_new_bad_samples_are_written_and_the_first_reason_stays(path: Path) -> None:
    quarantine = listed(path)
    quarantine.append_new_bad_samples([FIVE])
    before = path.read_bytes()
    assert quarantine.append_new_bad_samples([BadSample(5, "another reason")]) == []
    assert path.read_bytes() == before
    assert quarantine.append_new_bad_samples([BadSample(5, "another reason"), SEVEN]) == [SEVEN]
    assert loaded(path).reasons == {5: FIVE.reason, 7: SEVEN.reason}


def test_bad_samples_are_on_disk_before_they_are_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine = listed(path)
    synced: list[tuple[int, bool]] = []

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, 5 in quarantine.reasons))

    monkeypatch.setattr(os, "fdatasync", sync)
    quarantine.append_new_bad_samples([FIVE])
    assert synced == [(path.stat().st_size, False)]


def test_a_full_disk_raises_and_records_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine = listed(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space"):
        quarantine.append_new_bad_samples([FIVE])
    assert quarantine.reasons == {}
    monkeypatch.undo()
    assert loaded(path).reasons == {}


@pytest.mark.parametrize("first", [[], [FIVE]], ids=["the first line", "a later line"])
def test_a_disk_that_fills_in_the_middle_of_a_line_leaves_no_part_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, first: list[BadSample]
) -> None:
    quarantine = listed(path)
    quarantine.append_new_bad_samples(first)
    write, room = os.write, [9, 0]

    def fill(descriptor: int, data: bytes) -> int:
        left = room.pop(0)
        if not left:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:left])

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OSError, match="No space"):
        quarantine.append_new_bad_samples([SEVEN])
    monkeypatch.undo()
    assert loaded(path).reasons == quarantine.reasons == {each.sample_id: each.reason for each in first}
    assert path.read_bytes().count(b"\n") == len(first)
    assert quarantine.append_new_bad_samples([SEVEN]) == [SEVEN]
    assert loaded(path).reasons == {each.sample_id: each.reason for each in [*first, SEVEN]}


def test_a_partial_write_is_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:60]))
    listed(path).append_new_bad_samples([FIVE])
    assert loaded(path).reasons == {5: FIVE.reason}


def test_half_a_line_that_could_not_be_undone_does_not_spoil_the_next(path: Path) -> None:
    quarantine = listed(path)
    quarantine.append_new_bad_samples([FIVE])
    path.write_bytes(path.read_bytes() + b'{"sample_id":7,"rea')
    quarantine.append_new_bad_samples([SEVEN])
    assert loaded(path).reasons == {5: FIVE.reason, 7: SEVEN.reason}


def test_the_folder_is_synced_when_the_list_is_made_and_not_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("streamd.daemon.streams.quarantine.sync_folder", synced.append)
    quarantine = listed(path)
    quarantine.append_new_bad_samples([FIVE])
    quarantine.append_new_bad_samples([SEVEN])
    assert synced == [tmp_path]


def test_a_torn_last_line_is_dropped_for_good(path: Path) -> None:
    listed(path).append_new_bad_samples([FIVE, SEVEN])
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    quarantine = loaded(path)
    assert quarantine.reasons == {5: FIVE.reason}
    quarantine.append_new_bad_samples([SEVEN])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "damage",
    [
        *(b"{}\n", b"nonsense\n", b'{"sample_id": "5", "reason": "x"}\n', b"\xff\xfe\n", b"\n"),
        b'{"sample_id":5,"reason":"\xff"}\n',
    ],
)
def test_a_damaged_line_is_named_with_the_remedy(path: Path, damage: bytes) -> None:
    listed(path).append_new_bad_samples([FIVE])
    path.write_bytes(path.read_bytes() + damage + b'{"sample_id":7,"reason":"x"}\n')
    with pytest.raises(ConfigError, match=r"q:2 is not a verdict .*: repair the line or remove the file"):
        loaded(path)


def test_the_list_is_for_its_user_alone(path: Path) -> None:
    listed(path).append_new_bad_samples([FIVE])
    assert path.stat().st_mode & 0o077 == 0


def test_a_moved_list_keeps_its_bad_samples_and_records_in_the_new_place(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    listed(there).append_new_bad_samples([SEVEN])
    quarantine = listed(here)
    quarantine.append_new_bad_samples([SEVEN, FIVE])
    quarantine.copy_and_switch_file(there)
    quarantine.append_new_bad_samples([NINE])
    assert quarantine.path == there
    assert loaded(there).reasons == {7: SEVEN.reason, 5: FIVE.reason, 9: NINE.reason}
    assert there.read_bytes().count(b"\n") == 3
    assert loaded(here).reasons == {7: SEVEN.reason, 5: FIVE.reason}
    quarantine.copy_and_switch_file(there)
    assert there.read_bytes().count(b"\n") == 3


def test_bad_samples_of_another_list_are_not_used(path: Path) -> None:
    listed(path, "the old list").append_new_bad_samples([FIVE])
    listed(path, "the new list").append_new_bad_samples([SEVEN])
    assert loaded(path, "the old list").reasons == {5: FIVE.reason}
    assert loaded(path, "the new list").reasons == {7: SEVEN.reason}


def test_lines_of_older_versions_without_a_list_id_are_read(path: Path) -> None:
    path.write_bytes(b'{"sample_id":5,"reason":"truncated"}\n')
    quarantine = loaded(path)
    quarantine.append_new_bad_samples([FIVE, SEVEN])
    assert loaded(path).reasons == {5: "truncated", 7: SEVEN.reason}


def test_the_list_id_is_only_computed_for_bad_samples(path: Path) -> None:
    quarantine = Quarantine(path, lambda: pytest.fail("a large list takes a while"))
    quarantine.load_bad_samples()
    assert quarantine.append_new_bad_samples([]) == []


def test_a_line_that_another_daemon_is_writing_is_waited_for(path: Path) -> None:
    listed(path).append_new_bad_samples([FIVE])
    half, rest = path.read_bytes()[:20], path.read_bytes()[20:]
    path.write_bytes(b"")
    with path.open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(half)
        thread = threading.Thread(target=listed(path).append_new_bad_samples, args=[[SEVEN]])
        thread.start()
        until_waited_for(path)
        other.write(rest)
    thread.join()
    assert loaded(path).reasons == {5: FIVE.reason, 7: SEVEN.reason}
