"""The simulator itself: one seed gives one run, and every broken promise is detected."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scenario import Leg, Scenario, draw, steps_of
from scenarios import played, some_scenario
from simulator import Simulation
from virtual_trainer import Trainer

from streamd.client.handoff import Handoff
from streamd.client.leases import ReceivedBatch
from streamd.client.session import ClientAction, ClientSession
from streamd.core.receipt import EpochTally
from streamd.core.spec import Cursor
from streamd.ipc.messages import Pong
from streamd.scheduler.slot_pool import SlotEntry, SlotPool

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@pytest.mark.parametrize("seed", [3, 20, 77])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    one, other = Simulation(seed), Simulation(seed)

    assert one.run() == other.run()
    assert list(one.story.lines()) == list(other.story.lines())


@pytest.mark.long
def test_the_story_does_not_depend_on_the_hash_seed() -> None:
    def told(hash_seed: str) -> str:
        path = os.pathsep.join(str(folder) for folder in (HERE, ROOT / "tests"))
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        code = (
            "from simulator import Simulation\n"
            "runs = [Simulation(seed) for seed in range(20)]\n"
            "print(*[run.run() and run.story.digest() for run in runs])"
        )
        return subprocess.check_output([sys.executable, "-c", code], env=environment, cwd=ROOT, text=True)

    assert told("1") == told("2")


def test_different_seeds_give_different_runs() -> None:
    stories = [Simulation(seed) for seed in range(20)]
    for story in stories:
        story.run()

    assert len({simulation.story.digest() for simulation in stories}) == len(stories)


def test_random_scenarios_stay_within_their_documented_ranges() -> None:
    drawn = [draw(random.Random(seed)) for seed in range(300)]  # noqa: S311 - a story, no secret

    assert all(5 <= each.batches <= 50 and 1 <= each.epochs <= 3 for each in drawn)
    assert all({fault.place[0] for fault in each.faults} == set(range(each.epochs)) for each in drawn)
    assert {each.copies for each in drawn} == {1, 2, 3, 4}
    assert any(leg.world == 4 for each in drawn for leg in each.legs)
    assert any([leg.world for leg in each.legs] == [4, 3, 4] for each in drawn)
    assert min(each.hardware.slots for each in drawn) == 3


def test_a_job_that_changes_its_world_takes_every_batch_once() -> None:
    scenario = some_scenario(
        "a trainer is killed",
        copies=1,
        batches=50,
        legs=(Leg(4, 3), Leg(3, 4), Leg(4, None)),
        credits=(4, 4, 4, 4),
        steps_s=(0.005,) * 4,
    )

    for simulation in played(scenario, seeds=10):
        taken = [place for seat in simulation.past + simulation.seats for place in seat.taken]
        assert sorted(index for _, index in taken) == list(range(48))
        assert simulation.story.counts["changes of world"] == 2


def test_a_live_trainer_starts_where_the_others_are() -> None:
    simulations = played(some_scenario("the daemon is killed", live=True, epochs=2), seeds=10)

    assert sum(simulation.story.counts["joined others"] for simulation in simulations) == 10
    assert any(simulation.seats[-1].expected[0] > (0, 0) for simulation in simulations)


def test_steps_are_counted_from_any_position() -> None:
    assert list(steps_of(7, 2, (0, 3), 2, "drop")) == [(0, 3), (0, 5), (1, 0), (1, 2), (1, 4)]
    assert list(steps_of(7, 1, (0, 3), 3, "pad")) == [(0, 3), (0, 6)]


def test_a_trainer_stopped_for_ever_does_not_delay_the_others() -> None:
    scenario = some_scenario("a trainer is stopped for ever", batches=50)

    for simulation in played(scenario, seeds=10):
        (done,) = [seat for seat in simulation.seats if seat.name not in simulation.lost]
        assert len(done.taken) == 50
        assert simulation.done_s < 30.0


# --- whoever breaks a promise is found


def broken(scenario: Scenario, *, seeds: int = 30) -> str:
    """The first promise that is broken."""
    outcomes = (Simulation(seed, scenario).run() for seed in range(seeds))
    return next((outcome.broken for outcome in outcomes if outcome.broken), "")


def test_a_cursor_that_does_not_advance_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Handoff.take_batch

    def forgetful(self: Handoff, after: Cursor, wait_s: float) -> ReceivedBatch | None:
        return take(self, self.cursor if wait_s == 0 else after, wait_s)

    monkeypatch.setattr(Handoff, "take_batch", forgetful)

    assert broken(some_scenario("a connection breaks")).startswith("each step once, in order")


def test_a_slot_freed_early_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotPool, "cache_batch", SlotPool.discard_batch)
    hold = SlotPool.lease_batch

    def hold_nothing(self: SlotPool, entry: SlotEntry) -> None:
        hold(self, entry)
        self.free_slots.setdefault(entry.slot_bytes, []).append(entry.slot)

    monkeypatch.setattr(SlotPool, "lease_batch", hold_nothing)

    assert "slot_free_to_write" in broken(some_scenario())


def test_an_unreported_fork_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handoff, "before_fork", lambda _: None)

    assert broken(some_scenario("a trainer forks", batches=50)).startswith("what somebody sees is never rewritten")


def test_a_lost_frame_that_is_never_requested_again_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(self: ClientSession, pong: Pong, now_s: float) -> list[ClientAction]:
        del pong, now_s
        self._pinged_with, self._answer_due_s = None, None
        return []

    monkeypatch.setattr(ClientSession, "_handle_pong", trusting)
    scenario = some_scenario(*["frames are dropped"] * 4, hostile=True)

    assert broken(scenario).startswith("once faults end, everybody ends soon")


def test_a_tally_that_counts_twice_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    take = EpochTally.add_batch

    def twice(self: EpochTally, *batch: Any) -> None:
        take(self, *batch)
        take(self, *batch)

    monkeypatch.setattr(EpochTally, "add_batch", twice)

    assert broken(some_scenario()).startswith("every epoch's receipt is ok")


def test_a_session_that_outlives_its_trainer_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtual_daemon.Daemon.lose", lambda *_: None)

    assert broken(some_scenario("a trainer is killed")).startswith("who has left leaves nothing behind")


def test_any_exception_is_reported_as_the_result_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Trainer) -> None:
        raise ZeroDivisionError("by nobody")

    monkeypatch.setattr(Trainer, "_stepped", fails)

    assert broken(some_scenario()) == "ZeroDivisionError: by nobody"
