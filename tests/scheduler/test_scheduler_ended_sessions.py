"""Batches that trainers still hold of sessions that have ended."""

from __future__ import annotations

from support.scheduler_driver import MIB, train, wish

from streamd.scheduler.memory_shares import SlotHolding
from streamd.scheduler.session import EndedSessions, HeldOverMemory

TWO = SlotHolding(user=0, slot_bytes=MIB, slots=2)


def test_an_ended_session_without_leases_is_not_kept() -> None:
    ended = EndedSessions()
    ended.add_session(1, MIB, {})
    ended.add_session(2, MIB, {0: 5, 1: 6})
    assert list(ended) == [2]
    assert ended[2].held_bytes == 2 * MIB


def test_a_session_inherits_only_known_uncounted_sessions_of_its_slot_size() -> None:
    ended = EndedSessions()
    for session, slot_bytes in ((1, MIB), (2, MIB), (3, 2 * MIB), (4, MIB)):
        ended.add_session(session, slot_bytes, {0: session})
    ended[2].successor = 7
    assert list(ended.find_inherited_sessions(wish(9, earlier=(1, 2, 3, 99)), train(9), {7})) == [1]
    assert list(ended.find_inherited_sessions(wish(9, earlier=(1, 2)), train(9), set())) == [1, 2]


def test_held_over_memory_excludes_batches_counted_with_a_session() -> None:
    ended = EndedSessions()
    for session in (1, 2, 3):
        ended.add_session(session, MIB, {0: session, 1: session + 10})
    ended[1].successor = 7
    assert ended.compute_held_over_memory({7}) == HeldOverMemory((TWO, TWO))
    assert ended.compute_held_over_memory({7}, {2: ended[2]}) == HeldOverMemory((TWO,), 2)
    assert ended.compute_held_over_memory(set()) == HeldOverMemory((TWO, TWO, TWO))


def test_held_over_memory_is_summed_over_the_sessions() -> None:
    held = HeldOverMemory((TWO, SlotHolding(7, 3 * MIB, 4)))

    assert (held.ownerless_bytes, held.ownerless_slots) == (14 * MIB, 6)


def test_a_session_inherits_no_batches_of_another_user() -> None:
    ended = EndedSessions()
    ended.add_session(1, MIB, {0: 1}, user=1001)

    assert list(ended.find_inherited_sessions(wish(9, earlier=(1,), user=1002), train(9), set())) == []
    assert list(ended.find_inherited_sessions(wish(9, earlier=(1,), user=1001), train(9), set())) == [1]
