"""Whose wish is decoded next.

Work-conserving stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528, 1995) over groups of sessions that want the
same batch: a group is charged once, its members in equal parts, so a group of three is served three times as often as a
session alone. One exception: two trainers apart get half each for ever and two in step get all, so a session behind
another is served first when drawing level costs the leader, and whoever else has to wait, no more than a bounded time
an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from streamd.limits import CATCH_UP_S
from streamd.spec import BatchKey
from streamd.window.sessions import Session

_LOOK_AGAIN_S: Final = 1.0  # between two looks at a follower that was too far behind

Wish = tuple[BatchKey, list[Session]]


def wishes(
    sessions: Iterable[Session], ahead: Callable[[Session], int], known: Callable[[BatchKey], bool]
) -> tuple[list[Wish], list[Wish]]:
    """The first batch on each session's way that is not `known`, and who wants it.

    First those that could be sent at once, then those that will be wanted within `ahead` more.
    """
    near: dict[BatchKey, list[Session]] = {}
    far: dict[BatchKey, list[Session]] = {}
    for session in sessions:
        room = session.room
        missing = session.first_missing(room + ahead(session), known)
        if missing is not None:
            key, before = missing
            (near if before < room else far).setdefault(key, []).append(session)
    return list(near.items()), list(far.items())


def choose(
    groups: Sequence[Wish], chasing: Sequence[Session], costs_s: Mapping[str, float], turn: float
) -> tuple[Wish, float]:
    """The group to serve: a chaser's if all others can afford it, else the one that has had the least.

    With it comes the time in seconds that each session of the other groups loses for a chaser's sake.
    """
    for wish in groups:
        if any(session in chasing for session in wish[1]):
            cost_s = costs_s.get(wish[0].stream, 0.0)
            if all(session.lost_s + cost_s <= CATCH_UP_S for session in others(groups, wish)):
                return wish, cost_s
    return min(groups, key=lambda wish: _account(wish[1], turn)), 0.0


def others(groups: Iterable[Wish], served: Wish) -> list[Session]:
    """Everyone who has to wait while a group is served."""
    return [session for wish in groups if wish is not served for session in wish[1]]


def _account(members: Sequence[Session], turn: float) -> float:
    """What a group has had; whoever slept is an equal on waking, not owed for the sleep."""
    return max(turn, min(session.turn for session in members))


def charge(members: Sequence[Session], turn: float) -> float:
    """Books the tasks of one production on those who wanted it; returns the scheduler's own clock."""
    turn = _account(members, turn)
    for session in members:
        session.turn = max(session.turn, turn) + session.shape.tasks / len(members)
    return turn


def leaders(sessions: Iterable[Session]) -> list[tuple[Session, Session]]:
    """(follower, leader) pairs: the leader is the nearest ahead that walks the same steps in the same epoch."""
    cohorts: dict[tuple[str, int, int, int, int], list[Session]] = {}
    for session in sessions:
        if not session.finished:
            walk, key = session.walk, session.next_key
            place = (key.stream, key.epoch, walk.rank, walk.world, key.index % walk.world)
            cohorts.setdefault(place, []).append(session)
    pairs = []
    for cohort in cohorts.values():
        steps: dict[int, list[Session]] = {}
        for session in cohort:
            steps.setdefault(session.next_key.index, []).append(session)
        for here, there in pairwise(sorted(steps)):
            pairs += [(follower, steps[there][0]) for follower in steps[here]]
    return pairs


def chasers(
    sessions: Sequence[Session], known: Callable[[BatchKey], bool], costs_s: Mapping[str, float], now_s: float
) -> list[Session]:
    """The sessions that are to be brought level with the one ahead of them."""
    pairs = leaders(sessions)
    following = {follower.id for follower, _ in pairs}
    for session in sessions:
        if session.id not in following:
            session.chasing = None
    for follower, leader in pairs:
        if leader.lost_s >= CATCH_UP_S:
            follower.chasing = None
        elif follower.chasing != leader.id and (follower.chasing is not None or now_s >= follower.look_s):
            missing = sum(not known(key) for key in follower.ahead(follower.distance(leader.next_key) or 0))
            within_reach = missing * costs_s.get(follower.shape.name, 0.0) <= CATCH_UP_S - leader.lost_s
            follower.chasing = leader.id if within_reach else None
            follower.look_s = now_s + _LOOK_AGAIN_S
    return [follower for follower, leader in pairs if follower.chasing == leader.id]
