"""Whose batch is decoded next.

Work-conserving stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528, 1995) over groups of sessions that want the
same batch: a group is charged once, its members in equal parts, so a group of three is served three times as often as a
session alone. One exception: two trainers apart get half each for ever and two in step get all, so a session behind
another is served first, until it has drawn level, when that costs the leader, and whoever else has to wait, no more
than a bounded time an epoch. A gap too large for one epoch is closed in several, if there are so many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from streamd.core.spec import BatchKey
from streamd.limits import CATCH_UP_S
from streamd.scheduler.session import Session

_LOOK_AGAIN_S: Final = 1.0  # between two looks at a follower that was too far behind


Groups = Mapping[BatchKey, Sequence[Session]]  # the sessions that want each batch


def find_wanted_batches(
    sessions: Iterable[Session], ahead: Callable[[str], int], known: Callable[[BatchKey], bool]
) -> tuple[Groups, Groups, set[BatchKey]]:
    """The first batch of each session that is not `known`, with the sessions that want it.

    First those that could be sent at once, then those that will be wanted within `ahead` more of their stream. For
    a chaser that asks both are one: were its gaps filled one by one as it comes to them, each would throw it back
    further. Last the batches that lie within somebody's credit, which cannot be refused a slot.
    """
    near: dict[BatchKey, list[Session]] = {}
    far: dict[BatchKey, list[Session]] = {}
    in_reach: set[BatchKey] = set()
    for session in sessions:
        room = session.room
        missing = session.first_missing(room + ahead(session.shape.name), known)
        if missing is not None:
            key, before = missing
            if before < room:
                in_reach.add(key)
            urgent = before < room or (room > 0 and session.chasing is not None)
            (near if urgent else far).setdefault(key, []).append(session)
    return near, far, in_reach


def choose_batch(
    groups: Groups, chasing: Sequence[Session], costs_s: Mapping[str, float], turn: float
) -> tuple[BatchKey, float]:
    """The batch to decode: that of the first chaser that all others can afford, else of the group that had the least.

    With it comes the time in seconds that each session of the other groups loses for a chaser's sake.
    """
    for chaser in chasing:
        key = next((key for key, members in groups.items() if chaser in members), None)
        if key is not None:
            cost_s = costs_s.get(key.stream, 0.0)
            if all(session.lost_s + cost_s <= CATCH_UP_S for session in waiting_sessions(groups, key)):
                return key, cost_s
    return min(groups, key=lambda key: _account(groups[key], turn)), 0.0


def waiting_sessions(groups: Groups, served: BatchKey) -> list[Session]:
    """Everyone who has to wait while the group of one batch is served."""
    return [session for key, members in groups.items() if key != served for session in members]


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
    """(follower, leader) pairs, the rearmost first: the leader is the nearest ahead that walks the same steps."""
    cohorts: dict[tuple[str, int, int, int], dict[tuple[int, int], list[Session]]] = {}
    for session in sessions:
        if not session.finished:
            walk, key = session.walk, session.next_key
            places = cohorts.setdefault((key.stream, walk.rank, walk.world, key.index % walk.world), {})
            places.setdefault((key.epoch, key.index), []).append(session)
    pairs = []
    for places in cohorts.values():
        for here, there in pairwise(sorted(places)):
            pairs += [(follower, places[there][0]) for follower in places[here]]
    return pairs


def chasers(
    sessions: Sequence[Session], pool: Collection[BatchKey], costs_s: Mapping[str, float], now_s: float
) -> list[Session]:
    """The sessions that are to be brought level with the one ahead of them, the rearmost first."""
    pairs = leaders(sessions)
    following = {follower.id for follower, _ in pairs}
    for session in sessions:
        if session.id not in following:
            session.chasing = None
    for follower, leader in pairs:
        if leader.lost_s >= CATCH_UP_S:
            follower.chasing = None
        elif follower.chasing != leader.id and (follower.chasing is not None or now_s >= follower.look_s):
            worth_it = _pays(follower, leader, pool, costs_s.get(follower.shape.name, 0.0))
            follower.chasing = leader.id if worth_it else None
            follower.look_s = now_s + _LOOK_AGAIN_S
    return [follower for follower, leader in pairs if follower.chasing == leader.id]


def _pays(follower: Session, leader: Session, pool: Collection[BatchKey], cost_s: float) -> bool:
    """Whether the follower can draw level, in this epoch or by and by, and the leader gets back what that costs it.

    Apart, what both have before them is decoded twice; level, once: all that they then share is the leader's gain.
    """
    apart = follower.distance(leader.next_key)
    if apart is None:
        return False  # its last epoch lies behind the leader
    ready = sum((distance := follower.distance(key)) is not None and distance < apart for key in pool)
    epochs, steps = _in_common(follower, leader)
    missing = apart - ready
    return missing <= steps and missing * cost_s <= CATCH_UP_S * epochs - leader.lost_s


def _in_common(follower: Session, leader: Session) -> tuple[float, float]:
    """The epochs, with this one, and the steps that both have still to go from where the leader is."""
    ends = [each.walk.epochs for each in (follower, leader) if each.walk.epochs is not None]
    if not ends:
        return inf, inf
    here, epochs = leader.at, min(ends) - leader.at.epoch
    return epochs, here.steps - here.step + (epochs - 1) * leader.walk.steps_per_epoch
