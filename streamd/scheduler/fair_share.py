"""Chooses the batch that is decoded next.

Work-conserving stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528, 1995) over groups of sessions that want the
same batch. A group is charged once, its members in equal parts, so a group of three is served three times as often as a
session alone.

There is one exception. Two trainers that are apart get half of the decoders each, for ever; two in step get all of
them. So a session behind another is served first until it has drawn level, if that costs the leader and each other
session that has to wait no more than a bounded time an epoch. A gap too large for one epoch is closed over several, if
enough of them remain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from streamd.core.spec import BatchKey
from streamd.limits import CATCH_UP_S
from streamd.scheduler.session import ScheduledSession

_CATCH_UP_RECHECK_S: Final = 1.0  # between two looks at a follower that was too far behind


SessionsByBatch = Mapping[BatchKey, Sequence[ScheduledSession]]  # the sessions that want each batch


def find_wanted_batches(
    sessions: Iterable[ScheduledSession], ahead: Callable[[str], int], known: Callable[[BatchKey], bool]
) -> tuple[SessionsByBatch, SessionsByBatch, set[BatchKey]]:
    """Finds the first batch of each session that is not `known`, and groups the sessions by that batch.

    Returns three collections: the batches that could be sent at once; those that will be wanted within `ahead(stream)`
    more steps; and the keys of all batches that lie within a session's credit, which cannot be refused a slot. For a
    session that catches up and has credit, both kinds of batches count as sendable at once. If its gaps were filled one
    by one when it reaches them, it would fall back further at each.
    """
    near: dict[BatchKey, list[ScheduledSession]] = {}
    far: dict[BatchKey, list[ScheduledSession]] = {}
    in_reach: set[BatchKey] = set()
    for session in sessions:
        room = session.sendable_count
        missing = session.find_missing_batch(room + ahead(session.shape.name), known)
        if missing is not None:
            key, before = missing
            if before < room:
                in_reach.add(key)
            urgent = before < room or (room > 0 and session.chased_session is not None)
            (near if urgent else far).setdefault(key, []).append(session)
    return near, far, in_reach


def choose_batch(
    groups: SessionsByBatch, chasing: Sequence[ScheduledSession], costs_s: Mapping[str, float], turn: float
) -> tuple[BatchKey, float]:
    """Returns the batch to decode: that of the first session in `chasing` whose cost all others can bear.

    If there is none, it is the batch of the group with the least virtual time. Returned with it is the time in seconds
    that each session of the other groups loses to the one that catches up; 0 without one.
    """
    for chaser in chasing:
        key = next((key for key, members in groups.items() if chaser in members), None)
        if key is not None:
            cost_s = costs_s.get(key.stream, 0.0)
            if all(session.catch_up_cost_s + cost_s <= CATCH_UP_S for session in waiting_sessions(groups, key)):
                return key, cost_s
    return min(groups, key=lambda key: _compute_group_virtual_time(groups[key], turn)), 0.0


def waiting_sessions(groups: SessionsByBatch, served: BatchKey) -> list[ScheduledSession]:
    """Returns the sessions that wait while the group of batch `served` is served."""
    return [session for key, members in groups.items() if key != served for session in members]


def _compute_group_virtual_time(members: Sequence[ScheduledSession], turn: float) -> float:
    """Returns the least virtual time among `members`, at least `turn`: idle sessions earn no claim while they sleep."""
    return max(turn, min(session.virtual_time for session in members))


def charge_tasks_to_sessions(members: Sequence[ScheduledSession], turn: float) -> float:
    """Charges the tasks of one batch to the sessions that want it, in equal parts; returns the new virtual time."""
    turn = _compute_group_virtual_time(members, turn)
    for session in members:
        session.virtual_time = max(session.virtual_time, turn) + session.shape.tasks / len(members)
    return turn


def pair_followers_with_leaders(
    sessions: Iterable[ScheduledSession],
) -> list[tuple[ScheduledSession, ScheduledSession]]:
    """Returns (follower, leader) pairs; among sessions that walk the same steps, the rearmost follower comes first.

    The leader is the nearest session ahead that walks the same steps.
    """
    # Two sessions can share batches only if their indices coincide modulo `world`. After a change of rank or world in
    # the middle of an epoch, steps begin at another base, so rank and world alone do not say this.
    cohorts: dict[tuple[str, int, int, int], dict[tuple[int, int], list[ScheduledSession]]] = {}
    for session in sessions:
        if not session.finished:
            walk, key = session.rank_steps, session.next_key
            places = cohorts.setdefault((key.stream, walk.rank, walk.world, key.index % walk.world), {})
            places.setdefault((key.epoch, key.index), []).append(session)
    pairs = []
    for places in cohorts.values():
        for here, there in pairwise(sorted(places)):
            pairs += [(follower, places[there][0]) for follower in places[here]]
    return pairs


def choose_sessions_to_catch_up(
    sessions: Sequence[ScheduledSession], pool: Collection[BatchKey], costs_s: Mapping[str, float], now_s: float
) -> list[ScheduledSession]:
    """Returns the sessions that catch up with the one ahead of them, the rearmost first.

    Updates `chased_session` and `next_catch_up_check_s` of the sessions.
    """
    pairs = pair_followers_with_leaders(sessions)
    following = {follower.id for follower, _ in pairs}
    # A chase ends when the follower has drawn level, or when its leader's costs of this epoch reach their bound. It is
    # weighed again when another session becomes the leader. A follower that does not chase is weighed once a second,
    # since weighing looks at every batch of the pool.
    for session in sessions:
        if session.id not in following:
            session.chased_session = None
    for follower, leader in pairs:
        if leader.catch_up_cost_s >= CATCH_UP_S:
            follower.chased_session = None
        elif follower.chased_session != leader.id and (
            follower.chased_session is not None or now_s >= follower.next_catch_up_check_s
        ):
            worth_it = _is_catching_up_worthwhile(follower, leader, pool, costs_s.get(follower.shape.name, 0.0))
            follower.chased_session = leader.id if worth_it else None
            follower.next_catch_up_check_s = now_s + _CATCH_UP_RECHECK_S
    return [follower for follower, leader in pairs if follower.chased_session == leader.id]


def _is_catching_up_worthwhile(
    follower: ScheduledSession, leader: ScheduledSession, pool: Collection[BatchKey], cost_s: float
) -> bool:
    """Whether the follower can draw level, over several epochs if need be, and the leader gains what that costs it.

    While they are apart, the steps that both have ahead are decoded twice; once they are level, only once. All that
    they then share is the leader's gain.
    """
    apart = follower.count_steps_until_batch(leader.next_key)
    if apart is None:
        return False  # its last epoch lies behind the leader
    ready = sum((distance := follower.count_steps_until_batch(key)) is not None and distance < apart for key in pool)
    epochs, steps = _compute_shared_epochs_and_steps_left(follower, leader)
    missing = apart - ready
    return missing <= steps and missing * cost_s <= CATCH_UP_S * epochs - leader.catch_up_cost_s


def _compute_shared_epochs_and_steps_left(follower: ScheduledSession, leader: ScheduledSession) -> tuple[float, float]:
    """Returns the epochs, this one included, and the steps that both still have to go from the leader's position."""
    ends = [each.rank_steps.epochs for each in (follower, leader) if each.rank_steps.epochs is not None]
    if not ends:
        return inf, inf
    here, epochs = leader.position, min(ends) - leader.position.epoch
    return epochs, here.steps - here.step + (epochs - 1) * leader.rank_steps.steps_per_epoch
