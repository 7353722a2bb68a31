"""How long a trainer waits when the daemon is killed and started again, its samples being listed; and for what.

    python benchmarks/restart.py [--sizes 10000 100000 1000000] [--rounds 9] [--data FOLDER] [--results FILE.json]

Writes a table of each size that names the benchmarks' files over and over, and lists it once. Then rounds, each with
every size in turn, since a machine's speed drifts. Exit status 1 when a restart takes longer than was promised.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import growth
import make_data
import run
from report import Bound, Machine, Report, Row, Section, Series, Statistic, Table, finish

import streamd
from streamd.limits import BACKOFF_MAX_S

LIMIT_S: Final = 60.0
MOST_S: Final = 3.0  # from a daemon's command to the first batch of a trainer that waits, its samples being listed
MARKS: Final = ("manifest.reused", "daemon.ready", "session.began")  # what the log has of the ways between the parts


@dataclass(frozen=True, slots=True)
class Restart:
    """One start after a kill: seconds of each part, which come one after the other and are all that there is.

    `opened_s` until the daemon has imported its libraries and mapped the manifest, `ready_s` until its workers are up
    and it serves, `found_s` until the trainer has found it, `batch_s` until its loop has the first batch.
    """

    opened_s: float
    ready_s: float
    found_s: float
    batch_s: float

    @property
    def all_s(self) -> float:
        return self.opened_s + self.ready_s + self.found_s + self.batch_s


@dataclass(frozen=True, slots=True)
class Size:
    """A list of so many samples: its file, and a restart a round."""

    samples: int
    manifest_bytes: int
    restarts: tuple[Restart, ...]

    def series(self, *shown: Statistic) -> Series:
        """The whole of each restart."""
        return Series(tuple(each.all_s for each in self.restarts), ".2f", shown)


def split_restart(began_s: float, marks: Sequence[float], taken_s: float) -> Restart:
    """The parts between the command, what the log has and the batch."""
    return Restart(*(later - sooner for sooner, later in pairwise([began_s, *marks, taken_s])))


def measure_restart(table: growth.SampleTable) -> Restart:
    """A kill and the next start, under a trainer that reads on."""
    with (
        run.Daemon(table.home, table.settings) as daemon,
        streamd.connect(daemon.endpoint, timeout=LIMIT_S) as client,
        client.subscribe("train") as stream,
    ):
        batches = iter(stream)
        next(batches)
        daemon.kill()
        daemon.start()
        return take_first_batch(daemon, batches)


def take_first_batch(daemon: run.Daemon, batches: Iterator[object]) -> Restart:
    """Takes batches until one is this daemon's: others came before it served, and were in the trainer's hands."""
    while True:
        next(batches)
        taken_s, times = time.time(), daemon.event_times()
        if times.keys() >= set(MARKS):
            return split_restart(daemon.began_s, [times[mark] for mark in MARKS], taken_s)


def measure(home: Path, data: Path, sizes: Sequence[int], rounds: int) -> list[Size]:
    """Everything, in interleaved rounds."""
    tables = [growth.write_table(home / str(samples), data, samples) for samples in sizes]
    listings = [growth.list_samples(table) for table in tables]
    found: list[list[Restart]] = [[] for _ in tables]
    for number in range(1, rounds + 1):
        for several, table in zip(found, tables, strict=True):
            several.append(measure_restart(table))
        print(f"round {number}: {', '.join(f'{several[-1].all_s:.2f} s' for several in found)}")
    return [
        Size(samples, listing.manifest_bytes, tuple(several))
        for samples, listing, several in zip(sizes, listings, found, strict=True)
    ]


def build_report(machine: Machine, sizes: Sequence[Size]) -> Report:
    """A line a size, whose parts add up."""
    rows: list[Row] = [
        (
            f"{size.samples:,}",
            f"{size.manifest_bytes / 1e6:.1f}",
            *(Series(part, ".2f") for part in zip(*map(astuple, size.restarts), strict=True)),
            size.series("median", "worst"),
        )
        for size in sizes
    ]
    heads = ("samples", "list, MB", "opened", "serves", "found", "batch", "all", "worst")
    text = (
        "A trainer reads; the daemon is killed with -9 and started again, on samples that are listed. Seconds from the "
        "command to the trainer's next batch, and the parts that they are made of: until the libraries are imported "
        "and the list is mapped, until the workers are up and the daemon serves, until the trainer has found it, and "
        "until its loop has a batch, which is the first that was decoded. A trainer whose daemon has been away for "
        f"long tries again after {BACKOFF_MAX_S:g} s at most, which is added before the bound is judged."
    )
    longest_s = max(statistics.median(size.series().values) for size in sizes) + BACKOFF_MAX_S
    bound = Bound("Seconds to the next batch, with that pause", longest_s, "at most", MOST_S)
    rounds = f"{len(sizes[0].restarts)} interleaved rounds, medians."
    section = Section(text, Table(heads, tuple(rows)), bounds=(bound,))
    return Report("From a restart to the first batch", "python benchmarks/restart.py", machine, rounds, (section,))


def main() -> None:
    parser = run.build_parser("From a restart to the first batch.", "restart", rounds=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = parser.parse_args()
    make_data.make(options.data)
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder:
        sizes = measure(Path(folder), options.data, options.sizes, options.rounds)
    finish(build_report(run.machine(), sizes), options.results)


if __name__ == "__main__":
    main()
