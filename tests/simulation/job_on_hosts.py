"""One job on many hosts: a daemon on each of them, ranks that take their shares from their own, and hosts that fail.

Nothing crosses hosts but the job's own steps and a token, so each host is a simulation of its own: the real scheduler,
sessions, tallies and tokens, with faults of its own. The job goes from checkpoint to checkpoint. When hosts fail, what
was taken after the last checkpoint was taken in vain, and the ranks of the hosts that are there then continue from the
token of any rank, in a world of another size.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scenario import FAULTS, Fault, Leg, Scenario, steps_of
from simulator import Simulation
from stage import Hardware
from support.scheduler_driver import Place
from virtual_trainer import Saved, Seat, Trainer

from streamd.core.rank_receipts import NamedReceipt
from streamd.core.receipt import Receipt
from streamd.ipc.messages import ReceiptDue

_CREDIT: Final = 3
_HAPPENINGS: Final = 400  # at most so many more happen on a host between a checkpoint and its death
_FAULTY: Final = 0.3  # of all hosts, in each leg


@dataclass(frozen=True, slots=True)
class HostLeg:
    """What one host does in a leg: `ranks` of `world` go `steps` steps from a place, and save after `saved` of them."""

    ranks: range
    world: int
    start: Place
    steps: int | None
    saved: int
    token: Saved | None


class RankTrainer(Trainer):
    """Saves at the job's checkpoint, and keeps its receipts."""

    simulation: HostSimulation

    def _take(self, *details: Any) -> None:
        super()._take(*details)
        if len(self.seat.taken) == self.simulation.leg.saved:
            self.save()

    def save(self) -> None:
        # After an epoch's last step, a program keeps its receipt first, as ResumeCallback does: a token from there
        # continues with the next epoch, whose process never gets that receipt.
        if self.seat.to_the_end and not self._walk.step_after(self.tally.cursor).steps:
            return
        super().save()

    def _settle(self, due: ReceiptDue) -> None:
        self.simulation.receipts.append(self.build_receipt(due.digest, due.dropped))
        super()._settle(due)

    def build_receipt(self, expected: str | None, dropped: int = 0) -> Receipt:
        """The receipt of the present epoch; of an epoch that was left early without the daemon's digest."""
        receipt = self.tally.build_receipt(expected_digest=expected, steps_left=0, dropped=dropped)
        # A host's daemon makes other pixels after some of its restarts, which others do not. That ranks then saw other
        # pixels is true, and tested elsewhere: here only the batches of the job are added up.
        return replace(receipt.with_rank(self.seat.rank, self.seat.world, self._spec), pixel_id="")


class HostSimulation(Simulation):
    """One host during one leg."""

    def __init__(self, seed: int, scenario: Scenario, leg: HostLeg) -> None:
        super().__init__(seed, scenario)
        self.leg = leg
        self.receipts: list[Receipt] = []

    def make_trainer(self, seat: Seat) -> Trainer:
        class HostTrainer(RankTrainer):
            simulation = self

        return HostTrainer(seat, self.stage, self.mishaps.reached, self._ended)

    def _begin_leg(self, leg: Leg, saved: Saved | None) -> None:
        del leg, saved
        mine, scenario = self.leg, self.scenario
        ahead = list(steps_of(scenario.batches, 1, mine.start, mine.world, "drop"))[: mine.steps]
        self.seats = [
            Seat(
                f"rank {rank}", rank, mine.world, "drop", 1, _CREDIT, 0.005,
                [(epoch, base + rank) for epoch, base in ahead], to_the_end=mine.steps is None,
            )
            for rank in mine.ranks
        ]  # fmt: skip
        for seat in self.seats:
            if mine.token is not None:
                seat.saved = Saved(mine.token.place, 0)
            self.stage.agenda.after(self.stage.rng.random() * 0.05, self.seat_trainer, seat)

    def _look_back(self) -> None:
        for seat in self.seats:
            self.story.require("everything due was taken", seat.taken == seat.expected, "{}", seat.name)

    def run_until_death(self) -> None:
        """All ranks come to the checkpoint, and soon after that the host is no more."""
        self.start_daemon()
        self._begin_leg(self.scenario.legs[0], None)
        rest = self.stage.rng.randrange(_HAPPENINGS)
        while rest and self.stage.agenda.step():
            rest -= all(len(seat.taken) >= self.leg.saved for seat in self.seats)
        for trainer in self.trainers.values():
            trainer.kill()
        self.end_daemon()

    def list_receipts(self) -> list[Receipt]:
        """The receipts of whole epochs, or of what was taken of one that all left."""
        partly = [
            each.build_receipt(None)
            for each in self.trainers.values()
            if isinstance(each, RankTrainer) and each.tally.cursor.history
        ]
        return self.receipts or partly

    def checkpoint_of(self, rank: int) -> Saved:
        """Where a rank was saved at the job's checkpoint."""
        (seat,) = [each for each in self.seats if each.rank == rank]
        return next(each for each in seat.saves if each.steps == self.leg.saved)


