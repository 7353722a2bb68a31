"""Trainers die and resume from checkpoints; their memory is freed, and no other trainer notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from killers import descriptors, is_alive, number, slots_mapped, slots_of, threads, wait_for_outstanding
from logged import LoggedTrainer, problems, running
from oracle import union_problems
from scene import Scene, dice, scene, times
from support.daemon_process import wait_until

from streamd.core.slot_layout import compute_slot_bytes

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
Record = Callable[[str, object], None]
LIVES = times(20, 2)
AT_ONCE = times(4, 1)  # doomed trainers at a time
HOLD = 4  # batches that each of them has mapped


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("d"), 2 * (16 * LIVES + 3)) as stage:
        yield stage


@pytest.mark.long
@pytest.mark.fault("1", "three trainers, two epochs")
def test_all_trainers_get_two_epochs_in_the_same_order(stage: Scene, tmp_path: Path) -> None:
    with running(*stage.at(tmp_path).trainers(times(3, 2), epochs=2)) as trainers:
        for each in trainers:
            each.finish()
        assert problems(stage.truth, *trainers) == []


@pytest.mark.long
@pytest.mark.fault("2", "four ranks of one world, one epoch whose last step is not whole")
def test_four_ranks_share_an_epoch_and_leave_out_only_its_uneven_end(stage: Scene, tmp_path: Path) -> None:
    here = stage.at(tmp_path)
    with running(*(here.trainer(f"rank-{rank}", rank=rank, world=4) for rank in range(4))) as ranks:
        for each in ranks:
            each.finish()
        assert problems(stage.truth, *ranks) == []
        assert stage.truth.spec.batches % 4
        assert union_problems(stage.truth, [each.log for each in ranks], 1) == []


@pytest.mark.fault("7", "trainer killed with -9 in mid-epoch, 20 times, and resumed from its checkpoint; two others")
def test_a_trainer_killed_often_resumes_from_its_checkpoints_and_disturbs_nobody(
    stage: Scene, tmp_path: Path, record_property: Record
) -> None:
    throws, here, met = dice(), stage.at(tmp_path), list[int]()
    doomed = here.trainer("doomed", gated=True, checkpoint_every=3)
    others = [here.trainer(f"other-{each}", gated=True) for each in range(times(2, 1))]
    with running(doomed, *others):
        for life in range(1, LIVES + 1):
            before, count = len(doomed.steps), throws.randint(4, 14)
            doomed.allow(count)
            doomed.wait_for(before + count)
            met.append(wait_for_outstanding(doomed))
            for each in others:
                each.allow(14 * life)
            doomed.kill()
            doomed.start()
        for each in (doomed, *others):
            each.allow()
            each.finish()
        assert problems(stage.truth, doomed, *others) == []
        account = doomed.judge(stage.truth)
        assert (account.lives, account.again > 0) == (LIVES + 1, True)
        assert [(each.judge(stage.truth).lives, each.steps[-1].connection) for each in others] == [(1, 0)] * len(others)
        record_property("saw", f"{LIVES} kills, {min(met)} to {max(met)} batches untaken; {account.again} sent again")


@dataclass(frozen=True, slots=True)
class Burden:
    """What a daemon carries: memory by its own account, slots, descriptors of anything else, threads."""

    memory_used_bytes: int
    slots: int
    other_descriptors: int
    threads: int

    def __str__(self) -> str:
        counts = f"{self.slots} slots, {self.other_descriptors} other descriptors, {self.threads} threads"
        return f"{self.memory_used_bytes:,} bytes used, {counts}"


def burden(stage: Scene) -> Burden:
    pid, used = stage.daemon.pid, number(stage.daemon.endpoint, "memory_used_bytes")
    every, held = descriptors(pid), len(slots_of(pid))  # in this order: a slot that is closed in between hides no other
    return Burden(int(used), held, every - held, threads(pid))


def die(stage: Scene, doomed: list[LoggedTrainer], *, forked: bool) -> float:
    """They take what they hold, fork if they are to, and are killed; seconds until their sessions have ended."""
    for each in doomed:
        each.start().allow(HOLD)
    for each in doomed:
        each.wait_for(len(each.steps) + HOLD)
        wait_for_outstanding(each)
        assert slots_mapped(each.process.pid) >= HOLD
        if forked:
            assert slots_mapped(each.fork()) >= HOLD
    assert number(stage.daemon.endpoint, "sessions") == len(doomed)
    for each in doomed:
        each.kill()
    began_s = time.monotonic()
    wait_until(lambda: number(stage.daemon.endpoint, "sessions") == 0, "their sessions have ended")
    return time.monotonic() - began_s


@pytest.mark.long
@pytest.mark.fault(
    "8",
    "trainers killed with -9 while they hold mapped slots, 200 times, every fourth with a forked child that lives on",
    departs="what a living child has mapped stays in its memory, and is no slot any more",
)
def test_the_memory_of_killed_trainers_is_freed_while_their_children_live(
    stage: Scene, tmp_path: Path, record_property: Record
) -> None:
    doomed = stage.at(tmp_path).trainers(AT_ONCE, gated=True, hold=HOLD)
    burdens, ends_s, rounds = list[Burden](), list[float](), times(50, 3)
    try:
        for turn in range(rounds):
            ends_s.append(die(stage, doomed, forked=turn % 4 == 1))
            burdens.append(burden(stage))
        children = [child for each in doomed for child in each.children]
        assert children
        assert all(map(is_alive, children))
    finally:
        for each in doomed:
            each.abandon()
    first = burdens[0]
    assert [each.threads for each in burdens] == [first.threads] * rounds
    # If what a round held had not been given back.
    half_a_leak = compute_slot_bytes(stage.truth.spec) * HOLD * rounds // 2
    assert burdens[-1].memory_used_bytes < first.memory_used_bytes + half_a_leak
    wait_until(lambda: burden(stage).other_descriptors <= first.other_descriptors, "the children's connections end")
    saw = f"{rounds * len(doomed)} kills, {len(children)} children; sessions ended within {max(ends_s):.2f} s"
    record_property("saw", f"{saw}; at first {first}; in the end {burden(stage)}")
