"""Chooses the batch that is decoded next.

Work-conserving stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528, 1995) over groups of sessions that want the
same batch. A group is charged once, its members in equal parts, so a group of three is served three times as often as a
session alone. The unit is the time that workers spend. Each session of the daemon's own user has a share of its own;
all sessions of any other user divide one share.

There is one exception. Two trainers that are apart get half of the decoders each, for ever; two in step get all of
them. So a session behind another is served first until it has drawn level, if that costs the leader and each other
session that has to wait no more than a bounded time an epoch. A gap too large for one epoch is closed over several, if
enough of them remain. Where this makes another user wait, it may take no more than a part of the time, however often
the sessions of a user begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final

from streamd.core.leaky_bucket import LeakyBucket
from streamd.core.spec import BatchKey
from streamd.limits import CATCH_UP_S, USER_CATCH_UP_BURST_S, USER_CATCH_UP_SHARE
from streamd.scheduler.session import ScheduledSession

_CATCH_UP_RECHECK_S: Final = 1.0  # between two looks at a follower that was too far behind


SessionsByBatch = Mapping[BatchKey, Sequence[ScheduledSession]]  # the sessions that want each batch


def find_near_batches(
    sessions: Iterable[ScheduledSession], ahead: Callable[[str], int], known: Callable[[BatchKey], bool]
) -> tuple[SessionsByBatch, set[BatchKey]]:
    """Finds the first batch of each session that is not `known` and could be sent at once; groups sessions by it.

    Returned with the groups are the keys of all batches that lie within a session's credit, which cannot be refused a
    slot. For a session that catches up and has credit, the batches of `find_far_batches` count as near: if its gaps
    were filled one by one when it reaches them, it would fall back further at each.
    """
    near: dict[BatchKey, list[ScheduledSession]] = {}
    in_reach: set[BatchKey] = set()
    for session in sessions:
        if session.is_resting or (room := session.sendable_count) <= 0:
            continue
        reach = room if session.chased_session is None else room + _compute_horizon(session, ahead)
        missing = session.find_missing_batch(reach, known)
        if missing is not None:
            key, before = missing
            if before < room:
                in_reach.add(key)
            near.setdefault(key, []).append(session)
    return near, in_reach


def find_far_batches(
    sessions: Iterable[ScheduledSession], ahead: Callable[[str], int], known: Callable[[BatchKey], bool]
) -> SessionsByBatch:
    """Finds the batches that will be wanted within `ahead(stream)` more steps, as `find_near_batches` does.

    Sessions with a near batch are not among them. Those that want nothing rest from now on: a user may have a quarter
    of all sessions, and this is asked for each batch that is begun.
    """
    far: dict[BatchKey, list[ScheduledSession]] = {}
    for session in sessions:
        if session.is_resting:
            continue
        room = session.sendable_count
        missing = session.find_missing_batch(room + _compute_horizon(session, ahead), known)
        if missing is None:
            session.is_resting = True
        elif missing[1] >= room and (room <= 0 or session.chased_session is None):
            far.setdefault(missing[0], []).append(session)
    return far


def _compute_horizon(session: ScheduledSession, ahead: Callable[[str], int]) -> int:
    """Returns how many batches beyond its credit are made for a session.

    Nothing is made far ahead for one that has just begun: it may be gone before it has read anything.
    """
    return min(ahead(session.shape.name), session.released_count + 1)


class DecodeShares:
    """The account of the workers' time, by user and session. `own_user` is the uid that the daemon runs as."""

    def __init__(self, own_user: int) -> None:
        self._own_user = own_user
        self._turn = 0.0  # the least virtual time of what was served last: idle sessions earn no claim while they sleep
        self._users: dict[int, _UserAccount] = {}  # of all users but the own one

    def choose_batch(
        self,
        groups: SessionsByBatch,
        chasing: Sequence[ScheduledSession],
        costs_s: Mapping[str, float],
        now_s: float,
    ) -> tuple[BatchKey, float]:
        """Returns the batch to decode: that of the first session in `chasing` whose cost all others can bear.

        If there is none, it is the batch of the group with the least virtual time. Returned with it is the time in
        seconds that each session of the other groups loses to the one that catches up; 0 without one.
        """
        # A user may have a quarter of all sessions, each at a batch of its own: each group is looked through once, and
        # not again for each session that catches up.
        wanted = {session.id: key for key, members in groups.items() for session in members} if chasing else {}
        refused: set[int] = set()  # users that have caught up for as long as they may
        for chaser in chasing:
            key = wanted.get(chaser.id)
            if key is None or chaser.user in refused:
                continue
            cost_s, others = costs_s.get(key.stream, 0.0), waiting_sessions(groups, key)
            if any(session.catch_up_cost_s + cost_s > CATCH_UP_S for session in others):
                continue
            # Where another user waits, the chaser's user is charged, and may take no more than a part of the time.
            if chaser.user != self._own_user and any(each.user != chaser.user for each in others):
                spent = self._users.setdefault(chaser.user, _UserAccount()).spent_on_catching_up
                if spent.compute_level(now_s) > USER_CATCH_UP_BURST_S:
                    refused.add(chaser.user)
                    continue
                spent.add(cost_s, now_s)
            return key, cost_s
        return min(groups, key=lambda key: self._compute_claim(groups[key])), 0.0

    def charge_sessions(self, members: Sequence[ScheduledSession], work_s: float) -> None:
        """Charges the time that workers spend on a batch to the sessions that want it, in equal parts."""
        self._turn = max(self._turn, self._compute_claim(members)[0])
        for session in members:
            part_s = work_s / len(members)
            if session.user == self._own_user:
                session.virtual_time = max(session.virtual_time, self._turn) + part_s
                continue
            account = self._users.setdefault(session.user, _UserAccount())
            account.virtual_time = max(account.virtual_time, self._turn) + part_s
            account.turn = max(account.turn, min(each.virtual_time for each in members if each.user == session.user))
            session.virtual_time = max(session.virtual_time, account.turn) + part_s

    def forget_absent_users(self, sessions: Iterable[ScheduledSession], now_s: float) -> None:
        """Drops the accounts of users that have neither a session nor a debt."""
        there = {session.user for session in sessions}
        self._users = {
            user: account
            for user, account in self._users.items()
            if user in there
            or account.virtual_time > self._turn
            or account.spent_on_catching_up.compute_level(now_s) > 0
        }

    def _compute_claim(self, members: Sequence[ScheduledSession]) -> tuple[float, float]:
        """Returns the strongest claim among `members`: the virtual time of the user, and that within the user."""
        claims = []
        for session in members:
            account = self._users.get(session.user)  # the own user has none
            if session.user == self._own_user:
                claims.append((max(self._turn, session.virtual_time), 0.0))
            elif account is None:
                claims.append((self._turn, session.virtual_time))
            else:
                claims.append((max(self._turn, account.virtual_time), max(account.turn, session.virtual_time)))
        return min(claims)


@dataclass(slots=True)
class _UserAccount:
    """The account of one user. `turn` is the least virtual time among its sessions that was served last."""

    virtual_time: float = 0.0
    turn: float = 0.0
    spent_on_catching_up: LeakyBucket = field(default_factory=lambda: LeakyBucket(USER_CATCH_UP_SHARE))


def waiting_sessions(groups: SessionsByBatch, served: BatchKey) -> list[ScheduledSession]:
    """Returns the sessions that wait while the group of batch `served` is served."""
    return [session for key, members in groups.items() if key != served for session in members]


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
    # The epochs, this one included, and the steps that both still have to go from the leader's position.
    ends = [each.rank_steps.epochs for each in (follower, leader) if each.rank_steps.epochs is not None]
    epochs, steps, here = inf, inf, leader.position
    if ends:
        epochs = min(ends) - here.epoch
        steps = here.steps - here.step + (epochs - 1) * leader.rank_steps.steps_per_epoch
    missing = apart - ready
    return missing <= steps and missing * cost_s <= CATCH_UP_S * epochs - leader.catch_up_cost_s
