"""How long a trainer waits when the daemon is killed and started again, its samples being listed; and for what.

    python benchmarks/restart.py [--sizes 10000 100000 1000000] [--rounds 9] [--data FOLDER] [--results FILE.json]

Writes a table of each size that names the benchmarks' files over and over, and lists it once. Then rounds, each with
every size in turn, since a machine's speed drifts. Exit status 1 when a restart takes longer than was promised.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import growth
import make_data
import run
from restart_page import PAGE, Restart, Restarts, Size, render

import streamd

LIMIT_S: Final = 60.0
MARKS: Final = ("manifest.reused", "daemon.ready", "session.began")  # what the log has of the ways between the parts


class Killed:
    """A daemon of a table, for one life."""

    def __init__(self, table: growth.Table) -> None:
        command = [str(run.STREAMD), "serve", "--log-json", "--config", str(table.config)]
        environment = {**os.environ, "STATE_DIRECTORY": str(table.home), "RUNTIME_DIRECTORY": str(table.home)}
        self.log = table.home / "log"
        with self.log.open("wb") as log:
            self.began_s = time.time()  # the log's clock
            self._process = subprocess.Popen(command, stderr=log, env=environment)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def marks_of(log: str) -> list[float]:
    """When each of the MARKS came that have come, in seconds of the wall clock; the last line may not be whole yet."""
    said: list[dict[str, Any]] = [json.loads(line) for line in log.rpartition("\n")[0].splitlines()]
    times = {each["event"]: datetime.fromisoformat(each["time"]).timestamp() for each in reversed(said)}
    return [times[mark] for mark in MARKS if mark in times]


def parts(began_s: float, marks: Sequence[float], taken_s: float) -> Restart:
    """The parts between the command, what the log has and the batch."""
    return Restart(*(later - sooner for sooner, later in pairwise([began_s, *marks, taken_s])))


def restarts(table: growth.Table, rounds: int) -> Iterator[Restart]:
    """One after the other, of a trainer that reads on."""
    daemon = Killed(table)
    try:
        with streamd.connect(table.endpoint, timeout=LIMIT_S) as client, client.subscribe("train") as stream:
            batches = iter(stream)
            next(batches)
            for _ in range(rounds):
                daemon.kill()
                daemon = Killed(table)
                yield first_batch(daemon, batches)
    finally:
        daemon.kill()


def first_batch(daemon: Killed, batches: Iterator[object]) -> Restart:
    """Takes batches until one is this daemon's: others came before it served, and were in the trainer's hands."""
    while True:
        next(batches)
        taken_s, marks = time.time(), marks_of(daemon.log.read_text())
        if len(marks) == len(MARKS):
            return parts(daemon.began_s, marks, taken_s)


def measure(home: Path, data: Path, sizes: Sequence[int], rounds: int) -> Restarts:
    """Everything, in interleaved rounds."""
    tables = [growth.write_table(home / str(samples), data, samples) for samples in sizes]
    listings = [growth.list_samples(table) for table in tables]
    found: list[list[Restart]] = [[] for _ in tables]
    for number in range(1, rounds + 1):
        for several, table in zip(found, tables, strict=True):
            several.extend(restarts(table, 1))
        print(f"round {number}: {', '.join(f'{several[-1].all_s:.2f} s' for several in found)}")
    return Restarts(
        run.machine(),
        tuple(
            Size(samples, listing.manifest_bytes, tuple(several))
            for samples, listing, several in zip(sizes, listings, found, strict=True)
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="From a restart to the first batch.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--data", type=Path, default=make_data.DEFAULT_FOLDER)
    parser.add_argument("--results", type=Path, default=PAGE.results)
    options = parser.parse_args()
    make_data.make(options.data)
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder:
        found = measure(Path(folder), options.data, options.sizes, options.rounds)
    PAGE.save(found, options.results)
    print(render(found))
    sys.exit(0 if found.holds() else 1)


if __name__ == "__main__":
    main()
