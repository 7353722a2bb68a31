"""Only what a sample's pixels can do to a worker is held against the sample."""

from __future__ import annotations

import signal

import pytest

from streamd.daemon.engine.crashes import Charge, Finding, death, finding
from streamd.ipc.progress_page import OUT_OF_MEMORY_STATUS, RowProgress, TransformTrial, WorkerPhase
from streamd.limits import STOPPED_S

DECODING = RowProgress(7, 3, WorkerPhase.DECODING, 0)
TRANSFORMING = RowProgress(7, 3, WorkerPhase.TRANSFORMING, 0)
READING = RowProgress(7, 3, WorkerPhase.READING, 0)
ELSEWHERE = RowProgress(7, 3, WorkerPhase.IDLE, 0)
NONE = TransformTrial(0, "", WorkerPhase.IDLE, 0)
IMPORTING = TransformTrial(2, "module 'augment'", WorkerPhase.IMPORTING, 0)
TRYING = TransformTrial(2, "transform at augment.py:1", WorkerPhase.TRYING, 0)


@pytest.mark.parametrize(
    ("code", "killed_for", "blame"),
    [
        (-signal.SIGSEGV, None, "crashes its decoder: SIGSEGV"),
        (-signal.SIGABRT, None, "crashes its decoder: SIGABRT"),
        (-signal.SIGFPE, None, "crashes its decoder: SIGFPE"),
        (OUT_OF_MEMORY_STATUS, None, "needs more memory to decode than a worker has, 3 GiB"),
        (-signal.SIGKILL, Finding.SLOW, "takes more than 30 s to decode"),
        (-signal.SIGKILL, None, None),
        (-signal.SIGBUS, None, None),
        (-signal.SIGTERM, None, None),
        (1, None, None),
        (0, None, None),
        (-signal.SIGKILL, Finding.STOPPED, None),
        (-signal.SIGKILL, Finding.DEAF, None),
        (-signal.SIGSEGV, Finding.STOPPED, None),
    ],
)
def test_a_death_while_decoding_blames_the_sample_or_not(
    code: int, killed_for: Finding | None, blame: str | None
) -> None:
    assert death(code, DECODING, NONE, killed_for, 30.0).blame == blame


@pytest.mark.parametrize(
    ("code", "killed_for", "blame"),
    [
        (-signal.SIGSEGV, None, "crashes the transform: SIGSEGV"),
        (OUT_OF_MEMORY_STATUS, None, "needs more memory to transform than a worker has, 3 GiB"),
        (-signal.SIGKILL, Finding.SLOW, "takes more than 30 s to transform"),
        (-signal.SIGKILL, None, None),
    ],
)
def test_a_death_in_the_transform_blames_it(code: int, killed_for: Finding | None, blame: str | None) -> None:
    assert death(code, TRANSFORMING, NONE, killed_for, 30.0).blame == blame


@pytest.mark.parametrize("at", [READING, ELSEWHERE])
@pytest.mark.parametrize("code", [-signal.SIGSEGV, OUT_OF_MEMORY_STATUS])
def test_a_death_anywhere_else_blames_nobody(at: RowProgress, code: int) -> None:
    assert death(code, at, NONE, None, 30.0).blame is None


@pytest.mark.parametrize(
    ("code", "killed_for", "words"),
    [
        (-signal.SIGKILL, None, "killed by SIGKILL"),
        (3, None, "with exit status 3"),
        (OUT_OF_MEMORY_STATUS, None, "out of memory"),
        (-signal.SIGKILL, Finding.STOPPED, "killed since it was stopped"),
    ],
)
def test_how_a_worker_ended_is_told_in_words(code: int, killed_for: Finding | None, words: str) -> None:
    assert death(code, ELSEWHERE, NONE, killed_for, 30.0).words == words


@pytest.mark.parametrize(
    ("at", "silent_s", "state", "expected"),
    [
        (DECODING, 29.9, "R", Finding.FINE),
        (DECODING, STOPPED_S - 0.1, "T", Finding.FINE),
        (DECODING, STOPPED_S, "R", Finding.FINE),
        (DECODING, STOPPED_S, "T", Finding.STOPPED),
        (DECODING, 30.0, "R", Finding.SLOW),
        (DECODING, 30.0, "S", Finding.SLOW),
        (DECODING, 30.0, "T", Finding.STOPPED),
        (READING, 30.0, "T", Finding.STOPPED),
        (ELSEWHERE, 30.0, "t", Finding.STOPPED),
        (TRANSFORMING, 30.0, "R", Finding.SLOW),
        (IMPORTING, 29.9, "R", Finding.FINE),
        (IMPORTING, 30.0, "S", Finding.ENDLESS),
        (TRYING, 30.0, "R", Finding.ENDLESS),
        (TRYING, 30.0, "T", Finding.STOPPED),
        (NONE, 1e6, "S", Finding.WAITING),
        (READING, 1e6, "D", Finding.WAITING),
        (ELSEWHERE, 1e6, "S", Finding.WAITING),
    ],
)
def test_only_a_stopped_worker_or_one_at_a_rows_pixels_or_a_transform_is_overdue(
    at: RowProgress | TransformTrial, silent_s: float, state: str, expected: Finding
) -> None:
    assert finding(at, silent_s, 30.0, state) is expected


@pytest.mark.parametrize(
    ("code", "trial", "killed_for", "reason"),
    [
        (
            -signal.SIGKILL,
            TRYING,
            Finding.ENDLESS,
            "transform at augment.py:1 takes more than 30 s on a built-in image: ",
        ),
        (-signal.SIGKILL, IMPORTING, Finding.ENDLESS, "module 'augment' takes more than 30 s to import: is there"),
        (
            -signal.SIGSEGV,
            TRYING,
            None,
            "transform at augment.py:1 ends its process on a built-in image, killed by SIGSEGV",
        ),
        (3, IMPORTING, None, "module 'augment' ends its process when it is imported, with exit status 3: run it"),
        (0, IMPORTING, None, "module 'augment' ends its process when it is imported, with exit status 0: run it"),
    ],
)
def test_the_end_of_a_worker_that_tries_a_transform_is_the_transforms(
    code: int, trial: TransformTrial, killed_for: Finding | None, reason: str
) -> None:
    charge = death(code, ELSEWHERE, trial, killed_for, 30.0).charge
    assert charge is not None
    assert charge.reason.startswith(reason)
    assert (charge.stream, charge.certain) == (2, killed_for is Finding.ENDLESS)


@pytest.mark.parametrize(
    ("code", "at", "trial", "killed_for"),
    [
        (-signal.SIGSEGV, ELSEWHERE, NONE, None),
        (-signal.SIGKILL, ELSEWHERE, TRYING, None),
        (-signal.SIGBUS, ELSEWHERE, TRYING, None),
        (OUT_OF_MEMORY_STATUS, READING, TRYING, None),
        (-signal.SIGKILL, ELSEWHERE, TRYING, Finding.STOPPED),
        (-signal.SIGSEGV, DECODING, TRYING, None),
    ],
)
def test_what_comes_from_outside_or_from_a_row_is_not_the_transforms(
    code: int, at: RowProgress, trial: TransformTrial, killed_for: Finding | None
) -> None:
    assert death(code, at, trial, killed_for, 30.0).charge is None


def test_a_row_that_waits_for_a_transform_that_is_tried_is_not_to_blame() -> None:
    found = death(-signal.SIGKILL, TRANSFORMING, TRYING, Finding.ENDLESS, 30.0)
    assert found.blame is None
    assert isinstance(found.charge, Charge)
