"""Larger sets and more trainers: what a sample costs on disk and in memory, how long a start takes, the rates.

    python benchmarks/growth.py [--sizes 10000 1000000 10000000] [--trainers 1 2 4 8 16] [--rounds 5] [--results FILE]

Writes a table of each size that names the benchmarks' files over and over, and lists it once. Then rounds, each with
every size and every number of trainers in turn, since a machine's speed drifts: a daemon that knows its samples is
started, this process waits for its first batch, and trainers in processes of their own read for some seconds. Exit
status 1 when a figure misses what was promised.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import growth_page as page
import make_data
import msgspec
import processes
import reader
import run

import streamd

LISTING_INFO: Final = 20  # the level of logging, by Python's numbers
STARTS_S: Final = 60.0
SETTLE_S: Final = 1.0
WINDOW_S: Final = 4.0  # of a rate: long against a batch and a clock tick, short against the drift of a machine
BATCH: Final = 32  # as CONFIG has it

CONFIG: Final = """\
listen: {endpoint}
memory: {memory}MiB
streams:
  train:
    source: {{kind: table, path: {table}, image: path, root: {data}}}
    labels: {{label: category}}
    image: {{size: [128, 128]}}
    batch_size: 32
    shuffle: {{kind: full, seed: 0}}
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of `samples` rows in a folder of its own, with the configuration that serves it and its state."""

    home: Path
    samples: int

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.home}/streamd.sock"

    @property
    def config(self) -> Path:
        return self.home / "config.yaml"


def write_table(home: Path, data: Path, samples: int) -> Table:
    """A CSV of file and class that goes round all files of `data` until it has so many rows."""
    home.mkdir()
    files = [file.relative_to(data).as_posix() for file in make_data.files(data)]
    lines = itertools.cycle([f"{file},{file.partition('/')[0]}\n" for file in files])
    with (home / "all.csv").open("w") as table:
        table.write("path,label\n")
        table.writelines(itertools.islice(lines, samples))
    made = Table(home, samples)
    settings = {"memory": run.MEMORY_BYTES >> 20, "table": home / "all.csv", "data": data.resolve()}
    made.config.write_text(CONFIG.format(endpoint=made.endpoint, **settings))
    return made


def list_samples(table: Table) -> page.Listing:
    """Lists a table as the daemon does, in a process of its own. Exits with what it said when it fails."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "streamd.daemon.streams.listing_process",
        str(table.home),
        str(LISTING_INFO),
        "all",
    ]
    with (table.home / "listing.log").open("wb") as log:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(str(table.config)))
            process.stdin.close()
        _, status, used = os.wait4(process.pid, 0)  # as no other call does, it tells the memory that this one used
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began_s
    said = (table.home / "listing.log").read_text()
    if process.returncode:
        sys.exit(f"growth: listing {table.samples} samples failed:\n{said}")
    manifest_bytes = sum(file.stat().st_size for file in table.home.glob("*.manifest"))
    told = said.count("manifest.listing")
    return page.Listing(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss << 10, told, manifest_bytes)


class Serving:
    """`streamd serve` of a table that is listed. `ready_s` is when it said that it serves, in monotonic seconds."""

    def __init__(self, table: Table) -> None:
        command = [str(run.STREAMD), "serve", "--config", str(table.config)]
        environment = {**os.environ, "STATE_DIRECTORY": str(table.home), "RUNTIME_DIRECTORY": str(table.home)}
        self.endpoint = table.endpoint
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
        self.ready_s = 0.0
        self._ready = threading.Event()
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        """Takes the moment of the word, and the rest of the log, since a full pipe would hold the daemon up."""
        for line in self.process.stderr or ():
            if b"daemon.ready" in line:
                self.ready_s = time.monotonic()
                self._ready.set()
            elif b" I " not in line:
                sys.stderr.buffer.write(line)

    def first_batch(self) -> page.Start:
        """Waits for a first batch, as a trainer does that was there before the daemon."""
        with streamd.connect(self.endpoint, timeout=STARTS_S) as client, client.subscribe("train") as stream:
            next(iter(stream))
            taken_s = time.monotonic()
        self._ready.wait(STARTS_S)
        return page.Start(self.ready_s - self.began_s, taken_s - self.began_s)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(run.STOP_S)
        self._listening.join()
        if self.process.stderr is not None:
            self.process.stderr.close()