@dataclass(slots=True)
class Job:
    """A job of `ranks` ranks on each of `hosts` hosts, over one epoch of `batches` batches, with a change every leg."""

    seed: int
    hosts: int
    ranks: int
    batches: int
    legs: int
    receipts: list[NamedReceipt] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)  # what counts, by the checkpoints
    worlds: list[int] = field(default_factory=list)
    deaths: int = 0
    broken: list[str] = field(default_factory=list)
    dropped: int = 0

    def run(self) -> Job:
        """Runs the job to the end of the epoch."""
        rng = random.Random(self.seed)  # noqa: S311 - a story, no secret
        alive, start, token = list(range(self.hosts)), (0, 0), None
        for number in range(self.legs):
            last = number == self.legs - 1
            world = len(alive) * self.ranks
            steps = len(list(steps_of(self.batches, 1, start, world, "drop")))
            saved = steps if last else max(1, steps // (self.legs - number))
            beyond = None if last else min(steps, saved + rng.randint(1, 2))
            failing = set() if last else set(rng.sample(alive, rng.randint(1, max(1, len(alive) // 20))))
            legs = {
                host: HostLeg(range(place * self.ranks, (place + 1) * self.ranks), world, start, beyond, saved, token)
                for place, host in enumerate(alive)
            }
            played = {
                host: self._play_host(rng.getrandbits(32), leg, dies=host in failing) for host, leg in legs.items()
            }
            self._count_leg(number, played, failing, saved)
            self.worlds.append(world)
            if not last:
                host = rng.choice([each for each in alive if each not in failing])
                token = played[host].checkpoint_of(rng.choice(legs[host].ranks))
                start = (0, start[1] + saved * world)
                gone = [each for each in range(self.hosts) if each not in alive]
                back = rng.sample(gone, len(gone) // 2)
                alive = sorted({*alive, *back} - failing)
        self.dropped = self.batches - len(self.taken)
        return self

    def _play_host(self, seed: int, leg: HostLeg, *, dies: bool) -> HostSimulation:
        simulation = HostSimulation(seed, self._draw_scenario(random.Random(seed), leg), leg)  # noqa: S311 - as above
        if dies:
            simulation.run_until_death()
            self.deaths += 1
        elif broken := simulation.run().broken:
            self.broken.append(f"ranks {leg.ranks} of {leg.world}, seed {seed}: {broken}")
        return simulation

    def _draw_scenario(self, rng: random.Random, leg: HostLeg) -> Scenario:
        place = leg.start[0], leg.start[1] + leg.world * rng.randint(0, 1)
        kinds = [kind for kind in FAULTS if kind not in {"a sample is spoiled", "a trainer is stopped for ever"}]
        faults = (Fault(place, rng.choice(kinds)),) if rng.random() < _FAULTY else ()
        hardware = Hardware(8 * self.ranks * _CREDIT, 2, 0.002)
        scenario = Scenario(
            self.batches, 1, 1, "substitute", "drop", hardware, 1, (Leg(self.ranks, leg.steps),), (_CREDIT,), (0,),
            (0.005,), hostile=False, live=False, may_stop=0, faults=faults,
        )  # fmt: skip
        return replace(scenario, credits=(_CREDIT,) * self.ranks)

    def _count_leg(self, number: int, played: dict[int, HostSimulation], failing: set[int], saved: int) -> None:
        for host, simulation in played.items():
            self.taken += [index for seat in simulation.seats for _, index in seat.taken[:saved]]
            if host not in failing:
                found = simulation.list_receipts()
                self.receipts += [NamedReceipt(f"leg {number}, host {host}", each) for each in found]
