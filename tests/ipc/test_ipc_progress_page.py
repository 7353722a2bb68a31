"""A worker writes its progress to a page, which the daemon reads, also after the worker's end."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

import pytest

from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, RowProgress, TransformTrial, WorkerPhase, create_memfd


@pytest.fixture
def page() -> Iterator[int]:
    descriptor = create_memfd("track", PROGRESS_PAGE_BYTES)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def reader(page: int) -> Iterator[ProgressPage]:
    reader = ProgressPage(page)
    yield reader
    reader.close()


def test_a_new_page_is_idle(reader: ProgressPage) -> None:
    assert reader.read_row_progress() == RowProgress(task=0, place=0, phase=WorkerPhase.IDLE, began_ns=0)
    assert reader.read_transform_trial() == TransformTrial(stream=0, subject="", phase=WorkerPhase.IDLE, began_ns=0)


def test_the_daemon_reads_the_progress_that_a_worker_writes(page: int, reader: ProgressPage) -> None:
    writer = ProgressPage(page)
    before_ns = time.monotonic_ns()
    writer.write_row_progress(2**63, 31, WorkerPhase.DECODING)
    writer.close()
    found = reader.read_row_progress()
    assert (found.task, found.place, found.phase) == (2**63, 31, WorkerPhase.DECODING)
    assert before_ns <= found.began_ns <= time.monotonic_ns()


def test_a_corrupt_progress_record_is_read_as_idle(page: int, reader: ProgressPage) -> None:
    os.pwrite(page, struct.pack("=QQII", 7, 8, 9, 2**31), 0)
    assert reader.read_row_progress() == RowProgress(task=7, place=9, phase=WorkerPhase.IDLE, began_ns=8)


def test_row_progress_and_a_transform_trial_are_stored_side_by_side(page: int, reader: ProgressPage) -> None:
    writer = ProgressPage(page)
    writer.write_row_progress(7, 31, WorkerPhase.DECODING)
    writer.write_transform_trial(2**40, "transform at äugment.py:1", WorkerPhase.TRYING)
    assert (reader.read_row_progress().task, reader.read_row_progress().phase) == (7, WorkerPhase.DECODING)
    found = reader.read_transform_trial()
    assert (found.stream, found.subject, found.phase) == (2**40, "transform at äugment.py:1", WorkerPhase.TRYING)
    writer.write_transform_trial(3, "m" * PROGRESS_PAGE_BYTES, WorkerPhase.IMPORTING)
    assert 0 < len(reader.read_transform_trial().subject) < PROGRESS_PAGE_BYTES
    writer.write_transform_trial(3, "", WorkerPhase.IDLE)
    assert (reader.read_transform_trial().subject, reader.read_transform_trial().phase) == (
        "",
        WorkerPhase.IDLE,
    )
    writer.close()


def test_a_corrupt_transform_trial_is_read_as_idle(page: int, reader: ProgressPage) -> None:
    os.pwrite(page, b"\xff" * PROGRESS_PAGE_BYTES, 0)
    assert reader.read_transform_trial().phase is WorkerPhase.IDLE


def test_a_worker_cannot_truncate_the_page(page: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(page, 0)
