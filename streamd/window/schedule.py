"""Whose wish is decoded next.

Work-conserving stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528, 1995) over groups of sessions that want the
same batch: a group is charged once, its members in equal parts, so a group of three is served three times as often as a
session alone. One exception: two trainers apart get half each for ever and two in step get all, so a session behind
another is served first when drawing level costs the leader no more than a bounded time an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from streamd.limits import CATCH_UP_S
from streamd.spec import BatchKey
from streamd.window.sessions import Session

_LOOK_AGAIN_S: Final = 1.0  # between two looks at a follower that was too far behind

Wish = tuple[BatchKey, list[Session]]


def wishes(
    sessions: Iterable[Session], reach: Callable[[Session], int], known: Callable[[BatchKey], bool]
) -> list[Wish]:
    """The first batch on each session's way that is not `known`, within its `reach`, and who wants it."""
    groups: dict[BatchKey, list[Session]] = {}
    for session in sessions:
        missing = next((key for key in session.ahead(reach(session)) if not known(key)), None)
        if missing is not None:
            groups.setdefault(missing, []).append(session)
    return list(groups.items())


def choose(groups: Sequence[Wish], chasing: Sequence[Session], turn: float) -> Wish:
    """The group to serve: a chaser's if there is one, else the one that has had the least."""
    for wish in groups:
        if any(session in chasing for session in wish[1]):
            return wish
    return min(groups, key=lambda wish: _account(wish[1], turn))


def _account(members: Sequence[Session], turn: float) -> float:
    """What a group has had; whoever slept is an equal on waking, not owed for the sleep."""
    return max(turn, min(session.turn for session in members))


def charge(members: Sequence[Session], turn: float) -> float:
    """Books one production on those who wanted it; returns the scheduler's own clock."""
    turn = _account(members, turn)
    for session in members:
        session.turn = max(session.turn, turn) + 1.0 / len(members)
    return turn


def leader_of(follower: Session, sessions: Iterable[Session]) -> tuple[Session, int] | None:
    """The nearest session ahead that walks the same steps in the same epoch, and how many steps ahead."""
    nearest: tuple[Session, int] | None = None
    for other in sessions:
        same_walk = other.shape is follower.shape and _rank(other) == _rank(follower)
        if other is follower or not same_walk or other.at.epoch != follower.at.epoch or other.finished:
            continue
        gap = follower.distance(other.next_key)
        if gap and (nearest is None or gap < nearest[1]):
            nearest = (other, gap)
    return nearest


def _rank(session: Session) -> tuple[int, int]:
    return session.walk.rank, session.walk.world


def chasers(
    sessions: Sequence[Session], known: Callable[[BatchKey], bool], cost_s: float, now_s: float
) -> list[tuple[Session, Session]]:
    """(follower, leader) pairs in which the follower is served first now."""
    pairs = []
    for follower in sessions:
        found = leader_of(follower, sessions)
        if found is None:
            follower.chasing = None
            continue
        leader, gap = found
        if leader.lost_s >= CATCH_UP_S:
            follower.chasing = None
        elif follower.chasing != leader.id and now_s >= follower.look_s:
            missing = sum(not known(key) for key in follower.ahead(gap))
            within_reach = missing * cost_s <= CATCH_UP_S - leader.lost_s
            follower.chasing = leader.id if within_reach else None
            follower.look_s = now_s + _LOOK_AGAIN_S
        if follower.chasing == leader.id:
            pairs.append((follower, leader))
    return pairs
