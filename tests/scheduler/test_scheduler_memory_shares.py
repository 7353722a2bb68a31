"""A newcomer finds room whatever other sessions and users hold, and nobody has less where memory is ample."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.scheduler_driver import MIB, Trainer, World, train, wish

from streamd.core.spec import StreamShape
from streamd.limits import DEFAULT_CREDIT, GIB, MAX_CREDIT, MIN_CREDIT, OTHER_USERS
from streamd.scheduler.admission import (
    ADMISSION_RETRY_S,
    AdmissionDenial,
    AdmissionGrant,
    SchedulerLimits,
    admit_session,
    compute_production_slots,
)
from streamd.scheduler.memory_shares import MemoryRoom, MemoryShares, SlotHolding
from streamd.scheduler.session import ScheduledSession

OWN, FIRST_USER = 0, 1001
SHAPE = train(100)
WORKERS = 2
STOPPED = 6


@dataclass(slots=True)
class Holders:
    """Admits sessions that hold all that they are granted, and release nothing."""

    memory_bytes: int
    shape: StreamShape = SHAPE
    workers: int = WORKERS
    sessions: list[ScheduledSession] = field(default_factory=list)
    ended: list[SlotHolding] = field(default_factory=list)

    @property
    def limits(self) -> SchedulerLimits:
        return SchedulerLimits(self.memory_bytes, self.workers, own_user=OWN)

    @property
    def shares(self) -> MemoryShares:
        slots = self.memory_bytes // self.shape.slot_bytes - compute_production_slots(self.shape, self.limits)
        return MemoryShares(MemoryRoom(slots * self.shape.slot_bytes, slots), self.shape.slot_bytes, OWN)

    def ask(self, *, user: int = OWN, credit: int = MAX_CREDIT) -> AdmissionGrant | AdmissionDenial:
        event = wish(len(self.sessions) + len(self.ended), credit=credit, user=user)
        return admit_session(event, self.shape, self.sessions, self.limits, self.ended)

    def admit(self, *, user: int = OWN, credit: int = MAX_CREDIT, hold: bool = True) -> int:
        """Returns the credit that a new session is granted, 0 where it is refused."""
        verdict = self.ask(user=user, credit=credit)
        by_number = {session.id: session for session in self.sessions}
        for number, smaller in verdict.shrunk_credits.items():
            by_number[number].credit = smaller
        if isinstance(verdict, AdmissionDenial):
            return 0
        number = max((*by_number, len(self.ended)), default=0) + 1
        made = ScheduledSession.from_subscription(wish(number, credit=credit, user=user), self.shape, verdict.credit)
        made.leases = {each: each for each in range(verdict.credit if hold else 0)}
        self.sessions.append(made)
        return verdict.credit

    def end(self, session: ScheduledSession, held: int) -> None:
        """Ends a session of which `held` batches stay held."""
        self.sessions.remove(session)
        if held:
            self.ended.append(SlotHolding(session.user, session.shape.slot_bytes, held))

    def users(self) -> set[int]:
        return {each.user for each in self.sessions} | {each.user for each in self.ended}


def fill(world: World, trainers: list[Trainer]) -> None:
    """Lets the workers go on until the trainers hold all that they may."""
    while any(len(each.held) < min(each.credit, 100) for each in trainers):
        world.produce()


# --- the promise, through the scheduler


@pytest.mark.parametrize("credit", [DEFAULT_CREDIT, MAX_CREDIT])
@pytest.mark.parametrize("user", [OWN, FIRST_USER])
def test_six_stopped_trainers_keep_no_seventh_out(credit: int, user: int) -> None:
    world = World(SHAPE, memory=41 * MIB, workers=WORKERS)
    stopped = []
    for _ in range(STOPPED):
        stopped.append(world.subscribe(credit=credit))
        fill(world, stopped)

    late = world.subscribe(credit=8, user=user)

    assert late.refused is None
    world.run(late)
    assert late.taken == late.batches_of_all(100)


def test_six_stopped_trainers_of_a_user_keep_no_seventh_of_any_user_out() -> None:
    world = World(SHAPE, memory=64 * MIB, workers=WORKERS)
    stopped = []
    for _ in range(STOPPED):
        stopped.append(world.subscribe(credit=MAX_CREDIT, user=FIRST_USER))
        fill(world, stopped)

    for user in (FIRST_USER, FIRST_USER + 1, OWN):
        late = world.subscribe(credit=8, user=user)
        assert late.refused is None
        world.run(late)
        assert late.taken == late.batches_of_all(100)


def test_batches_held_of_six_ended_sessions_keep_no_seventh_out() -> None:
    world = World(SHAPE, memory=41 * MIB, workers=WORKERS)
    for _ in range(STOPPED):
        holder = world.subscribe(credit=MAX_CREDIT)
        fill(world, [holder])
        world.close(holder, told=False)

    late = world.subscribe(credit=8)

    assert late.refused is None
    world.run(late)
    assert late.taken == late.batches_of_all(100)


def test_a_user_that_opens_many_sessions_shrinks_only_credits_of_its_own() -> None:
    world = World(SHAPE, memory=200 * MIB, workers=WORKERS)
    honest = [world.subscribe(credit=DEFAULT_CREDIT, user=user) for user in (OWN, OWN, FIRST_USER)]
    assert {each.credit for each in honest} == {DEFAULT_CREDIT}

    greedy = [world.subscribe(credit=MAX_CREDIT, user=FIRST_USER + 1) for _ in range(90)]

    assert {each.credit for each in honest} == {DEFAULT_CREDIT}
    assert any(each.refused for each in greedy)
    assert world.subscribe(credit=DEFAULT_CREDIT, user=FIRST_USER + 2).credit >= MIN_CREDIT
    assert world.subscribe(credit=DEFAULT_CREDIT).credit >= MIN_CREDIT


# --- the promise, as arithmetic


@pytest.mark.parametrize("slots", [8, 12, 35, 64, 157, 683])
def test_as_many_sessions_as_the_formula_says_find_room_whatever_each_holds(slots: int) -> None:
    for credit in (DEFAULT_CREDIT, MAX_CREDIT):
        holders = Holders(0)
        holders.memory_bytes = _memory_for(slots)
        formula = holders.shares.count_sessions_kept(MIB)
        assert formula >= min(slots // 4, slots // 16 + 7)
        for _ in range(formula):
            assert holders.admit(credit=credit) >= MIN_CREDIT


@pytest.mark.parametrize("seed", range(20))
def test_users_find_their_first_batches_in_any_random_sequence(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret, a sequence that can be repeated
    holders = Holders(_memory_for(rng.choice((20, 26, 35, 64, 157))))
    for _ in range(300):
        if holders.sessions and rng.random() < 0.3:
            session = rng.choice(holders.sessions)
            holders.end(session, rng.choice((0, 1, len(session.leases))))
        elif holders.ended and rng.random() < 0.3:
            holders.ended.remove(rng.choice(holders.ended))
        elif rng.random() < 0.1:
            _enter_as_own_user(holders)
        else:
            _enter_as_other_user(holders, rng)


def _enter_as_own_user(holders: Holders) -> None:
    """A session of the daemon's own user, which takes no more than what is kept for that user."""
    own = sum(each.credit for each in holders.sessions if each.user == OWN)
    own += sum(each.slots for each in holders.ended if each.user == OWN)
    if own + MIN_CREDIT <= holders.shares.kept_for_own_user.slot_count:
        assert holders.admit(credit=MIN_CREDIT) == MIN_CREDIT, "others leave its part to the daemon's own user"


