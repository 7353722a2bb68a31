"""Larger sets and more trainers: what a sample costs on disk and in memory, how long a start takes, the rates.

    python benchmarks/growth.py [--sizes 10000 1000000 10000000] [--trainers 1 2 4 8 16] [--rounds 5] [--results FILE]

Writes a table of each size that names the benchmarks' files over and over, and lists it once. Then rounds, each with
every size and every number of trainers in turn, since a machine's speed drifts: a daemon that knows its samples is
started, this process waits for its first batch, and trainers in processes of their own read for some seconds. Exit
status 1 when a figure misses what was promised.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import make_data
import msgspec
import processes
import reader
import run
from compare_page import GROWTH_TITLE
from report import Bound, Machine, Report, Row, Section, Series, Table, finish

import streamd

LISTING_INFO: Final = 20  # the level of logging, by Python's numbers
STARTS_S: Final = 60.0
SETTLE_S: Final = 1.0
WINDOW_S: Final = 4.0  # of a rate: long against a batch and a clock tick, short against the drift of a machine
BATCH: Final = 32  # as run.STREAM has it
MOST_BYTES: Final = 100.0  # a sample, in the manifest and in the memory of any process
MOST_START_S: Final = 3.0  # from the command of a daemon that knows its samples to a trainer's first batch
LEAST_OF_SMALLEST: Final = 0.90  # of the smallest set's rate; what is missing to 1 is the drift of a machine
MILLION: Final = 1_000_000
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Listing:
    """Making a manifest: seconds, processor seconds, the process's peak, lines of progress, the file."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    told: int
    manifest_bytes: int


