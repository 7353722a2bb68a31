"""Tasks of expensive rows are small, so that workers share a batch; all others are as large as possible."""

from __future__ import annotations

import pytest

from streamd.daemon.engine.row_cost import RowCost
from streamd.limits import MAX_TASKS_AHEAD, TASK_ROWS, TASK_S, TASKS_AHEAD_PER_WORKER

MS = 1_000_000


def of(rows: int, took_ms: float) -> RowCost:
    cost = RowCost()
    cost.update_from_decoded_rows(rows, int(took_ms * MS))
    return cost


@pytest.mark.parametrize("row_ms", [0.05, 1, 7])
def test_cheap_rows_make_the_largest_tasks(row_ms: float) -> None:
    cost = of(TASK_ROWS, TASK_ROWS * row_ms)
    assert (cost.task_rows, cost.tasks_ahead) == (TASK_ROWS, MAX_TASKS_AHEAD)


@pytest.mark.parametrize(("row_ms", "rows"), [(25, 10), (100, 2), (200, 1), (4000, 1)])
def test_expensive_rows_make_tasks_that_end_in_time(row_ms: float, rows: int) -> None:
    cost = of(8, 8 * row_ms)
    assert (cost.task_rows, cost.tasks_ahead) == (rows, TASKS_AHEAD_PER_WORKER)
    assert rows == 1 or rows * row_ms <= TASK_S * 1000


def test_the_file_size_counts_until_a_row_was_measured() -> None:
    cost = RowCost()
    cost.estimate_from_bytes(38_000)
    assert cost.task_rows == TASK_ROWS
    cost.estimate_from_bytes(24_000_000)
    assert (cost.task_rows, cost.is_known) == (1, False)
    cost.update_from_decoded_rows(1, MS)
    assert (cost.task_rows, cost.is_known) == (TASK_ROWS, True)


def test_one_expensive_row_among_many_is_soon_forgotten() -> None:
    cost = of(32, 32)
    cost.update_from_decoded_rows(1, 1000 * MS)
    assert cost.task_rows < TASK_ROWS
    for _ in range(20):
        cost.update_from_decoded_rows(cost.task_rows, cost.task_rows * MS)
    assert cost.task_rows == TASK_ROWS


def test_cached_rows_count_until_one_was_decoded() -> None:
    cost = RowCost()
    cost.estimate_from_bytes(24_000_000)
    cost.update_from_cached_rows(32, MS)
    assert (cost.task_rows, cost.tasks_ahead) == (TASK_ROWS, MAX_TASKS_AHEAD)
    cost.update_from_decoded_rows(1, 100 * MS)
    assert cost.task_rows == 2
    cost.update_from_cached_rows(32, MS)
    assert cost.task_rows == 2
