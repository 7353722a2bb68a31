"""Who shares each decode with whom, by where trainers are. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
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


def numbered(sessions: Iterable[SessionStatus]) -> dict[int, int]:
    """The cohort that each session is in that has not finished; numbers are by stream, from 0."""
    found: dict[int, int] = {}
    begun: Counter[str] = Counter()
    for row in _rows(sessions):
        for ahead, each in zip((row[0], *row), row, strict=False):
            begun[each.stream] += ahead is each or _are_apart(ahead, each)
            found[each.session] = begun[each.stream] - 1
    return found


def cohorts(sessions: Iterable[SessionStatus]) -> dict[str, int]:
    """How many cohorts the sessions of each stream make."""
    found: dict[str, int] = defaultdict(int)
    for row in _rows(sessions):
        found[row[0].stream] += 1 + sum(_are_apart(ahead, each) for ahead, each in pairwise(row))
    return dict(found)


def _are_apart(ahead: SessionStatus, behind: SessionStatus) -> bool:
    """Whether neither's credit reaches from one to the other."""
    return steps_done(ahead) - steps_done(behind) > max(ahead.credit, behind.credit)


def _rows(sessions: Iterable[SessionStatus]) -> Iterable[list[SessionStatus]]:
    """Those that have not finished, by stream, rank and world, the furthest first."""
    parts: dict[tuple[str, int, int], list[SessionStatus]] = defaultdict(list)
    for each in sessions:
        if each.doing != "finished":
            parts[each.stream, each.rank, each.world].append(each)
    return [sorted(part, key=steps_done, reverse=True) for part in parts.values()]
