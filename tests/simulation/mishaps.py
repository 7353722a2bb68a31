"""What goes wrong: each fault as something that happens to a simulation, soon after somebody has come to its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from scenario import FAULTS
from support.scheduler_driver import Place
from virtual_daemon import Daemon
from virtual_network import Direction, Mischief
from virtual_trainer import Trainer

from streamd.limits import DRAIN_S

if TYPE_CHECKING:
    from simulator import Simulation

_SOON_S: Final = 0.03
_INSTEAD: Final = ("a connection breaks", "a trainer is killed", "the daemon is killed")


class Mishaps:
    """Waits for each fault's place. `quiet_from_s` is when the last of them is over."""

    def __init__(self, simulation: Simulation) -> None:
        self.quiet_from_s = 0.0
        self.orphans: list[Trainer] = []  # dead ones with children that live on
        self._simulation, self._stage = simulation, simulation.stage
        self._rng, self._story = self._stage.rng, self._stage.story
        self._due = deque(simulation.scenario.faults)
        self._ways = self._all_ways()

    def reached(self, place: Place) -> None:
        """Somebody has taken a batch."""
        while self._due and place >= self._due[0].place:
            fault = self._due.popleft()
            self._stage.agenda.after(self._rng.random() * _SOON_S, self._happen, fault.kind)

    def _happen(self, kind: str) -> None:
        """This, or whatever is possible instead: every fault is one."""
        self._disturb(0.0)
        for other in (kind, *_INSTEAD, *FAULTS):
            if self._ways[other]():
                self._story.counts[other] += 1
                self._story.note("", "--- {}", other)
                return

    def _disturb(self, length_s: float) -> None:
        self.quiet_from_s = max(self.quiet_from_s, self._stage.agenda.now_s + length_s)

    def _all_ways(self) -> dict[str, Callable[[], bool]]:
        by_daemon: dict[str, Callable[[Daemon], bool]] = {
            "the daemon is stopped for a while": self._stop_daemon,
            "the daemon drains": self._drain,
            "a worker dies": lambda daemon: daemon.engine.kill_worker(),
            "a production fails": lambda daemon: daemon.engine.fail_production(),
            "the stream is served anew": self._change_stream,
            "a session is lost to the daemon alone": self._lose_session,
        }
        by_trainer: dict[str, Callable[[Trainer], bool]] = {
            "a trainer is killed": self._kill_trainer,
            "a trainer is stopped for a while": self._stop_trainer,
            "a trainer is stopped for ever": self._stop_for_ever,
            "a trainer is slow": self._slow_down,
            "a trainer forks": self._fork,
            "a trainer forks and is killed": self._fork_and_kill,
            "a trainer seeks back": self._seek,
            "a trainer leaves and comes back": self._leave,
            "a connection breaks": partial(self._cut, noticed=True),
            "a connection breaks unnoticed": partial(self._cut, noticed=False),
            "a partition": partial(self._part, ways=("up", "down")),
            "an old frame comes again": self._repeat,
            "frames are dropped": partial(self._mislead, how="dropped"),
            "frames are doubled": partial(self._mislead, how="doubled"),
            "frames are overtaken": partial(self._mislead, how="overtaken"),
        }
        return {
            "the daemon is killed": self._kill_daemon,
            "a sample is spoiled": self._spoil,
            "a one-way partition": self._part_one_way,
            **{kind: partial(self._to_daemon, way) for kind, way in by_daemon.items()},
            **{kind: partial(self._to_trainer, way) for kind, way in by_trainer.items()},
        }

    def _to_daemon(self, way: Callable[[Daemon], bool]) -> bool:
        """Does this to the daemon, if it is there and not stopped."""
        daemon = self._simulation.daemon
        return daemon is not None and not daemon.process.stopped and way(daemon)

    def _to_trainer(self, way: Callable[[Trainer], bool]) -> bool:
        """Does this to one of the trainers at work, if there is one."""
        simulation = self._simulation
        present = [simulation.trainers.get(seat.name) for seat in simulation.seats]
        victims = [each for each in present if each and not each.over and not each.process.stopped]
        return bool(victims) and way(self._rng.choice(victims))

    def _a_while_s(self, most_s: float) -> float:
        """Mostly short, now and then long."""
        return most_s * self._rng.random() ** 4

    # --- the daemon

    def _kill_daemon(self) -> bool:
        if self._simulation.daemon is None:
            return False
        self._simulation.end_daemon()
        self._start_later()
        return True

    def _start_later(self) -> None:
        away_s = 0.02 + self._a_while_s(5.0)
        self._disturb(away_s)
        self._stage.agenda.after(away_s, self._simulation.start_daemon)

    def _stop_daemon(self, daemon: Daemon) -> bool:
        while_s = self._a_while_s(12.0)
        self._disturb(while_s)
        daemon.process.stop()
        self._stage.agenda.after(while_s, daemon.process.go_on)
        return True

    def _drain(self, daemon: Daemon) -> bool:
        if daemon.draining:
            return False

        def end() -> None:
            if self._simulation.daemon is daemon:
                self._simulation.end_daemon()
                self._start_later()

        daemon.on_empty = lambda: self._stage.agenda.after(0.0, end)
        self._stage.agenda.after(DRAIN_S, end)
        self._disturb(DRAIN_S)
        daemon.drain()
        return True

    def _change_stream(self, daemon: Daemon) -> bool:
        if daemon.draining:
            return False
        daemon.change()
        return True

    def _spoil(self) -> bool:
        data = self._stage.data
        data.spoiled.add(self._rng.randrange(data.spec.samples))
        return True

    # --- trainers

    def _kill_trainer(self, victim: Trainer) -> bool:
        victim.kill()
        self._disturb(1.0)
        self._simulation.come_back(victim.seat)
        return True

    def _stop_trainer(self, victim: Trainer) -> bool:
        while_s = self._a_while_s(60.0)
        self._disturb(while_s)
        victim.process.stop()
        self._stage.agenda.after(while_s, victim.process.go_on)
        return True

    def _stop_for_ever(self, victim: Trainer) -> bool:
        simulation = self._simulation
        if len(simulation.lost) >= simulation.scenario.may_stop:
            return False
        if victim.may_hold_earlier_batches:  # for which the scenario leaves the others no room
            return False
        victim.process.stop()
        simulation.lost.add(victim.seat.name)
        return True

    def _slow_down(self, victim: Trainer) -> bool:
        victim.slowness = 2.0 + self._rng.random() * 20
        while_s = self._a_while_s(5.0)
        self._disturb(while_s)
        self._stage.agenda.after(while_s, setattr, victim, "slowness", 1.0)
        return True

    def _fork(self, victim: Trainer) -> bool:
        if not victim.held:
            return False
        victim.fork()
        if self._rng.random() < 0.5:
            self._stage.agenda.after(self._a_while_s(5.0), victim.end_children)
        return True

    def _fork_and_kill(self, victim: Trainer) -> bool:
        if not victim.held:
            return False
        victim.fork()
        return self._kill_trainer(victim)

    def _seek(self, victim: Trainer) -> bool:
        if not victim.seat.saves:
            return False
        victim.seek(self._rng.choice(victim.seat.saves))
        return True

    def _leave(self, victim: Trainer) -> bool:
        victim.leave()
        self._disturb(1.0)
        self._simulation.come_back(victim.seat)
        return True

    # --- the network

    def _cut(self, victim: Trainer, *, noticed: bool) -> bool:
        link = victim.io_thread.link
        if link is None or not link.identity:
            return False
        lifeline = victim.io_thread.lifeline
        if lifeline is not None and self._rng.random() < 0.3:
            lifeline.lag_s = self._a_while_s(10.0)  # the other side hears of it late
            self._disturb(lifeline.lag_s)
        self._stage.network.cut(link, noticed=noticed)
        return True

    def _lose_session(self, daemon: Daemon) -> bool:
        if not daemon.peers:
            return False
        peer = self._rng.choice(list(daemon.peers.values()))
        if peer.lifeline is not None and self._rng.random() < 0.5:
            peer.lifeline.lag_s = self._a_while_s(10.0)
            self._disturb(peer.lifeline.lag_s)
        daemon.parted(peer.session, None, "it cannot be reached")
        return True

    def _part_one_way(self) -> bool:
        way: Direction = self._rng.choice(("up", "down"))
        return self._to_trainer(partial(self._part, ways=[way]))

    def _part(self, victim: Trainer, ways: Sequence[Direction]) -> bool:
        while_s = 0.05 + self._a_while_s(15.0)
        self._disturb(while_s)
        for way in ways:
            self._stage.network.blocked_s[victim.seat.name, way] = self._stage.agenda.now_s + while_s
        return True

    def _repeat(self, victim: Trainer) -> bool:
        link = victim.io_thread.link
        return link is not None and self._stage.network.repeat(link, self._rng.choice(("up", "down")))

    def _mislead(self, victim: Trainer, how: Mischief) -> bool:
        way: Direction = self._rng.choice(("up", "down"))
        self._stage.network.mischief[victim.seat.name, way] = [how] * self._rng.randint(1, 3)
        return True
