"""Sessions by number and by stream."""

from __future__ import annotations

from support.scheduler_driver import train, wish

from streamd.scheduler.scheduler import SessionTable
from streamd.scheduler.session import ScheduledSession


def add(table: SessionTable, number: int, stream: str) -> ScheduledSession:
    session = ScheduledSession.from_subscription(wish(number, stream=stream), train(9, name=stream), credit=2)
    table.add_session(session)
    return session


def test_sessions_are_found_by_number_and_by_stream_in_the_order_in_which_they_came() -> None:
    table = SessionTable()
    third, first, other = add(table, 3, "a"), add(table, 1, "a"), add(table, 2, "b")
    assert (table[3], list(table.values())) == (third, [third, first, other])
    assert [list(table.list_of_stream(name)) for name in "abc"] == [[third, first], [other], []]
    assert table.stream_count == 2


def test_a_removed_session_is_found_no_more_and_its_stream_counts_while_it_has_others() -> None:
    table = SessionTable()
    first, second = add(table, 1, "a"), add(table, 2, "a")
    assert table.remove_session(1) is first
    assert table.remove_session(1) is None
    assert (list(table), list(table.list_of_stream("a")), table.stream_count) == ([2], [second], 1)
    table.remove_session(2)
    assert (len(table), table.stream_count) == (0, 0)
