"""One run: a seed becomes a scenario, the scenario a story, and every promise is checked on the way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from mishaps import Mishaps
from scenario import Leg, Scenario, draw, steps_of
from stage import Stage
from story import BrokenPromiseError, Story
from support.scheduler_driver import Place
from synthetic import Synthetic
from virtual_daemon import Daemon
from virtual_network import Network
from virtual_time import Agenda
from virtual_trainer import Saved, Seat, Trainer

from streamd.errors import StreamdError
from streamd.limits import PAIR_S

_SOON_S: Final = 5.0  # from the last fault's end until all are done, beside their work, however small the memory
_LATE_S: Final = 90.0  # the same where frames are lost, since silence is noticed after a while, perhaps several times
_AFTERWARDS_S: Final = PAIR_S + 1.0  # until everything of those who left must be gone, a session without a lifeline too
_LOOK_EVERY: Final = 256  # happenings
_MOST_LOOKS: Final = 400  # time that stands still while things happen is a hang too


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to: its whole epochs and batches; `broken`: the promise that was not kept, or ""."""

    seed: int
    scenario: Scenario
    epochs: int
    batches: int
    virtual_s: float
    counts: Counter[str]
    checked: Counter[str]
    broken: str


class Simulation:
    """Daemon after daemon, trainers at their seats, and the faults between them."""

    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        self.seed = seed
        rng = random.Random(seed)  # noqa: S311 - a story, no secret
        self.scenario = scenario or draw(rng)
        agenda = Agenda()
        self.story = Story(agenda)
        data = Synthetic(self.scenario.batches, self.scenario.tasks, self.scenario.policy)
        network = Network(agenda, rng, self.story, hostile=self.scenario.hostile)
        self.stage = Stage(agenda, rng, self.story, network, data, self.scenario.hardware)
        self.daemon: Daemon | None = None
        self.trainers: dict[str, Trainer] = {}  # the present one at each seat
        self.seats: list[Seat] = []
        self.past: list[Seat] = []
        self.lost: set[str] = set()  # seats whose trainer is stopped for ever
        self._over = False
        self._looks = 0
        self.done_s = 0.0
        self._boots = count(1)
        self._legs = iter(self.scenario.legs)
        self._place: Place = (0, 0)
        self.mishaps = Mishaps(self)

    # --- the whole run

    def run(self) -> Outcome:
        broken = ""
        try:
            self._play()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is this seed's result
            broken = str(error) if isinstance(error, BrokenPromiseError) else f"{type(error).__name__}: {error}"
            self.story.note("", "BROKEN: {}", broken)
        counts = self.story.counts
        epochs = 0 if broken else self.scenario.epochs
        passed = (self.seed, self.scenario, epochs, counts["batches"], self.done_s)
        return Outcome(*passed, counts, self.story.checked, broken)

    def _play(self) -> None:
        self.story.note("", "seed {}: {}", self.seed, self.scenario.describe())
        self.start_daemon()
        self._begin_leg(next(self._legs), None)
        agenda = self.stage.agenda
        while not self._all_done():
            self._looks += 1
            for _ in range(_LOOK_EVERY):
                if self._over or not agenda.step():
                    break
            waiting = [seat.name for seat in self.seats if not seat.done]
            late_s = agenda.now_s - max(self.mishaps.quiet_from_s, self.stage.network.unheard_until_s)
            moving = self._all_done() or (agenda.busy and late_s < self._bound_s and self._looks < _MOST_LOOKS)
            self.story.require("once faults end, everybody ends soon", moving, "{} wait for ever", waiting)
        self.done_s = agenda.now_s
        self._look_back()
        self._clear_up()

    @property
    def _bound_s(self) -> float:
        """Until all are done: generously what they have to do themselves, and what healing may take."""
        scenario, hardware = self.scenario, self.scenario.hardware
        together = max(scenario.copies, *(leg.world for leg in scenario.legs))
        step_s = 2 * max(scenario.steps_s) + 4 * hardware.decode_s * together
        return 2 * scenario.batches * scenario.epochs * step_s + (_LATE_S if scenario.hostile else _SOON_S)

    def _all_done(self) -> bool:
        return all(seat.done or seat.name in self.lost for seat in self.seats)

    def _look_back(self) -> None:
        """What was taken, over all processes, worlds and daemons, relative to the checkpoints."""
        for seat in self.past + self.seats:
            if seat.name not in self.lost:
                self.story.require("everything due was taken", seat.taken == seat.expected, "{}", seat.name)
        if self.scenario.copies == 1:
            for epoch in range(self.scenario.epochs):
                self._look_back_at(epoch)

    def _look_back_at(self, epoch: int) -> None:
        seats = self.past + self.seats
        taken = sorted(index for seat in seats for at, index in seat.taken if at == epoch)
        most = max(leg.world for leg in self.scenario.legs)
        least = self.scenario.batches - (0 if self.scenario.uneven == "pad" else most - 1)
        whole = taken == list(range(len(taken))) and len(taken) >= least
        self.story.require("the union of all ranks is the epoch, each batch once", whole, "epoch {}: {}", epoch, taken)

    def _clear_up(self) -> None:
        """Everybody goes; what they held must come back."""
        agenda = self.stage.agenda
        for trainer in self.trainers.values():
            if trainer.seat.name in self.lost:
                trainer.kill()
            trainer.end_children()
        for child in self.mishaps.orphans:
            child.end_children()
        until_s = max(agenda.now_s, self.mishaps.quiet_from_s, self.stage.network.unheard_until_s) + _AFTERWARDS_S
        for _ in range(_LOOK_EVERY * _MOST_LOOKS):
            if agenda.now_s >= until_s or not agenda.step():
                break
        daemon = self.daemon
        if daemon is not None and not daemon.process.stopped:
            left = [session.id for session in daemon.window.sessions]
            self.story.require("who has left leaves nothing behind", not left and not daemon.peers, "sessions {}", left)
            self._keep_checks(daemon)

    # --- daemons

    def start_daemon(self) -> None:
        if self.daemon is None:
            self.daemon = Daemon(next(self._boots), self.stage)
            self.stage.network.bind(self.daemon)
            self.story.note(str(self.daemon), "is there")

    def end_daemon(self) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            self._keep_checks(daemon)
            daemon.process.kill()
            self.stage.network.unbind()
            self.story.note(str(daemon), "is gone")

    def _keep_checks(self, daemon: Daemon) -> None:
        """What the window's own ledger has checked."""
        self.story.checked.update({f"ledger: {rule}": number for rule, number in daemon.window.checks_by_rule.items()})

    # --- seats

    def _begin_leg(self, leg: Leg, saved: Saved | None) -> None:
        """New ranks continue where the last leg ended."""
        scenario = self.scenario
        ahead = list(steps_of(scenario.batches, scenario.epochs, self._place, leg.world, scenario.uneven))[: leg.steps]
        self.past += self.seats
        self.seats = [seat for rank in range(leg.world) for seat in self._seats_of(leg, rank, ahead)]
        self._place = (ahead[-1][0], ahead[-1][1] + leg.world) if ahead else self._place
        for seat in self.seats:
            if saved is not None:
                seat.saved = Saved(saved.place, 0)
            self.stage.agenda.after(self.stage.rng.random() * (0.3 if seat.live else 0.05), self.seat_trainer, seat)

    def _seats_of(self, leg: Leg, rank: int, ahead: list[Place]) -> Iterator[Seat]:
        scenario = self.scenario
        for copy in range(scenario.copies):
            number = rank + copy
            yield Seat(
                f"trainer {len(self.past) + number}",
                rank,
                leg.world,
                scenario.uneven,
                scenario.epochs,
                scenario.credits[number],
                scenario.steps_s[number],
                [(epoch, base + rank) for epoch, base in ahead],
                to_the_end=leg.steps is None,
                user=scenario.users[number % len(scenario.users)],
                live=scenario.live and copy == scenario.copies - 1,
            )

    def seat_trainer(self, seat: Seat) -> None:
        """A process begins at a seat, from its checkpoint."""
        earlier = self.trainers.get(seat.name)
        if earlier is not None and earlier.children:
            self.mishaps.orphans.append(earlier)
        self.story.note(seat.name, "begins with {} steps done", seat.saved.steps)
        self.stage.network.users[seat.name] = seat.user
        self.trainers[seat.name] = self.make_trainer(seat)

    def make_trainer(self, seat: Seat) -> Trainer:
        """A process at a seat."""
        return Trainer(seat, self.stage, self.mishaps.reached, self._ended)

    def _ended(self, trainer: Trainer, error: StreamdError | None) -> None:
        if error is not None:
            self.story.counts[f"ended by {type(error).__name__}"] += 1
            self.come_back(trainer.seat)
        elif self._all_done():
            self._over = True
            leg = next(self._legs, None)
            if leg is not None:
                self.story.counts["changes of world"] += 1
                self._over = False
                self._begin_leg(leg, self.stage.rng.choice(self.seats).saved)

    def come_back(self, seat: Seat) -> None:
        """Somebody starts the trainer again, often at once."""
        self.stage.agenda.after(0.002 + self.stage.rng.random() ** 3, self.seat_trainer, seat)
