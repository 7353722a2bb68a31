"""Only a crash that a sample's pixels can cause is a fault of the sample."""

from __future__ import annotations

import signal

import pytest

from streamd.ipc.slots import OUT_OF_MEMORY_STATUS, RowProgress, TransformTrial, WorkerPhase
from streamd.ipc.worker_messages import TransformFault
from streamd.limits import STOPPED_S
from streamd.supervisor.worker_process import WorkerCondition, diagnose_silent_worker, diagnose_worker_exit

DECODING = RowProgress(7, 3, WorkerPhase.DECODING, 0)
TRANSFORMING = RowProgress(7, 3, WorkerPhase.TRANSFORMING, 0)
READING = RowProgress(7, 3, WorkerPhase.READING, 0)
ELSEWHERE = RowProgress(7, 3, WorkerPhase.IDLE, 0)
NONE = TransformTrial(0, "", WorkerPhase.IDLE, 0)
IMPORTING = TransformTrial(2, "module 'augment'", WorkerPhase.IMPORTING, 0)
TRYING = TransformTrial(2, "transform at augment.py:1", WorkerPhase.TRYING, 0)


@pytest.mark.parametrize(
    ("at", "code", "killed_for", "fault"),
    [
        (DECODING, -signal.SIGSEGV, None, "crashes its decoder: SIGSEGV"),
        (DECODING, -signal.SIGABRT, None, "crashes its decoder: SIGABRT"),
        (DECODING, -signal.SIGFPE, None, "crashes its decoder: SIGFPE"),
        (DECODING, OUT_OF_MEMORY_STATUS, None, "needs more memory to decode than a worker has, 3 GiB"),
        (DECODING, -signal.SIGKILL, WorkerCondition.SLOW_ROW, "takes more than 30 s to decode"),
        (DECODING, -signal.SIGKILL, None, None),
        (DECODING, -signal.SIGBUS, None, None),
        (DECODING, -signal.SIGTERM, None, None),
        (DECODING, 1, None, None),
        (DECODING, 0, None, None),
        (DECODING, -signal.SIGKILL, WorkerCondition.STOPPED, None),
        (DECODING, -signal.SIGKILL, WorkerCondition.NOT_READING, None),
        (DECODING, -signal.SIGSEGV, WorkerCondition.STOPPED, None),
        (TRANSFORMING, -signal.SIGSEGV, None, "crashes the transform: SIGSEGV"),
        (TRANSFORMING, OUT_OF_MEMORY_STATUS, None, "needs more memory to transform than a worker has, 3 GiB"),
        (TRANSFORMING, -signal.SIGKILL, WorkerCondition.SLOW_ROW, "takes more than 30 s to transform"),
        (TRANSFORMING, -signal.SIGKILL, None, None),
        (READING, -signal.SIGSEGV, None, None),
        (READING, OUT_OF_MEMORY_STATUS, None, None),
        (ELSEWHERE, -signal.SIGSEGV, None, None),
        (ELSEWHERE, OUT_OF_MEMORY_STATUS, None, None),
    ],
)
def test_only_what_decoding_and_transforms_can_do_to_a_worker_is_a_fault_of_the_sample(
    at: RowProgress, code: int, killed_for: WorkerCondition | None, fault: str | None
) -> None:
    assert diagnose_worker_exit(code, at, NONE, killed_for, 30.0).sample_fault == fault


@pytest.mark.parametrize(
    ("code", "killed_for", "words"),
    [
        (-signal.SIGKILL, None, "killed by SIGKILL"),
        (3, None, "with exit status 3"),
        (OUT_OF_MEMORY_STATUS, None, "out of memory"),
        (-signal.SIGKILL, WorkerCondition.STOPPED, "killed because it was stopped"),
    ],
)
def test_the_end_of_a_worker_is_described_in_words(code: int, killed_for: WorkerCondition | None, words: str) -> None:
    assert diagnose_worker_exit(code, ELSEWHERE, NONE, killed_for, 30.0).description == words