def _enter_as_other_user(holders: Holders, rng: random.Random) -> None:
    others = holders.users() - {OWN}
    user = rng.choice(range(FIRST_USER, FIRST_USER + OTHER_USERS + 2))
    granted = holders.admit(user=user, credit=rng.choice((2, 16, 1024)))
    if user not in others and len(others) <= OTHER_USERS:
        assert granted >= MIN_CREDIT, "a user that has nothing finds its first batches"


# --- where memory is ample


@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("memory_bytes", [64 * MIB, 256 * MIB, GIB])
@pytest.mark.parametrize("slot_bytes", [400_000, 1_500_000, 6_000_000, 20_000_000])
def test_trainers_keep_their_credit_wherever_one_more_would_fit(
    memory_bytes: int, slot_bytes: int, workers: int
) -> None:
    shape = train(100, slot_bytes=slot_bytes)
    for trainers in range(1, 9):
        holders = Holders(memory_bytes, shape, workers)
        if (trainers + 1) * DEFAULT_CREDIT > holders.shares.total.slot_count:
            break
        granted = [holders.admit(credit=DEFAULT_CREDIT, hold=False) for _ in range(trainers)]
        assert granted == [DEFAULT_CREDIT] * trainers


@pytest.mark.parametrize("pixels", [128, 224])
def test_eight_trainers_of_one_user_have_full_credit_with_the_default_memory(pixels: int) -> None:
    holders = Holders(GIB, train(100, slot_bytes=32 * pixels * pixels * 3 + 8192), workers=4)

    assert [holders.admit(user=FIRST_USER, credit=DEFAULT_CREDIT, hold=False) for _ in range(8)] == [16] * 8
    assert {session.credit for session in holders.sessions} == {DEFAULT_CREDIT}


