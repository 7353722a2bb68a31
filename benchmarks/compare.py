"""streamd beside the loaders that people use, on one machine, in interleaved rounds.

    python benchmarks/compare.py [--rounds 5] [--cores 2] [--peers a,b] [--sets s,l,decoded] [--trainers 1,2,4,8,16]

makes the data and each peer's environment, verifies that each gives the same samples, measures, and writes
results/compare.json (after every measurement), docs/benchmarks.md and the charts beside it.

    python benchmarks/compare.py --report-only      # the page and the charts anew, from the figures
    python benchmarks/compare.py --write-figures    # the marked figures in README.md and docs/*.md anew
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import compare_page
import compare_peers as peers
import make_data
import msgspec
import run
from compare_results import DEFAULT_RESULTS, Comparison, Settings, Taken, Terms, Verified, load, save, write_figures
from loader_process import CellFailedError, EnvironmentFailedError, Process, python_of, started

from streamd.errors import StreamdError

HERE: Final = Path(__file__).resolve().parent
DEFAULT_PAGE: Final = HERE.parent / "docs" / "benchmarks.md"
TYPICAL_LEVELS: Final = 3.0  # grey levels that decoders and ways to resize may differ by, in an image's mean
WORST_LEVELS: Final = 16.0
QUICK_IMAGES: Final = (200, 40)  # of the small and the large set
VERIFY_S: Final = 300.0
START_S: Final = 60.0  # imports, on top of the times that are measured
PREPARE_S: Final = 600.0

_Failed = (CellFailedError, EnvironmentFailedError, StreamdError)


# --- one measurement: starts a loader's trainers, lets them begin together, reads what they found


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how everything is measured."""

    data: Path
    terms: Terms


def command_of(bench: Bench, peer: peers.Peer, of: str, *options: object, workers: int | None = None) -> list[str]:
    """How a peer's file is started. Raises EnvironmentFailedError."""
    python, data = python_of(peer.environment), bench.data / peer.data_of(of)
    place = ["--data", data, "--store", bench.data / f"{peer.name}.{of}", "--workers", workers or bench.terms.cores]
    return [str(word) for word in (python, HERE / "peers" / f"{peer.module}.py", *place, *options)]


def prepare(bench: Bench, peer: peers.Peer, of: str) -> None:
    """Makes what a peer keeps on disk, once."""
    with started([command_of(bench, peer, of, "--role", "prepare")], PREPARE_S) as (process,):
        process.answer()


