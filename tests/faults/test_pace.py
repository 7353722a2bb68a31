"""A stopped, slow or busy trainer delays no other trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killers import go_on, number, state_of, stop, wait_for_credit, wait_for_outstanding
from logged import LoggedTrainer, advance, problems, running
from scene import Scene, scene, times
from support.daemon_process import wait_until

pytestmark = pytest.mark.timeout(300)
Record = Callable[[str, object], None]
BATCHES = times(2000, 150)
MEMORY_BYTES = 1 << 20


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("d"), 2 * BATCHES, settings={"memory": MEMORY_BYTES}) as stage:
        yield stage


def undisturbed(stage: Scene, *trainers: LoggedTrainer) -> bool:
    """Whether all took all they must, each in one session and one life."""
    assert problems(stage.truth, *trainers) == []
    return {(each.judge(stage.truth).lives, each.steps[-1].connection) for each in trainers} == {(1, 0)}


@pytest.mark.long
@pytest.mark.fault(
    "9",
    "trainer stopped with SIGSTOP while batches lie ready, continued when the others have read an epoch",
    departs="the pause is as long as the others' epoch, not 60 s; there is no SUSPECT: silence ends no local session",
)
def test_a_stopped_trainer_keeps_its_session_when_it_is_continued(stage: Scene, tmp_path: Path) -> None:
    here = stage.at(tmp_path)
    stopped, *others = here.trainer("stopped", gated=True), *here.trainers(times(2, 1))
    with running(stopped):
        advance([stopped], 5)
        wait_for_outstanding(stopped)
        stop(stopped.process.pid)
        with running(*others):
            for each in others:
                each.finish()
        assert stopped.look() == 5
        go_on(stopped.process.pid)
        stopped.allow()
        stopped.finish()
        assert undisturbed(stage, stopped, *others)


@pytest.mark.fault("9", "daemon stopped with SIGSTOP under load until its trainers starve, and continued")
def test_a_stopped_daemon_only_delays_its_trainers(stage: Scene, tmp_path: Path) -> None:
    with running(*stage.at(tmp_path).trainers(times(2, 1), gated=True)) as trainers:
        advance(trainers, 5)
        for each in trainers:
            wait_for_outstanding(each)
        stop(stage.daemon.pid)
        ready = [each.lying_ready() for each in trainers]
        for each in trainers:
            each.allow()
        for each, count in zip(trainers, ready, strict=True):
            each.wait_for(5 + count)
        go_on(stage.daemon.pid)
        for each in trainers:
            each.finish()
        assert undisturbed(stage, *trainers)


@pytest.mark.long
@pytest.mark.fault("9", "worker stopped with SIGSTOP under load until nothing comes any more, and continued")
def test_a_stopped_worker_only_delays_its_trainers(stage: Scene, tmp_path: Path) -> None:
    worker, *others = stage.daemon.workers()
    with running(*stage.at(tmp_path).trainers(times(2, 1), gated=True)) as trainers:
        advance(trainers, 5)
        stop(worker)
        for each in trainers:
            each.allow()
        wait_until(lambda: number(stage.daemon.endpoint, "producing") > 0, "a batch is being made")
        wait_until(lambda: all(state_of(each) == "S" for each in others), "nobody else works")
        go_on(worker)
        for each in trainers:
            each.finish()
        assert undisturbed(stage, *trainers)


@pytest.mark.long
@pytest.mark.fault(
    "10",
    "trainer in one long step, its credit of 8 used up, while another reads two epochs",
    departs="the step is as long as two epochs of another trainer, not 20 s",
)
def test_a_busy_trainer_keeps_its_session_and_uses_no_more_memory_than_its_credit(
    stage: Scene, tmp_path: Path, record_property: Record
) -> None:
    here = stage.at(tmp_path)
    busy, other = here.trainer("busy", gated=True, prefetch=8), here.trainer("other", epochs=2)
    with running(busy):
        advance([busy], 4)
        ready = wait_for_credit(busy)
        with running(other):
            other.finish()
        assert ready <= busy.lying_ready() <= 8
        used = number(stage.daemon.endpoint, "memory_used_bytes")
        record_property("saw", f"memory used {used:,.0f} of {MEMORY_BYTES:,} bytes, {ready} batches untaken")
        assert used <= MEMORY_BYTES
        busy.allow()
        busy.finish()
        assert undisturbed(stage, busy, other)


@pytest.mark.long
@pytest.mark.fault(
    "11",
    "one of four trainers stopped for ever, with batches that it had taken and others lying ready",
    departs="rates are measured by benchmarks/independence.py",
)
def test_a_trainer_stopped_for_ever_does_not_block_the_others(stage: Scene, tmp_path: Path) -> None:
    here = stage.at(tmp_path)
    stopped, *others = here.trainer("stopped", gated=True, hold=3), *here.trainers(times(3, 1))
    with running(stopped):
        advance([stopped], 4)
        wait_for_outstanding(stopped)
        stop(stopped.process.pid)
        with running(*others):
            for each in others:
                each.finish()
        assert state_of(stopped.process.pid) == "T"
        wait_until(lambda: number(stage.daemon.endpoint, "sessions") == 1, "the others have left")
        assert undisturbed(stage, *others)


@pytest.mark.long
@pytest.mark.fault(
    "12",
    "one trainer takes a batch for each ten of two others, memory for a twentieth of the epoch",
    departs="slow by count, not by the clock; what it comes to late is decoded again",
)
def test_a_trainer_ten_times_slower_gets_every_batch_in_bounded_memory(
    stage: Scene, tmp_path: Path, record_property: Record
) -> None:
    used, before = list[float](), number(stage.daemon.endpoint, "produced", "stream.train")
    slow, *fast = stage.at(tmp_path).trainers(times(3, 2), gated=True)
    with running(slow, *fast):
        for turn in range(1, BATCHES // 10):
            slow.allow(turn)
            advance(fast, 10 * turn)
            slow.wait_for(turn)
            used.append(number(stage.daemon.endpoint, "memory_used_bytes"))
        for each in (slow, *fast):
            each.allow()
            each.finish()
        assert undisturbed(stage, slow, *fast)
    decoded = number(stage.daemon.endpoint, "produced", "stream.train") - before
    record_property(
        "saw", f"memory at most {max(used):,.0f} of {MEMORY_BYTES:,} bytes; {decoded / BATCHES:.2f} decodes a batch"
    )
    assert max(used) <= MEMORY_BYTES
