"""What a gate costs: processor time of all processes for a trainer behind a gate, and for one of the daemon's own user.

    python benchmarks/gates.py [--rounds 9] [--batches 250] [--results FILE]

needs root, since the second trainer runs as another user. Two trainers, each with a stream of its own over the same
JPEGs of 128x128, take turns: one reads so many batches while the other waits, then the other. What is counted is the
processor time of the daemon, its workers, the gate and the trainer. The page is results/gates.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import run
from processes import children, cpu_ns
from report import RESULTS, Bound, Machine, Report, Section, Table, finish

from monitoring import write_pictures

_OTHER_USER: Final = 61002
_BATCH: Final = 32
_LEAST: Final = 0.95  # of the rate by processor time without a gate
_NS: Final = 1e9
_STREAMS: Final = ("own", "other")


@dataclass(frozen=True, slots=True)
class Round:
    """Processor seconds of all processes for the same number of batches: without a gate, and through one."""

    own_s: float
    gated_s: float

    @property
    def ratio(self) -> float:
        """The rate behind the gate, as a part of the rate without it."""
        return self.own_s / self.gated_s


def build_report(machine: Machine, batches: int, rounds: list[Round]) -> Report:
    """One line for each kind of trainer, and the median of the ratios of the rounds."""
    per_batch = 1000 / batches
    rows = tuple(
        (name, f"{per_batch * statistics.median(taken):.2f}", f"{per_batch * min(taken):.2f}")
        for name, taken in (
            ("a trainer of the daemon's own user", [each.own_s for each in rounds]),
            ("a trainer of another user, behind its gate", [each.gated_s for each in rounds]),
        )
    )
    ratio = statistics.median(each.ratio for each in rounds)
    text = (
        f"Two trainers in turns, {batches} batches of {_BATCH} JPEGs of 128x128 each, {len(rounds)} rounds. Processor "
        "time of the daemon, its workers, the gate and the trainer together."
    )
    bound = Bound("Rate behind a gate, by processor time, as a part of the rate without one", ratio, "at least", _LEAST)
    table = Table(("what", "ms of processor a batch, median", "least"), rows)
    command = "python benchmarks/gates.py"
    return Report(
        "What a gate costs", command, machine, "Its docstring says how.", (Section(text, table, bounds=(bound,)),)
    )


class Trainer:
    """A trainer in a process of its own, which reads so many batches when it is told to."""

    def __init__(self, endpoint: str, stream: str, user: int) -> None:
        command = [sys.executable, __file__, "--trainer", endpoint, stream, str(user)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self._wait_for_line()

    def read_batches(self, count: int) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        self._wait_for_line()

    def _wait_for_line(self) -> None:
        if self._process.stdout is None or not self._process.stdout.readline():
            sys.exit(f"gates: trainer {self.pid} has ended; its message is above")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def run_trainer(endpoint: str, stream: str, user: int) -> None:
    """Reads as many batches as each line of standard input says, as `user`."""
    # What is imported late lies perhaps where this user cannot read.
    import streamd.client.client  # noqa: PLC0415 - only in this process
    import streamd.client.stream  # noqa: PLC0415 - as above

    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    with streamd.connect(endpoint) as client, client.subscribe(stream, epochs=None) as batches:
        every = iter(batches)
        next(every)
        print("ready", flush=True)
        for line in sys.stdin:
            for _ in range(int(line)):
                next(every)
            print("done", flush=True)


@contextmanager
def _start_daemon(home: Path) -> Iterator[run.Daemon]:
    write_pictures(home / "data" / "all")
    streams = {
        name: {"source": {"kind": "folder", "path": str(home / "data")}, "image": {"size": [128, 128]}}
        for name in _STREAMS
    }
    with run.Daemon(home, {"streams": streams}) as daemon:
        daemon.wait_ready()
        home.chmod(0o711)
        (home / "streamd.sock").chmod(0o666)  # whatever group the other user has
        yield daemon


def measure(rounds: int, batches: int) -> list[Round]:
    """Reads in turns, and returns what each round took."""
    with tempfile.TemporaryDirectory(prefix="sd") as place, _start_daemon(Path(place)) as daemon:
        users = dict(zip(_STREAMS, (os.geteuid(), _OTHER_USER), strict=True))
        trainers = {name: Trainer(daemon.endpoint, name, user) for name, user in users.items()}
        try:
            taken = []
            for number in range(rounds + 1):
                order = _STREAMS if number % 2 else _STREAMS[::-1]
                spent_s = {name: _measure_one(daemon.pid, trainers[name], batches) for name in order}
                taken.append(Round(spent_s["own"], spent_s["other"]))
        finally:
            for each in trainers.values():
                each.stop()
    return taken[1:]  # the first warms the page cache


def _measure_one(daemon: int, trainer: Trainer, batches: int) -> float:
    pids = [daemon, *children(daemon), trainer.pid]
    before_ns = cpu_ns(pids)
    trainer.read_batches(batches)
    return (cpu_ns(pids) - before_ns) / _NS


def main() -> None:
    if sys.argv[1:2] == ["--trainer"]:
        run_trainer(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description="What a gate costs, in processor time.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=250)
    parser.add_argument("--results", type=Path, default=RESULTS / "gates.json")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("gates: run this as root, since one of its trainers runs as another user")
    finish(build_report(run.machine(), options.batches, measure(options.rounds, options.batches)), options.results)


if __name__ == "__main__":
    main()