def free_port() -> int:
    """A port that nobody listens at; a peer may also use the nine after it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return min(int(probe.getsockname()[1]), 65_000)


@contextmanager
def served(bench: Bench, peer: peers.Peer, of: str, trainers: int, workers: int | None) -> Iterator[str]:
    """The address of what the trainers share: streamd's daemon, a peer's service, or none."""
    if peer.is_streamd:
        with run.serve_stream(peers.stream(peer, of, bench.data), workers or bench.terms.cores) as daemon:
            yield daemon.endpoint
    elif peer.shared:
        address = f"127.0.0.1:{free_port()}"
        options = ("--role", "serve", "--address", address, "--trainers", trainers)
        with started([command_of(bench, peer, of, *options, workers=workers)], VERIFY_S) as (service,):
            service.wait_for("serving")
            yield address
    else:
        yield ""


def verify(bench: Bench, peer: peers.Peer, of: str) -> dict[str, Any]:
    """What the peer says when it has taken one epoch, sample by sample."""
    with served(bench, peer, of, 1, None) as address:
        options = ("--address", address, "--verify", bench.data / peers.COLOURS[of])
        with started([command_of(bench, peer, of, *options)], VERIFY_S) as (process,):
            return process.answer()


def measure(bench: Bench, peer: peers.Peer, cell: peers.Cell) -> Taken:
    """All trainers of a cell, from a common start."""
    terms, count = bench.terms, cell.trainers
    times = ("--warm-s", terms.warm_s, "--settle-s", terms.settle_s, "--seconds", terms.seconds, "--trainers", count)
    limit_s = START_S + terms.warm_s + terms.settle_s + 2 * terms.seconds + 4.0 * count
    with served(bench, peer, cell.set, count, cell.workers) as address:
        commands = [
            command_of(bench, peer, cell.set, "--address", address, "--trainer", number, *times, workers=cell.workers)
            for number in range(count)
        ]
        with started(commands, limit_s) as processes:
            return _taken(processes)


def _taken(processes: Sequence[Process]) -> Taken:
    for process in processes:
        process.wait_for("ready")
    for process in processes:
        process.tell("go\n")
    answers = [process.answer() for process in processes]
    rates = {use: tuple(each[use]["samples"] / each[use]["seconds"] for each in answers) for use in ("touch", "copy")}
    return Taken(rates["touch"], rates["copy"], tuple(each["first_batch_s"] for each in answers))


def measure_limit(bench: Bench, cell: peers.Cell) -> Taken:
    """Bare decoding, or for decoded data bare copying."""
    if cell.set == "decoded":
        command = [sys.executable, str(HERE / "limit.py"), "--copy", "--seconds", str(bench.terms.seconds)]
    else:
        options = ["--processes", cell.workers or bench.terms.cores, "--row", peers.LIMIT_ROWS[cell.set]]
        command = [sys.executable, str(HERE / "limit.py"), str(bench.data / cell.set), *map(str, options)]
    with started([command], VERIFY_S) as (process,):
        return Taken((float(process.answer()["samples_per_s"]),))


# --- a run


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="streamd beside the loaders that people use.")
    parser.add_argument("--peers", type=words, help="their names, see compare_peers.py (default: all)")
    parser.add_argument("--sets", type=words, default=list(peers.SETS), help="of s, l, decoded (default: all)")
    parser.add_argument("--trainers", type=numbers, default=[1, 2, 4, 8, 16], help="at once (default: 1,2,4,8,16)")
    parser.add_argument("--sweep", type=numbers, default=list(peers.SWEEP), help="workers (default: 1,2,4)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--more", action="store_true", help="adds rounds to the results that are there")
    parser.add_argument("--cores", type=int, help="pins everything to so many (default: all there are)")
    parser.add_argument("--seconds", type=float, default=4.0, help="that each use of the batches is measured")
    parser.add_argument(
        "--quick", action="store_true", help="little data, little time: to try the command, not to quote"
    )
    parser.add_argument("--data", type=Path, default=make_data.DATA)
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS)
    parser.add_argument("--page", type=Path, default=DEFAULT_PAGE)
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--write-figures", action="store_true")
    options = parser.parse_args()
    for given, known in ((options.peers or [], {peer.name for peer in peers.PEERS}), (options.sets, peers.SETS)):
        if strange := sorted(set(given) - set(known)):
            parser.error(f"there is no {', '.join(strange)}; there are {', '.join(known)}")
    return options


def pin(cores: int | None) -> int:
    """Keeps this process and all that it starts on `cores` processor cores; returns how many there are."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores is not None:
        os.sched_setaffinity(0, allowed[:cores])
    return len(os.sched_getaffinity(0))


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def same_samples(seen: Verified, inexact: str) -> bool:
    """Whether an epoch was the set. A loader that says why it is inexact may miss and repeat, and nothing else."""
    exact = seen.missed == 0 and seen.repeated == 0
    return (exact or bool(inexact)) and seen.typical <= TYPICAL_LEVELS and seen.worst <= WORST_LEVELS


