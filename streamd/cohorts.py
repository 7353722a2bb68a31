"""Who shares each decode with whom, by where trainers are. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from streamd.status import SessionStatus


def steps_done(session: SessionStatus) -> int:
    """Steps since the beginning of epoch 0."""
    return session.epoch * session.steps + session.step


def lags(sessions: Iterable[SessionStatus]) -> dict[int, int]:
    """How many steps each session is behind the furthest of its stream, rank and world that has not finished."""
    return {
        each.session: max(0, steps_done(row[0]) - steps_done(each))
        for row in _rows(sessions)
        for each in row
    }  # fmt: skip


def cohorts(sessions: Iterable[SessionStatus]) -> dict[str, int]:
    """How many cohorts the sessions of each stream make: one is no further from the next than its credit reaches."""
    found: dict[str, int] = defaultdict(int)
    for row in _rows(sessions):
        found[row[0].stream] += 1 + sum(
            steps_done(a) - steps_done(b) > max(a.credit, b.credit) for a, b in pairwise(row)
        )
    return dict(found)


def _rows(sessions: Iterable[SessionStatus]) -> Iterable[list[SessionStatus]]:
    """Those that have not finished, by stream, rank and world, the furthest first."""
    parts: dict[tuple[str, int, int], list[SessionStatus]] = defaultdict(list)
    for each in sessions:
        if each.doing != "finished":
            parts[each.stream, each.rank, each.world].append(each)
    return [sorted(part, key=steps_done, reverse=True) for part in parts.values()]
