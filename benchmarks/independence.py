"""What the death of one costs the others: trainers beside a stopped one, and the pause when the daemon is killed.

    python benchmarks/independence.py [--rounds 30] [--kills 20] [--seed 0] [--data FOLDER] [--results FILE.json]

One daemon is killed with -9 again and again while three trainers read. Then rounds: each takes the rate of three
trainers three times, alone, beside a fourth that was stopped before it took a batch, and beside a fourth that was
stopped while it read in step with them. Exit status 1 when a figure misses what was promised.
"""

from __future__ import annotations

import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import make_data
import processes
import reader
import run
from report import Bound, Machine, Report, Section, Series, Statistic, Table, finish

import streamd
from streamd.core.status import SessionStatus

TRAINERS: Final = 3
STARTS_S: Final = 60.0
ASK_AGAIN_S: Final = 0.02
SETTLE_S: Final = 1.0  # after a trainer has come and gone: what it costs for ever counts, not its coming
WINDOW_S: Final = 2.0  # of a rate: long against a batch, short against the drift of a machine
BETWEEN_KILLS: Final = (50, 400)  # batches that every trainer takes, at least, before the next kill
TITLES: Final = ("A trainer that is stopped for ever", "The pause when the daemon is killed")
LEAST_OF_ALONE: Final = 0.95  # a stopped trainer may cost the others less than 5 %
MOST_BEYOND_S: Final = 2.0  # the pause after a kill, less the daemon's start


@dataclass(frozen=True, slots=True)
class Take:
    """Batches a second, an entry a running trainer; processor milliseconds for each batch that one of them got.

    The processor time is the daemon's, its workers' and the running trainers'.
    """

    rates: tuple[float, ...]
    cpu_ms: float

    @property
    def each(self) -> float:
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True)
class Round:
    """Three trainers alone, beside one stopped before its first batch, beside one stopped in step with them."""

    alone: Take
    fresh: Take
    in_step: Take

    @property
    def of_fresh(self) -> float:
        return self.fresh.each / self.alone.each

    @property
    def of_in_step(self) -> float:
        return self.in_step.each / self.alone.each


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill -9. `pauses_s` is from the kill to each trainer's first batch from the next daemon.

    `startup_s` is from the start of that daemon's command to its word that it serves.
    """

    startup_s: float
    pauses_s: tuple[float, ...]

    @property
    def beyond_s(self) -> tuple[float, ...]:
        """The pauses less the start-up."""
        return tuple(pause_s - self.startup_s for pause_s in self.pauses_s)


@contextmanager
def _stopped_fourth(endpoint: str, start: Literal["begin", "live"] | None) -> Iterator[None]:
    """Beside the three a fourth, stopped before its first batch or in step with them (`live`); of None, nobody."""
    if start is None:
        _wait_for_sessions(endpoint, lambda sessions: len(sessions) == TRAINERS)  # the one before has gone
        yield
        return
    with reader.Readers(endpoint, 1, start) as fourth:
        if start == "live":
            fourth.begin()
            fourth.wait_each(lambda word: word.batches >= 4 * reader.EVERY)
        else:
            _wait_for_sessions(endpoint, _newest_holds_all)
        fourth.processes[0].send_signal(signal.SIGSTOP)
        _wait_for_sessions(endpoint, _newest_holds_all)
        yield


def _newest_holds_all(sessions: Sequence[SessionStatus]) -> bool:
    newest = max(sessions, key=lambda each: each.session)
    return len(sessions) == TRAINERS + 1 and newest.held == newest.credit


def _wait_for_sessions(endpoint: str, condition: Callable[[Sequence[SessionStatus]], bool]) -> None:
    """Asks the daemon until its sessions are so. Exits when they do not come to it."""
    deadline_s = time.monotonic() + STARTS_S
    with streamd.connect(endpoint) as client:
        while not condition(sessions := client.status().sessions):
            if time.monotonic() > deadline_s:
                sys.exit(f"independence: after {STARTS_S:g} s the sessions are still {sessions}")
            time.sleep(ASK_AGAIN_S)


def _take(three: reader.Readers, serving: run.Daemon) -> Take:
    """The rates of some seconds, and the processor time of all who run, for each batch that a trainer got."""
    time.sleep(SETTLE_S)
    pids = [*serving.pids(), *(process.pid for process in three.processes)]
    before_s = processes.cpu_s(pids)
    rates = three.rates(WINDOW_S)
    return Take(rates, 1000 * (processes.cpu_s(pids) - before_s) / (sum(rates) * WINDOW_S))


def measure_round(three: reader.Readers, serving: run.Daemon, number: int) -> Round:
    """The same trainers three times; which case is first changes with the round, since a machine's speed drifts."""
    cases: tuple[Literal["begin", "live"] | None, ...] = (None, "begin", "live")
    takes: dict[int, Take] = {}
    for place in range(len(cases)):
        case = (number + place) % len(cases)
        with _stopped_fourth(serving.endpoint, cases[case]):
            takes[case] = _take(three, serving)
    return Round(alone=takes[0], fresh=takes[1], in_step=takes[2])