class Runner:
    """One run: what was found so far lies in `found` and on disk."""

    def __init__(self, bench: Bench, found: Comparison, results: Path) -> None:
        self._bench, self._results = bench, results
        self.found = found

    def verify_all(self, chosen: Sequence[peers.Peer], sets: Sequence[str]) -> None:
        for of in sets:
            for peer in chosen:
                if (of in peer.sets or of in peer.together) and f"{of}/{peer.name}" not in self.found.verified:
                    self._attempt(f"{of}/{peer.name}", partial(self._verify, peer, of))

    def _verify(self, peer: peers.Peer, of: str) -> str:
        prepare(self._bench, peer, of)
        answer = verify(self._bench, peer, of)
        settings = msgspec.convert(answer["settings"], Settings)
        seen = msgspec.convert(answer["verified"], Verified)
        self.found.settings[f"{of}/{peer.name}"] = settings
        self.found.verified[f"{of}/{peer.name}"] = seen
        if not same_samples(seen, settings.inexact):
            raise CellFailedError(
                f"not the same samples: {seen.missed} missed, {seen.repeated} repeated of {seen.of}, colours apart by "
                f"{seen.typical:.1f} (worst {seen.worst:.1f})"
            )
        return f"{seen.samples:,} of {seen.of:,} samples, colours within {seen.worst:.1f}"

    def take_round(self, cells: Sequence[peers.Cell], chosen: Sequence[peers.Peer]) -> None:
        self.found.rounds.append({})
        by_name = {peer.name: peer for peer in chosen}
        for cell in cells:
            if f"{cell.set}/{cell.peer}" not in self.found.failures:
                self._attempt(cell.key, partial(self._measure, cell, by_name))

    def _measure(self, cell: peers.Cell, by_name: dict[str, peers.Peer]) -> str:
        if cell.peer == peers.LIMIT:
            taken = measure_limit(self._bench, cell)
        else:
            taken = measure(self._bench, by_name[cell.peer], cell)
        self.found.rounds[-1][cell.key] = taken
        return f"{taken.each:,.0f} samples/s each"

    def _attempt(self, key: str, what: Callable[[], str]) -> None:
        """Does one thing, says how it went, and keeps what is known so far."""
        begin_s = time.monotonic()
        try:
            said = what()
            self.found.failures.pop(key, None)  # what failed in an earlier round has gone well now
        except _Failed as error:
            said = f"failed: {error}"
            if not any(key in each for each in self.found.rounds):
                self.found.failures[key] = str(error)
        print(
            f"{len(self.found.rounds) or 'verify':>6}  {key:32} {said}  ({time.monotonic() - begin_s:.0f} s)",
            flush=True,
        )
        save(self.found, self._results)


def begun(results: Path, terms: Terms) -> Comparison:
    """The comparison to go on with. Exits when it was begun by other code or on other terms."""
    found = load(results)
    if (found.machine.commit, found.terms) != (run.machine().commit, terms):
        sys.exit(f"compare: {results.name} is of commit {found.machine.commit} and of {found.terms}: leave out --more")
    return found


def compare(options: argparse.Namespace) -> Comparison:
    chosen = [peer for peer in peers.PEERS if options.peers is None or peer.name in options.peers]
    cores = pin(options.cores)
    terms = Terms(cores, processor(), options.seconds, settle_s=2.0, warm_s=6.0)
    if options.quick:
        make_data.make_all(options.data, *QUICK_IMAGES)
        terms = Terms(cores, processor(), seconds=0.2, settle_s=0.05, warm_s=0.2)
    else:
        make_data.make_all(options.data)
    found = begun(options.results, terms) if options.more else Comparison(run.machine(), terms)
    runner = Runner(Bench(options.data, terms), found, options.results)
    runner.verify_all(chosen, options.sets)
    cells = peers.cells(options.sets, chosen, options.trainers, options.sweep)
    for number in range(options.rounds):
        runner.take_round(peers.rotated(cells, number, options.rounds), chosen)
    return runner.found


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare: ended by a signal"))  # so that all it started ends, too
    if options.write_figures:
        write_figures()
        return
    found = load(options.results) if options.report_only else compare(options)
    options.page.parent.mkdir(parents=True, exist_ok=True)
    charts = compare_page.draw_all(found, options.page.parent)
    options.page.write_text(compare_page.render(found, charts))
    print(options.page)


if __name__ == "__main__":
    main()
