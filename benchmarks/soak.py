"""Random faults for an hour, and nothing lost, nothing repeated, nothing that grows.

    scripts/bench soak [--minutes 60] [--seed N] [--between 20 60] [--results FOLDER]

One daemon, four trainers, one of which lasts from beginning to end; a fault every 20 to 60 seconds. In the middle third
no fault ends the daemon, so that what one daemon gathers over time shows. Every log is judged by the oracle of the
tests; a row every ten seconds goes to `soak.csv`; `soak.md` and `soak.png` say what came of it. Exit status 1 when
something was wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import run
import soak_results as results
from soak_results import Row, RowTable, most, slots_bytes, use_of
from soak_stage import FAULTS, MEMORY_BYTES, Fault, Stage

PACE_S: Final = 0.2
LOOK_S: Final = 2.0
ROW_S: Final = 10.0
CAST: Final = {"steady": 40.0, "keen": 60.0, "late": 8.0}  # batches a second
LASTING_RATE: Final = 20.0


class Soak:
    """The hour. Times are monotonic, in seconds."""

    def __init__(self, play: Stage, table: RowTable, minutes: float, between_s: tuple[float, float]) -> None:
        self._play = play
        self._table = table
        self._began_s = time.monotonic()
        self._length_s = minutes * 60
        self._between_s = between_s
        self._deck: list[Fault] = []
        self.happened: Counter[str] = Counter()
        self._lasting = play.join("lasting", LASTING_RATE, lasting=True)
        for kind, rate in CAST.items():
            play.join(kind, rate)

    def run(self) -> None:
        play = self._play
        for every_s, do in ((PACE_S, self._pace), (LOOK_S, play.look), (ROW_S, self._write_row)):
            self._repeat(every_s, do)
        self._strike()
        play.run_until(self._began_s + self._length_s)
        play.look()
        self._write_row()
        play.finish()

    def _repeat(self, every_s: float, do: Callable[[], None]) -> None:
        do()
        self._play.later(every_s, partial(self._repeat, every_s, do))

    @property
    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _pace(self) -> None:
        for each in self._play.watched:
            each.pace(PACE_S)

    def _strike(self) -> None:
        """The next fault, but for the first moment; then waits for a while."""
        if self._passed_s >= self._between_s[0]:
            fault = self._draw()
            print(f"{self._passed_s:7.1f} s  {fault.name}", flush=True)
            fault.do(self._play)
            self.happened[fault.name] += 1
        self._play.later(self._play.chance.uniform(*self._between_s), self._strike)

    def _draw(self) -> Fault:
        """Every fault comes once before any comes again."""
        calm = 1 / 3 <= self._passed_s / self._length_s < 2 / 3
        while True:
            if not self._deck:
                self._deck = self._play.chance.sample(FAULTS, len(FAULTS))
            fault = self._deck.pop()
            if not (calm and fault.ends_daemon):
                return fault

    def _write_row(self) -> None:
        play, rows, totals = self._play, self._table.rows, self._play.totals()
        daemon, lasting = use_of(play.daemon.pid), use_of(self._lasting.pid)
        workers = [use_of(pid) for pid in play.daemon.workers()]
        trainers = [use_of(each.pid) for each in play.watched]
        batches, time_s = (rows[-1].batches, rows[-1].time_s) if rows else (0, 0.0)
        self._table.add(
            Row(
                time_s=self._passed_s,
                life=play.life,
                daemon_age_s=time.monotonic() - play.served_since_s,
                daemon_bytes=daemon.memory,
                daemon_descriptors=daemon.descriptors,
                daemon_threads=daemon.threads,
                slots_bytes=slots_bytes(play.daemon.pid),
                accounted_bytes=play.status().memory_used_bytes,
                workers=len(workers),
                worker_bytes=most(use.memory for use in workers),
                worker_descriptors=most(use.descriptors for use in workers),
                trainers=len(trainers),
                trainer_bytes=lasting.memory,
                trainer_descriptors=lasting.descriptors,
                trainer_threads=lasting.threads,
                trainers_bytes=sum(use.memory or 0 for use in trainers),
                batches_per_s=(totals.batches - batches) / max(self._passed_s - time_s, 1e-3),
                batches=totals.batches,
                epochs=totals.epochs,
                faults=self.happened.total(),
            )
        )


def _epochs(minutes: float) -> int:
    """Of a trainer: so few that several come to their end, and no log grows beyond some megabytes."""
    return max(3, min(60, round(4 * minutes)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench soak", description="Random faults, and nothing lost or grown.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--between", type=float, nargs=2, default=(20.0, 60.0), metavar="S", help="seconds between faults"
    )
    parser.add_argument("--results", type=Path, default=run.HERE / "results")
    options = parser.parse_args()
    print(f"scripts/bench soak --minutes {options.minutes:g} --seed {options.seed}", flush=True)
    table = RowTable(options.results / "soak.csv")
    with (
        tempfile.TemporaryDirectory(prefix="streamd-soak-") as folder,
        Stage(Path(folder), random.Random(options.seed), _epochs(options.minutes)) as play,  # noqa: S311 - faults, not secrets
    ):
        soak = Soak(play, table, options.minutes, tuple(options.between))
        try:
            soak.run()
        except BaseException:
            print(play.daemon.log.read_text()[-4000:], file=sys.stderr)
            raise
        if play.problems:
            shutil.copy(play.daemon.log, options.results / "soak.log")
            print(f"the daemon's log: {options.results / 'soak.log'}", file=sys.stderr)
    outcome = results.Outcome(
        run.machine(),
        options.minutes,
        options.seed,
        dict(soak.happened),
        play.totals(),
        tuple(play.outstanding),
        tuple(results.fits(table.rows)),
        (*play.problems, *results.overdrawn(table.rows, MEMORY_BYTES)),
    )
    results.save(outcome, table.rows, options.results)
    print(results.render(outcome))
    sys.exit(0 if outcome.ok else 1)


if __name__ == "__main__":
    main()