@pytest.mark.parametrize("slots", range(2, 20))
def test_memory_for_fewer_than_ten_sessions_is_not_divided_among_users(slots: int) -> None:
    own, other = Holders(_memory_for(slots)), Holders(_memory_for(slots))

    while granted := own.admit():
        assert other.admit(user=FIRST_USER) == granted
    assert not other.admit(user=FIRST_USER)


# --- refusals


def test_a_refusal_says_how_many_trainers_find_room_whatever_they_hold() -> None:
    holders = Holders(_memory_for(34))
    while holders.admit():
        pass
    denial = holders.ask()
    assert isinstance(denial, AdmissionDenial)
    assert "17.0 of the 34.0 MiB for all trainers are kept for the first 2 batches of each" in denial.text
    assert "room for 8 trainers of this stream, whatever each of them holds" in denial.text


def test_a_user_beyond_its_share_is_refused_with_the_arithmetic_of_the_share() -> None:
    holders = Holders(_memory_for(100))
    while holders.admit(user=FIRST_USER, credit=MIN_CREDIT):
        pass
    denial = holders.ask(user=FIRST_USER)
    assert isinstance(denial, AdmissionDenial)

    assert (denial.refusal, denial.retry_s) == ("memory", None)
    assert "does not fit into the share of user 1001: one batch takes 1.0 MiB; 2 batches for the trainer take" in (
        denial.text
    )
    assert "other trainers of this user have 76.0 MiB" in denial.text
    assert "leave 87.5 MiB of 100.0 MiB to this user, which may take 76.6 MiB" in denial.text
    advised = int(denial.text.rpartition("at least ")[2].removesuffix("MiB"))
    holders.memory_bytes = advised * MIB
    assert holders.admit(user=FIRST_USER)


def test_the_share_in_a_refusal_counts_the_credit_that_others_keep() -> None:
    holders = Holders(_memory_for(100))
    for _ in range(3):
        assert holders.admit(credit=DEFAULT_CREDIT, hold=False) == DEFAULT_CREDIT
    while holders.admit(user=FIRST_USER, credit=MIN_CREDIT):
        pass
    denial = holders.ask(user=FIRST_USER)
    assert isinstance(denial, AdmissionDenial)

    assert "leave 52.0 MiB of 100.0 MiB to this user, which may take 44.0 MiB of it" in denial.text
    assert "other trainers of this user have 44.0 MiB" in denial.text


def test_the_number_of_sessions_with_room_is_bounded_by_slots_too() -> None:
    shares = MemoryShares(MemoryRoom(1000 * MIB, 40), MIB, OWN)

    assert shares.kept == MemoryRoom(139 * MIB, 19)
    assert shares.count_sessions_kept(MIB) == 9


def test_a_user_whose_trainers_hold_more_than_their_credit_is_told_to_retry() -> None:
    holders = Holders(_memory_for(100))
    while holders.admit(user=FIRST_USER):
        pass
    denial = holders.ask(user=FIRST_USER)
    assert isinstance(denial, AdmissionDenial)

    assert denial.retry_s == ADMISSION_RETRY_S
    assert "fits into the share of user 1001 as soon as trainers give back batches" in denial.text
    assert "this user may take 76.6 MiB of 100.0 MiB" in denial.text


def _memory_for(slots: int) -> int:
    """The memory in which sessions have so many slots of one MiB."""
    return next(
        mib * MIB
        for mib in range(slots + 1, 2 * slots + 20)
        if mib - compute_production_slots(SHAPE, SchedulerLimits(mib * MIB, WORKERS)) == slots
    )