@dataclass(frozen=True, slots=True)
class Take:
    """Some seconds of trainers reading: samples a second of each, processor microseconds.

    Those of the daemon and of all workers together are for each sample of the stream, those of a trainer for each
    sample that it took.
    """

    rates: tuple[float, ...]
    daemon_us: float
    workers_us: float
    trainer_us: float

    @property
    def each(self) -> float:
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one size: a start, then a single trainer, then the memory of all.

    `ready_s` is from the daemon's command, its samples being listed, to its word that it serves, `first_batch_s` to a
    first batch. `daemon`, `worker` and `trainer` are bytes of each one's own, `mapped` those of the manifest's pages
    that the worker has mapped, which all share; the worker is the one that has most.
    """

    ready_s: float
    first_batch_s: float
    take: Take
    daemon: int
    worker: int
    trainer: int
    mapped: int


@dataclass(frozen=True, slots=True)
class Size:
    """A table of so many rows, naming the same files over and over."""

    samples: int
    listing: Listing
    turns: tuple[Turn, ...]

    def median(self, figure: str) -> float:
        """Of a figure of its turns."""
        return float(statistics.median(getattr(turn, figure) for turn in self.turns))


@dataclass(frozen=True, slots=True)
class SampleTable:
    """A table of `samples` rows in a folder of its own, and the configuration that serves it."""

    home: Path
    samples: int
    settings: Mapping[str, Any]


def write_table(home: Path, data: Path, samples: int) -> SampleTable:
    """A CSV of file and class that goes round all files of `data` until it has so many rows."""
    home.mkdir()
    files = [file.relative_to(data).as_posix() for file in make_data.files(data)]
    lines = itertools.cycle([f"{file},{file.partition('/')[0]}\n" for file in files])
    with (home / "all.csv").open("w") as table:
        table.write("path,label\n")
        table.writelines(itertools.islice(lines, samples))
    source = {"kind": "table", "path": str(home / "all.csv"), "image": "path", "root": str(data.resolve())}
    return SampleTable(home, samples, run.build_settings({**run.STREAM, "source": source}))


def list_samples(table: SampleTable) -> Listing:
    """Lists a table as the daemon does, in a process of its own. Exits with what it said when it fails."""
    config, module = table.home / "config.yaml", "streamd.daemon.streams.listing_process"
    config.write_text(json.dumps(table.settings))
    command = [sys.executable, "-P", "-m", module, str(table.home), str(LISTING_INFO), "all"]
    with (table.home / "listing.log").open("wb") as log:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(str(config)))
            process.stdin.close()
        _, status, used = os.wait4(process.pid, 0)  # as no other call does, it tells the memory that this one used
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began_s
    said = (table.home / "listing.log").read_text()
    if process.returncode:
        sys.exit(f"growth: listing {table.samples} samples failed:\n{said}")
    manifest_bytes = sum(file.stat().st_size for file in table.home.glob("*.manifest"))
    told = said.count("manifest.listing")
    return Listing(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss << 10, told, manifest_bytes)


def take_first_batch(daemon: run.Daemon) -> tuple[float, float]:
    """Waits as a trainer does that was there first: seconds until the daemon serves, and until there is a batch."""
    with streamd.connect(daemon.endpoint, timeout=STARTS_S) as client, client.subscribe("train") as stream:
        next(iter(stream))
        taken_s = time.time()
    return daemon.wait_ready(), taken_s - daemon.began_s


def take(daemon: run.Daemon, trainers: reader.Readers) -> Take:
    """Lets trainers read: the rates of some seconds, and the processor time of all who run."""
    trainers.begin()
    time.sleep(SETTLE_S)
    workers = processes.children(daemon.pid)
    groups = ([daemon.pid], workers, [process.pid for process in trainers.processes])
    before_s = [processes.cpu_s(pids) for pids in groups]
    rates = tuple(rate * BATCH for rate in trainers.rates(WINDOW_S))
    daemon_s, workers_s, trainers_s = (
        processes.cpu_s(pids) - before for pids, before in zip(groups, before_s, strict=True)
    )
    of_all = sum(rates) * WINDOW_S
    of_stream = of_all / len(rates)
    return Take(rates, *(1e6 * each for each in (daemon_s / of_stream, workers_s / of_stream, trainers_s / of_all)))


def measure_turn(table: SampleTable) -> Turn:
    """A start, one trainer, and the memory of all after it."""
    with run.Daemon(table.home, table.settings) as daemon:
        starts_s = take_first_batch(daemon)
        with reader.Readers(daemon.endpoint, 1) as one:
            taken = take(daemon, one)
            own = {pid: processes.anonymous_bytes(pid) for pid in processes.children(daemon.pid)}
            worst = max(own, key=lambda pid: own[pid])
            daemon_bytes, trainer = (processes.anonymous_bytes(pid) for pid in (daemon.pid, one.processes[0].pid))
            return Turn(*starts_s, taken, daemon_bytes, own[worst], trainer, processes.mapped_bytes(worst, ".manifest"))


def measure_company(table: SampleTable, trainers: int) -> Take:
    """So many trainers at once."""
    with run.Daemon(table.home, table.settings) as daemon:
        daemon.wait_ready()
        with reader.Readers(daemon.endpoint, trainers) as several:
            return take(daemon, several)


def measure(
    home: Path, data: Path, sizes: Sequence[int], trainers: Sequence[int], rounds: int
) -> tuple[list[Size], dict[int, list[Take]]]:
    """Everything, in interleaved rounds, from the smallest size and company on: sizes, and takes by trainers."""
    tables = [write_table(home / str(samples), data, samples) for samples in sizes]
    listings = [list_samples(table) for table in tables]
    turns: list[list[Turn]] = [[] for _ in tables]
    takes: dict[int, list[Take]] = {count: [] for count in trainers}
    for number in range(1, rounds + 1):
        for several, table in zip(turns, tables, strict=True):
            several.append(measure_turn(table))
        for count, found in takes.items():
            found.append(measure_company(tables[0], count))
        starts = ", ".join(f"{each[-1].first_batch_s:.2f} s, {each[-1].take.each:,.0f}/s" for each in turns)
        print(f"round {number}: {starts}; trainers {', '.join(f'{each[-1].each:,.0f}/s' for each in takes.values())}")
    return [Size(*each) for each in zip(sizes, listings, map(tuple, turns), strict=True)], takes


# --- the page

CPU_HEADS: Final = ("daemon, µs", "workers, µs", "trainer, µs")


def compute_bytes_a_sample(size: Size, smallest: Size, process: str) -> float:
    """What a process has grown by since the smallest size, for each further sample."""
    return (size.median(process) - smallest.median(process)) / max(1, size.samples - smallest.samples)


def build_take_cells(takes: Sequence[Take], first: Sequence[Take]) -> tuple[Series, ...]:
    """Samples a second, the same by those of the first row, and processor microseconds of daemon, workers, trainer."""
    ratios = tuple(take.each / other.each for take, other in zip(takes, first, strict=True))
    parts = ((take.daemon_us, take.workers_us, take.trainer_us) for take in takes)
    cpu = (Series(values, ".1f") for values in zip(*parts, strict=True))
    return (Series(tuple(take.each for take in takes)), Series(ratios, ".2f"), *cpu)


def build_space_section(sizes: Sequence[Size]) -> Section:
    """What a sample costs in files and memory."""
    smallest, most_bytes = sizes[0], 0.0
    rows: list[Row] = []
    for size in sizes:
        manifest = size.listing.manifest_bytes / size.samples
        own = [max(0.0, compute_bytes_a_sample(size, smallest, each)) for each in ("daemon", "worker", "trainer")]
        mapped = Series(tuple(turn.mapped / size.samples for turn in size.turns), ".1f")
        grown = ["" if size is smallest else f"{each:.1f}" for each in own]
        rows.append((f"{size.samples:,}", f"{manifest:.1f}", *grown, mapped))
        most_bytes = max(most_bytes, manifest, *own)
    text = (
        "In the manifest, and in the memory that each process has of its own beyond what it has with the smallest set. "
        "The pages of the manifest that a worker has mapped are the system's own copy of the file, one for all, and go "
        "when memory is short."
    )
    heads = ("samples", "manifest", "daemon", "worker", "trainer", "pages mapped")
    bound = Bound("The most bytes a sample", most_bytes, "at most", MOST_BYTES, ".0f")
    return Section(text, Table(heads, tuple(rows)), "Bytes a sample", (bound,))


def build_listing_section(sizes: Sequence[Size]) -> Section:
    """What it costs to list the samples."""
    rows = tuple(
        (
            f"{size.samples:,}",
            f"{size.listing.seconds:.1f}",
            f"{size.listing.cpu_s:.1f}",
            f"{size.listing.peak_bytes / MIB:,.0f}",
            str(size.listing.told),
        )
        for size in sizes
    )
    return Section("", Table(("samples", "s", "processor s", "peak, MiB", "lines of progress"), rows), "Listing")


def build_start_section(sizes: Sequence[Size]) -> Section:
    """How long a daemon that knows its samples takes to serve."""
    rows = tuple(
        (
            f"{size.samples:,}",
            Series(tuple(turn.ready_s for turn in size.turns), ".2f"),
            Series(tuple(turn.first_batch_s for turn in size.turns), ".2f", ("median", "worst")),
        )
        for size in sizes
    )
    bounds = tuple(
        Bound(
            f"Seconds to a first batch of {size.samples:,} samples",
            size.median("first_batch_s"),
            "at most",
            MOST_START_S,
        )
        for size in sizes
        if size.samples <= MILLION
    )
    text = (
        "Seconds from the command of a daemon that knows its samples to its word that it serves, and to the first "
        "batch of a trainer that has waited for it."
    )
    return Section(text, Table(("samples", "serves", "first batch", "worst"), rows), "Start", bounds)


def build_size_section(sizes: Sequence[Size]) -> Section:
    """Whether a larger set is read as fast."""
    rows: list[Row] = []
    bounds: list[Bound] = []
    for size in sizes:
        takes = [turn.take for turn in size.turns]
        rate, of_smallest, *cpu = build_take_cells(takes, [turn.take for turn in sizes[0].turns])
        rows.append((f"{size.samples:,}", rate, of_smallest, *cpu))
        what = f"{size.samples:,} samples, of the smallest rate"
        bounds.append(Bound(what, statistics.median(of_smallest.values), "at least", LEAST_OF_SMALLEST))
    heads = ("samples", "samples/s", "of the smallest", *CPU_HEADS)
    text = "One trainer, samples/s, and processor time a sample."
    return Section(text, Table(heads, tuple(rows)), GROWTH_TITLE, tuple(bounds[1:]))


def build_company_section(companies: Mapping[int, Sequence[Take]], samples: int) -> Section:
    """What more trainers cost each of them."""
    rows: list[Row] = []
    for trainers, takes in companies.items():
        rate, of_one, *cpu = build_take_cells(takes, next(iter(companies.values())))
        rows.append((str(trainers), rate, of_one, Series(tuple(sum(take.rates) for take in takes)), *cpu))
    text = (
        f"All at once, {samples:,} samples. Processor time of daemon and workers is for each sample of the stream, "
        "that of a trainer for each sample that it took."
    )
    heads = ("trainers", "samples/s each", "of one", "all together", *CPU_HEADS)
    return Section(text, Table(heads, tuple(rows)), "Rate against trainers")


def build_report(
    machine: Machine, files: int, sizes: Sequence[Size], companies: Mapping[int, Sequence[Take]]
) -> Report:
    """Space, listing, starts, and rates against sizes and trainers."""
    text = (
        f"Tables of so many rows that name the same {files:,} JPEGs of 128x128 over and over; batches of 32. "
        f"{len(sizes[0].turns)} interleaved rounds, medians."
    )
    sections = (
        build_space_section(sizes),
        build_listing_section(sizes),
        build_start_section(sizes),
        build_size_section(sizes),
        build_company_section(companies, sizes[0].samples),
    )
    return Report("Growth: larger sets, more trainers", "python benchmarks/growth.py", machine, text, sections)


def main() -> None:
    parser = run.build_parser("Larger sets and more trainers.", "growth", rounds=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    options = parser.parse_args()
    make_data.make(options.data)
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder:
        sizes, companies = measure(Path(folder), options.data, options.sizes, options.trainers, options.rounds)
    report = build_report(run.machine(), len(make_data.files(options.data)), sizes, companies)
    finish(report, options.results)


if __name__ == "__main__":
    main()
