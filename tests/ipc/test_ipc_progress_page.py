"""What a worker writes of where it is, the daemon reads, also after the worker's end."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

import pytest

from streamd.ipc.progress_page import TRACK_BYTES, Phase, Track, Trial, Whereabouts
from streamd.ipc.slots import make_memory


@pytest.fixture
def page() -> Iterator[int]:
    descriptor = make_memory("track", TRACK_BYTES)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def track(page: int) -> Iterator[Track]:
    track = Track(page)
    yield track
    track.close()


def test_a_new_page_says_that_the_worker_is_elsewhere(track: Track) -> None:
    assert track.read() == Whereabouts(task=0, place=0, phase=Phase.ELSEWHERE, began_ns=0)
    assert track.trial() == Trial(stream=0, subject="", phase=Phase.ELSEWHERE, began_ns=0)


def test_what_one_side_writes_the_other_reads(page: int, track: Track) -> None:
    theirs = Track(page)
    before_ns = time.monotonic_ns()
    theirs.at(2**63, 31, Phase.DECODING)
    theirs.close()
    found = track.read()
    assert (found.task, found.place, found.phase) == (2**63, 31, Phase.DECODING)
    assert before_ns <= found.began_ns <= time.monotonic_ns()


def test_a_page_that_a_dying_worker_scribbled_on_is_read_as_elsewhere(page: int, track: Track) -> None:
    os.pwrite(page, struct.pack("=QQII", 7, 8, 9, 2**31), 0)
    assert track.read() == Whereabouts(task=7, place=9, phase=Phase.ELSEWHERE, began_ns=8)


def test_a_row_and_a_transform_that_is_tried_are_told_side_by_side(page: int, track: Track) -> None:
    theirs = Track(page)
    theirs.at(7, 31, Phase.DECODING)
    theirs.tries(2**40, "transform at äugment.py:1", Phase.TRYING)
    assert (track.read().task, track.read().phase) == (7, Phase.DECODING)
    found = track.trial()
    assert (found.stream, found.subject, found.phase) == (2**40, "transform at äugment.py:1", Phase.TRYING)
    theirs.tries(3, "m" * TRACK_BYTES, Phase.IMPORTING)
    assert 0 < len(track.trial().subject) < TRACK_BYTES
    theirs.tries(3, "", Phase.ELSEWHERE)
    assert (track.trial().subject, track.trial().phase) == ("", Phase.ELSEWHERE)
    theirs.close()


def test_a_trial_that_a_dying_worker_scribbled_on_is_read_as_none(page: int, track: Track) -> None:
    os.pwrite(page, b"\xff" * TRACK_BYTES, 0)
    assert track.trial().phase is Phase.ELSEWHERE


def test_a_worker_cannot_take_the_page_away_from_under_the_daemon(page: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(page, 0)


def test_a_page_that_is_closed_leaves_no_descriptor(page: int) -> None:
    Track(page).close()  # what stays open fails the test afterwards
