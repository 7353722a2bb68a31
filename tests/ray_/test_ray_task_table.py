"""Which node gets which tasks, what happens when it is silent or gone, and that each task is filled once."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from streamd.limits import CALL_TASKS, NODE_TASKS_AHEAD, SILENT_S, SILENT_TIMES
from streamd.ray.task_table import NodeCall, TaskTable

STREAM = 3


def table_of(*names: str, tasks: int = 0, workers: int = 1) -> TaskTable:
    """Nodes that have proven the stream, and queued tasks 1, 2, 3 ..."""
    table = TaskTable()
    for name in names:
        table.add_node(name, workers)
        table.add_stream(name, STREAM)
    for number in range(1, tasks + 1):
        table.add_task(number, STREAM)
    return table


def take_all(table: TaskTable, now_s: float = 0.0) -> list[NodeCall]:
    calls = list[NodeCall]()
    while call := table.take_next_call(now_s):
        calls.append(call)
    return calls


def answer(table: TaskTable, call: NodeCall, now_s: float = 0.0) -> list[int]:
    """Closes a call; returns the tasks that it has filled first."""
    first = table.close_call(call, now_s)
    for number in first:
        table.take_out(number)
    return first


def test_a_node_gets_two_calls_of_four_tasks() -> None:
    table = table_of("a", tasks=20)
    assert [call.tasks for call in take_all(table)] == [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert table.count_node_tasks("a") == NODE_TASKS_AHEAD == 2 * CALL_TASKS


def test_a_node_at_work_waits_for_a_whole_group_and_an_idle_one_gets_what_there_is() -> None:
    table = table_of("a", tasks=7)
    (call,) = take_all(table)
    table.add_task(8, STREAM)
    assert [each.tasks for each in take_all(table)] == [(5, 6, 7, 8)]
    answer(table, call)
    table.add_task(9, STREAM)
    assert take_all(table) == []

    assert [each.tasks for each in take_all(table_of("b", tasks=1))] == [(1,)]


def test_the_node_with_the_least_work_for_its_size_is_next() -> None:
    table = table_of("a", "b", tasks=16)
    assert [call.node for call in take_all(table)] == ["a", "b", "a", "b"]


def test_a_node_gets_no_task_of_a_stream_that_it_has_not_proven() -> None:
    table = TaskTable()
    table.add_node("a", 1)
    table.add_task(1, STREAM)
    assert take_all(table) == []
    table.add_stream("a", STREAM)
    assert table.has_other_node(STREAM, ())
    table.remove_stream("a", STREAM)
    assert take_all(table) == []


def test_the_tasks_of_a_lost_node_go_first_and_in_order_to_another() -> None:
    table = table_of("a", tasks=8)
    take_all(table)
    table.add_task(9, STREAM)
    table.add_node("b", 1)
    table.add_stream("b", STREAM)
    table.remove_node("a")
    assert [call.tasks for call in take_all(table)] == [(1, 2, 3, 4), (5, 6, 7, 8)]


def test_a_silent_nodes_tasks_also_go_to_another_and_the_first_answer_counts() -> None:
    table = table_of("a", tasks=4)
    (late,) = take_all(table)
    assert table.next_deadline_s == SILENT_S
    assert table.mark_overdue_calls(SILENT_S - 0.1) == []
    assert table.mark_overdue_calls(SILENT_S) == ["a"]
    assert table.is_silent("a")

    assert take_all(table, SILENT_S) == [], "no node but the silent one may have them"

    table.add_node("b", 1)
    table.add_stream("b", STREAM)
    (second,) = take_all(table, SILENT_S)
    assert (second.node, second.tasks) == ("b", late.tasks)
    assert answer(table, second) == [1, 2, 3, 4]
    assert answer(table, late) == []
    assert (len(table), table.is_silent("a")) == (0, False)


def test_the_late_answer_of_a_silent_node_counts_if_nobody_was_faster() -> None:
    table = table_of("a", tasks=1)
    (late,) = take_all(table)
    table.mark_overdue_calls(SILENT_S)
    assert answer(table, late) == [1]
    assert take_all(table) == []


def test_a_stream_of_slow_tasks_has_later_deadlines() -> None:
    table = table_of("a", tasks=1)
    (call,) = take_all(table)
    first = table.close_call(call, 3.0)
    table.add_task(2, STREAM)
    for number in first:
        table.take_out(number)
    take_all(table, 10.0)
    assert table.next_deadline_s == 10.0 + 3.0 * SILENT_TIMES


def test_a_task_that_a_node_could_not_fill_goes_to_another() -> None:
    table = table_of("a", "b", tasks=1)
    (call,) = take_all(table)
    assert table.close_call(call, 0.0) == [1]
    table.requeue(1, avoided={"a"})
    assert [each.node for each in take_all(table)] == ["b"]
    assert table.has_other_node(STREAM, {"a"})
    assert not table.has_other_node(STREAM, {"a", "b"})


def test_a_suspect_has_a_call_of_its_own() -> None:
    table = table_of("a", tasks=2)
    table.add_task(3, STREAM, is_alone=True)
    table.add_task(4, STREAM)
    assert [call.tasks for call in take_all(table)] == [(1, 2), (3,)]


def test_a_closed_stream_has_no_tasks_and_no_nodes() -> None:
    table = table_of("a")
    table.forget_stream(STREAM)
    assert not table.has_other_node(STREAM, ())


@given(st.lists(st.tuples(st.sampled_from("adlot"), st.integers(0, 7)), max_size=60))
def test_whatever_nodes_do_each_task_is_filled_once_and_none_is_lost(steps: list[tuple[str, int]]) -> None:
    table, calls, number, filled, now_s = TaskTable(), list[NodeCall](), 0, list[int](), 0.0
    for what, which in steps:
        now_s += 0.7
        match what:
            case "a":
                table.add_node(f"n{which % 3}", 1)
                table.add_stream(f"n{which % 3}", STREAM)
                calls = [call for call in calls if call.node != f"n{which % 3}"]
            case "d" if calls:
                filled += answer(table, calls.pop(which % len(calls)), now_s)
            case "l":
                table.remove_node(f"n{which % 3}")
                calls = [call for call in calls if call.node != f"n{which % 3}"]
            case "o":
                table.mark_overdue_calls(now_s)
            case _:
                number += 1
                table.add_task(number, STREAM)
        calls += take_all(table, now_s)
    for name in ("n0", "n1", "n2"):
        table.remove_node(name)
    table.add_node("last", 64)
    table.add_stream("last", STREAM)
    while calls := take_all(table, now_s):
        for call in calls:
            filled += answer(table, call, now_s)
    assert sorted(filled) == list(range(1, number + 1))
    assert len(table) == 0