@pytest.mark.parametrize(
    ("at", "silent_s", "state", "expected"),
    [
        (DECODING, 29.9, "R", WorkerCondition.AT_WORK),
        (DECODING, STOPPED_S - 0.1, "T", WorkerCondition.AT_WORK),
        (DECODING, STOPPED_S, "R", WorkerCondition.AT_WORK),
        (DECODING, STOPPED_S, "T", WorkerCondition.STOPPED),
        (DECODING, 30.0, "R", WorkerCondition.SLOW_ROW),
        (DECODING, 30.0, "S", WorkerCondition.SLOW_ROW),
        (DECODING, 30.0, "T", WorkerCondition.STOPPED),
        (READING, 30.0, "T", WorkerCondition.STOPPED),
        (ELSEWHERE, 30.0, "t", WorkerCondition.STOPPED),
        (TRANSFORMING, 30.0, "R", WorkerCondition.SLOW_ROW),
        (IMPORTING, 29.9, "R", WorkerCondition.AT_WORK),
        (IMPORTING, 30.0, "S", WorkerCondition.ENDLESS_TRIAL),
        (TRYING, 30.0, "R", WorkerCondition.ENDLESS_TRIAL),
        (TRYING, 30.0, "T", WorkerCondition.STOPPED),
        (NONE, 1e6, "S", WorkerCondition.WAITING),
        (READING, 1e6, "D", WorkerCondition.WAITING),
        (ELSEWHERE, 1e6, "S", WorkerCondition.WAITING),
    ],
)
def test_only_a_stopped_worker_or_one_at_a_rows_pixels_or_a_transform_is_overdue(
    at: RowProgress | TransformTrial, silent_s: float, state: str, expected: WorkerCondition
) -> None:
    assert diagnose_silent_worker(at, silent_s, 30.0, state) is expected


@pytest.mark.parametrize(
    ("code", "trial", "killed_for", "reason"),
    [
        (
            -signal.SIGKILL,
            TRYING,
            WorkerCondition.ENDLESS_TRIAL,
            "transform at augment.py:1 takes more than 30 s on a built-in image: ",
        ),
        (
            -signal.SIGKILL,
            IMPORTING,
            WorkerCondition.ENDLESS_TRIAL,
            "module 'augment' takes more than 30 s to import: is there",
        ),
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
def test_a_worker_that_ends_in_a_trial_is_a_fault_of_the_transform(
    code: int, trial: TransformTrial, killed_for: WorkerCondition | None, reason: str
) -> None:
    charge = diagnose_worker_exit(code, ELSEWHERE, trial, killed_for, 30.0).transform_fault
    assert charge is not None
    assert charge.reason.startswith(reason)
    assert (charge.stream_number, charge.is_certain) == (2, killed_for is WorkerCondition.ENDLESS_TRIAL)


@pytest.mark.parametrize(
    ("code", "at", "trial", "killed_for"),
    [
        (-signal.SIGSEGV, ELSEWHERE, NONE, None),
        (-signal.SIGKILL, ELSEWHERE, TRYING, None),
        (-signal.SIGBUS, ELSEWHERE, TRYING, None),
        (OUT_OF_MEMORY_STATUS, READING, TRYING, None),
        (-signal.SIGKILL, ELSEWHERE, TRYING, WorkerCondition.STOPPED),
        (-signal.SIGSEGV, DECODING, TRYING, None),
    ],
)
def test_ends_caused_from_outside_or_by_a_row_are_no_fault_of_the_transform(
    code: int, at: RowProgress, trial: TransformTrial, killed_for: WorkerCondition | None
) -> None:
    assert diagnose_worker_exit(code, at, trial, killed_for, 30.0).transform_fault is None


def test_a_row_that_waits_for_a_transform_trial_has_no_fault() -> None:
    found = diagnose_worker_exit(-signal.SIGKILL, TRANSFORMING, TRYING, WorkerCondition.ENDLESS_TRIAL, 30.0)
    assert found.sample_fault is None
    assert isinstance(found.transform_fault, TransformFault)