@contextmanager
def serving(table: Table) -> Iterator[Serving]:
    daemon = Serving(table)
    try:
        yield daemon
    finally:
        daemon.end()


def take(daemon: Serving, trainers: reader.Readers) -> page.Take:
    """The rates of some seconds, and the processor time of all who run."""
    workers = processes.children(daemon.process.pid)
    groups = ([daemon.process.pid], workers, [process.pid for process in trainers.processes])
    before_s = [processes.cpu_s(pids) for pids in groups]
    rates = tuple(rate * BATCH for rate in trainers.rates(WINDOW_S))
    daemon_s, workers_s, trainers_s = (
        processes.cpu_s(pids) - before for pids, before in zip(groups, before_s, strict=True)
    )
    of_all = sum(rates) * WINDOW_S
    of_stream = of_all / len(rates)
    return page.Take(
        rates, *(1e6 * each for each in (daemon_s / of_stream, workers_s / of_stream, trainers_s / of_all))
    )


def measure_turn(table: Table) -> page.Turn:
    """A start, one trainer, and the memory of all after it."""
    with serving(table) as daemon:
        start = daemon.first_batch()
        with reader.readers(daemon.endpoint, 1) as one:
            one.begin()
            time.sleep(SETTLE_S)
            taken = take(daemon, one)
            workers = [_memory(pid) for pid in processes.children(daemon.process.pid)]
            worst = max(workers, key=lambda worker: worker.anonymous)
            trainer = _memory(one.processes[0].pid)
            return page.Turn(start, taken, _memory(daemon.process.pid), worst, trainer)


def _memory(pid: int) -> page.Memory:
    return page.Memory(processes.anonymous_bytes(pid), processes.mapped_bytes(pid, ".manifest"))


def measure_company(table: Table, trainers: int) -> page.Take:
    with serving(table) as daemon, reader.readers(daemon.endpoint, trainers) as several:
        several.begin()
        time.sleep(SETTLE_S)
        return take(daemon, several)


def measure(home: Path, data: Path, sizes: Sequence[int], trainers: Sequence[int], rounds: int) -> page.Growth:
    """Everything, in interleaved rounds."""
    tables = [write_table(home / str(samples), data, samples) for samples in sizes]
    listings = [list_samples(table) for table in tables]
    turns: list[list[page.Turn]] = [[] for _ in tables]
    takes: list[list[page.Take]] = [[] for _ in trainers]
    for number in range(1, rounds + 1):
        for several, table in zip(turns, tables, strict=True):
            several.append(measure_turn(table))
        for found, count in zip(takes, trainers, strict=True):
            found.append(measure_company(tables[0], count))
        starts = ", ".join(f"{each[-1].start.first_batch_s:.2f} s, {each[-1].take.each:,.0f}/s" for each in turns)
        print(f"round {number}: {starts}; trainers {', '.join(f'{found[-1].each:,.0f}/s' for found in takes)}")
    return page.Growth(
        run.machine(),
        len(make_data.files(data)),
        tuple(page.Size(*each) for each in zip(sizes, listings, map(tuple, turns), strict=True)),
        tuple(page.Company(*each) for each in zip(trainers, map(tuple, takes), strict=True)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Larger sets and more trainers.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=make_data.DEFAULT_FOLDER)
    parser.add_argument("--results", type=Path, default=page.PAGE.results)
    options = parser.parse_args()
    make_data.make(options.data)
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder:
        found = measure(Path(folder), options.data, options.sizes, options.trainers, options.rounds)
    page.PAGE.save(found, options.results)
    print(page.render(found))
    sys.exit(1 if found.misses() else 0)


if __name__ == "__main__":
    main()