def measure_cost(data: Path, rounds: int) -> tuple[Round, ...]:
    """One daemon, three trainers that read all the time, and a fourth that comes, is stopped, and is killed."""
    found: list[Round] = []
    with run.serve_stream(run.folder_stream(data)) as serving, reader.Readers(serving.endpoint, TRAINERS) as three:
        three.begin()
        for number in range(rounds):
            found.append(measure_round(three, serving, number))
            last = found[-1]
            print(f"round {number + 1}: beside a stopped one {last.of_fresh:.3f}, {last.of_in_step:.3f} of the rate")
    return tuple(found)


def measure_kills(data: Path, kills: int, seed: int) -> tuple[Kill, ...]:
    """Kills a daemon while three trainers read, each time when all have read some while since the last time."""
    chance = random.Random(seed)  # noqa: S311 - moments of kills, not secrets
    found: list[Kill] = []
    with run.serve_stream(run.folder_stream(data)) as daemon, reader.Readers(daemon.endpoint, TRAINERS) as three:
        three.begin()
        taken = three.wait_each(lambda word: word.reconnects == 0)
        for number in range(1, kills + 1):
            due = [word.batches + chance.randint(*BETWEEN_KILLS) for word in taken]
            three.wait_each(lambda word: word.batches >= due[word.reader])  # noqa: B023 - called before the next turn
            killed_s = time.monotonic()
            daemon.kill()
            daemon.start()
            startup_s = daemon.wait_ready()
            taken = three.wait_each(lambda word: word.reconnects == number)  # noqa: B023 - as above
            found.append(Kill(startup_s, tuple(word.at_ns / 1e9 - killed_s for word in taken)))
            print(f"kill {number}: worst pause {max(found[-1].beyond_s):.2f} s beyond a start of {startup_s:.2f} s")
    return tuple(found)


def build_stopped_section(rounds: Sequence[Round]) -> Section:
    """The rates beside a stopped trainer, and what a batch costs meanwhile."""
    fresh, in_step = "stopped before its first batch / nobody stopped", "stopped in step / nobody stopped"
    figures: list[tuple[str, str, Callable[[Round], float]]] = [
        ("three trainers, batches a second each", ",.0f", lambda each: each.alone.each),
        ("beside one stopped before its first batch", ",.0f", lambda each: each.fresh.each),
        ("beside one stopped in step with them", ",.0f", lambda each: each.in_step.each),
        (fresh, ".3f", lambda each: each.of_fresh),
        (in_step, ".3f", lambda each: each.of_in_step),
        ("processor ms a batch, nobody stopped", ".2f", lambda each: each.alone.cpu_ms),
        (fresh, ".3f", lambda each: each.fresh.cpu_ms / each.alone.cpu_ms),
        (in_step, ".3f", lambda each: each.in_step.cpu_ms / each.alone.cpu_ms),
    ]
    shown: tuple[Statistic, ...] = ("median", "lower quarter", "upper quarter")
    rows = tuple((name, Series(tuple(map(figure, rounds)), form, shown)) for name, form, figure in figures)
    text = (
        f"{len(rounds)} interleaved rounds; the stopped one holds all its credit meanwhile. The median of the rounds' "
        "ratios counts. Where others use the machine, rates scatter, and the processor time that daemon, workers and "
        "trainers use for a batch says it better."
    )
    bounds = tuple(
        Bound(f"Of the rate alone, {name}", statistics.median(map(figure, rounds)), "at least", LEAST_OF_ALONE)
        for name, figure in (("fresh", figures[3][2]), ("in step", figures[4][2]))
    )
    table = Table(("", "median", "a quarter is below", "a quarter is above"), rows)
    return Section(text, table, TITLES[0], bounds)


def build_killed_section(kills: Sequence[Kill], seed: int) -> Section:
    """The pauses of trainers whose daemon is killed."""
    pauses_s = [pause_s for kill in kills for pause_s in kill.pauses_s]
    beyond_s = [beyond_s for kill in kills for beyond_s in kill.beyond_s]
    shown: tuple[Statistic, ...] = ("median", "nine tenths", "worst")
    rows = (
        ("start of the daemon", Series(tuple(kill.startup_s for kill in kills), ".2f", shown)),
        ("pause of each trainer", Series(tuple(pauses_s), ".2f", shown)),
        ("pause less start", Series(tuple(beyond_s), ".2f", shown)),
    )
    text = (
        f"{len(kills)} times kill -9 while {len(kills[0].pauses_s)} trainers read as fast as they can, and the same "
        f"command at once (seed {seed}). The pause is from the kill to a trainer's first batch from the next daemon; "
        "that daemon's start is from the command to its word that it serves."
    )
    bound = Bound("The worst pause less start, in seconds", max(beyond_s), "at most", MOST_BEYOND_S)
    table = Table(("seconds", "median", "nine of ten", "worst"), rows)
    return Section(text, table, TITLES[1], (bound,))


def build_report(machine: Machine, seed: int, rounds: Sequence[Round], kills: Sequence[Kill]) -> Report:
    """Both parts of the page."""
    title, command = "Independence: what the death of one costs the others", "python benchmarks/independence.py"
    sections = (build_stopped_section(rounds), build_killed_section(kills, seed))
    return Report(title, command, machine, "20,000 JPEGs of 128x128, batches of 32.", sections)


def main() -> None:
    parser = run.build_parser("What the death of one costs the others.", "independence", rounds=30)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make_data.make(options.data)
    kills = measure_kills(options.data, options.kills, options.seed)
    rounds = measure_cost(options.data, options.rounds)
    finish(build_report(run.machine(), options.seed, rounds, kills), options.results)


if __name__ == "__main__":
    main()
