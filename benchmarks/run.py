"""Measures the spine: read, decode, batch, share. Rounds of limit, one trainer, four trainers; then the upkeep.

    python benchmarks/run.py [--rounds 5] [--data FOLDER] [--results FILE.json]

A machine's speed drifts, so each round takes every measurement once and ratios are taken within a round. Every rate of
streamd comes from a daemon of its own, freshly started, and covers the first epoch and the second. The processor time
of a batch covers two more epochs of one trainer, after one that does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import make_data
import processes
from report import RESULTS, Machine, Report, Section, Table, finish, tabulate_rounds

import streamd

HERE: Final = Path(__file__).resolve().parent
STREAMD: Final = Path(sys.executable).with_name("streamd")
MEMORY_BYTES: Final = 256 << 20
TRAINERS: Final = 4
EPOCHS: Final = 2
LOADED_AFTER_S: Final = 4.0  # by then four trainers are well into their first epoch
LOAD_EPOCHS: Final = 1000  # more than they reach by then
SETTLE_S: Final = 2.0  # after the last trainer has gone
IDLE_S: Final = 5.0
STOP_S: Final = 20.0
READY_S: Final = 60.0
COMMAND_S: Final = 300.0
MIB: Final = 1 << 20

STREAM: Final = {
    "labels": {"label": "category"},
    "image": {"size": [128, 128]},
    "batch_size": 32,
    "shuffle": {"kind": "full", "seed": 0},
}


@dataclass(frozen=True, slots=True)
class Round:
    """One interleaved round, in samples a second. `four` has one entry a trainer.

    `cost` is the processor time of one trainer's batches.
    """

    limit: float
    one: float
    four: tuple[float, ...]
    cost: processes.BatchCost

    @property
    def four_each(self) -> float:
        return statistics.median(self.four)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a daemon costs: memory under the load of four trainers, then processor time with nobody there.

    Bytes, except `idle_cpu` (processor seconds a second, daemon and workers together). `anonymous_workers` has one
    entry a worker; `slots` is what the batches' memory really takes.
    """

    anonymous_daemon: int
    anonymous_workers: tuple[int, ...]
    slots: int
    idle_cpu: float


class Daemon:
    """`streamd serve` of the config.yaml in `home`, where its state, its sockets and its log lie: a JSON object a line.

    It can be killed and started again. As a context it is stopped at the end.
    """

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, Any],
        command: Sequence[str | Path] = (STREAMD,),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.endpoint = f"ipc://{home}/streamd.sock"
        self._home, self._log = home, home / "log"
        config = home / "config.yaml"
        config.write_text(json.dumps({"listen": self.endpoint, **settings}))  # JSON is YAML
        self._command = [*command, "serve", "--log-json", "--config", config]
        self._environment = {**environment, "STATE_DIRECTORY": str(home), "RUNTIME_DIRECTORY": str(home)}
        self.start()

    def start(self) -> None:
        with self._log.open("wb") as log:
            self.began_s = time.time()  # the log's clock
            self._process = subprocess.Popen(self._command, stderr=log, env=self._environment, cwd=self._home)
        self.pid = self._process.pid

    def read_log(self) -> str:
        return self._log.read_text()

    def event_times(self) -> dict[str, float]:
        """When each event was logged first, in seconds of the wall clock."""
        return parse_event_times(self.read_log())

    def wait_ready(self) -> float:
        """Seconds from its command to its word that it serves. Raises StreamdError when nobody answers."""
        with streamd.connect(self.endpoint, timeout=READY_S):
            return self.event_times()["daemon.ready"] - self.began_s

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stops it, and prints its log when the block has failed."""
        self._process.terminate()
        self._process.wait(STOP_S)
        if kind is not None:
            print(self.read_log(), file=sys.stderr)

    def pids(self) -> list[int]:
        return [self.pid, *processes.children(self.pid)]

    def probe(self, *, trainers: int, epochs: int) -> list[str]:
        options = ["--endpoint", self.endpoint, "--epochs", str(epochs), "--trainers", str(trainers), "--json"]
        return [str(STREAMD), "probe", "train", *options]


def parse_event_times(log: str) -> dict[str, float]:
    """When each event came first, in seconds of the wall clock; the last line may not be whole yet."""
    said = [json.loads(line) for line in log.rpartition("\n")[0].splitlines()]
    return {each["event"]: datetime.fromisoformat(each["time"]).timestamp() for each in reversed(said)}


def run_json(command: list[str]) -> dict[str, Any]:
    """The JSON object that `command` prints last. Exits with what it said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        sys.exit(f"run: {' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return answer


def folder_stream(data: Path) -> dict[str, Any]:
    """The stream that is measured, with the images of `data`."""
    return {"source": {"kind": "folder", "path": str(data.resolve())}, **STREAM}


def array_stream(array: Path) -> dict[str, Any]:
    """The stream of the decoded images in `array`, a .npy."""
    return {**STREAM, "source": {"kind": "npy", "path": str(array.resolve())}, "labels": {}}


def build_settings(stream: Mapping[str, Any], workers: int | str = "auto") -> dict[str, Any]:
    """The configuration of a daemon that serves `stream` as `train`."""
    return {"memory": f"{MEMORY_BYTES >> 20}MiB", "workers": workers, "streams": {"train": dict(stream)}}


@contextmanager
def serve_stream(
    stream: Mapping[str, Any],
    workers: int | str = "auto",
    command: Sequence[str | Path] = (STREAMD,),
    environment: Mapping[str, str] = os.environ,
) -> Iterator[Daemon]:
    """Serves `stream` as `train` from a fresh daemon in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder,
        Daemon(Path(folder), build_settings(stream, workers), command, environment) as daemon,
    ):
        daemon.wait_ready()
        yield daemon


def measure_rates(data: Path, trainers: int) -> tuple[float, ...]:
    """Samples a second of each of `trainers`, which start together."""
    with serve_stream(folder_stream(data)) as serving:
        return tuple(run_json(serving.probe(trainers=trainers, epochs=EPOCHS))["samples_per_s"])


def measure_cost(data: Path) -> processes.BatchCost:
    """Processor time a batch of a fresh daemon with its workers, and of the one trainer that reads from it."""
    with serve_stream(folder_stream(data)) as serving:
        return processes.run_trainer(serving.endpoint, serving.pid, EPOCHS).cost


def measure_limit(data: Path) -> float:
    cores = len(os.sched_getaffinity(0))  # as many as streamd has workers
    command = [sys.executable, str(HERE / "limit.py"), str(data), "--passes", str(EPOCHS), "--processes", str(cores)]
    return float(run_json(command)["samples_per_s"])


def measure_round(data: Path) -> Round:
    limit = measure_limit(data)
    (one,) = measure_rates(data, 1)
    return Round(limit=limit, one=one, four=measure_rates(data, TRAINERS), cost=measure_cost(data))


def measure_upkeep(data: Path) -> Upkeep:
    """Memory while trainers take all they can, then processor time when they have gone."""
    with serve_stream(folder_stream(data)) as serving:
        command = serving.probe(trainers=TRAINERS, epochs=LOAD_EPOCHS)
        load = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            load.wait(LOADED_AFTER_S)
            sys.exit(f"run: the load ended at once, with {load.returncode}")
        except subprocess.TimeoutExpired:
            pids = serving.pids()
            anonymous, slots = [processes.anonymous_bytes(pid) for pid in pids], processes.memfd_bytes(pids)
        finally:
            os.killpg(load.pid, signal.SIGTERM)  # the probe's trainers too
            load.wait(STOP_S)
        time.sleep(SETTLE_S)
        before_s = processes.cpu_s(pids)
        time.sleep(IDLE_S)
        idle_cpu = (processes.cpu_s(pids) - before_s) / IDLE_S
    return Upkeep(anonymous[0], tuple(anonymous[1:]), slots, idle_cpu)


def machine() -> Machine:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - whichever git the developer has
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    commit = described.stdout.strip() or "unknown"
    cores = len(os.sched_getaffinity(0))
    return Machine(commit, datetime.now(UTC).date().isoformat(), cores, platform.python_version())


def describe_round(found: Round) -> str:
    rates = f"limit {found.limit:,.0f}, one {found.one:,.0f}, four {found.four_each:,.0f} each"
    costs = f"{found.cost.daemon_ms:.3f} ms of daemon and workers, {found.cost.trainer_ms:.3f} ms of the trainer"
    return f"{rates}; a batch {costs}"


def build_report(where: Machine, rounds: Sequence[Round], upkeep: Upkeep) -> Report:
    """Rates, ratios and costs, a column a round, and the upkeep below."""
    table = tabulate_rounds([
        ("limit: a process a core, read and decode, nothing else", [each.limit for each in rounds], ",.0f"),
        ("streamd, one trainer", [each.one for each in rounds], ",.0f"),
        ("streamd, four trainers, each", [each.four_each for each in rounds], ",.0f"),
        ("streamd, four trainers, together", [sum(each.four) for each in rounds], ",.0f"),
        ("one trainer / limit", [each.one / each.limit for each in rounds], ".2f"),
        ("four trainers, each / one trainer", [each.four_each / each.one for each in rounds], ".2f"),
        ("processor time a batch, daemon and workers, ms", [each.cost.daemon_ms for each in rounds], ".3f"),
        ("processor time a batch, the trainer, ms", [each.cost.trainer_ms for each in rounds], ".3f"),
    ])  # fmt: skip
    upkeep_rows = (
        ("processor while nobody is there", f"{100 * upkeep.idle_cpu:.2f} %"),
        ("its own memory, under four trainers", f"{upkeep.anonymous_daemon / MIB:.0f} MiB"),
        *(
            (f"the same of worker {number}", f"{anonymous / MIB:.0f} MiB")
            for number, anonymous in enumerate(upkeep.anonymous_workers, 1)
        ),
        ("memory of all batches / allowed", f"{upkeep.slots / MIB:.0f} MiB / {MEMORY_BYTES / MIB:.0f} MiB"),
    )
    text = (
        "Samples a second; 20,000 JPEGs of 128x128, in the page cache, shuffled, batches of 32. Rounds are "
        "interleaved: compare along a column."
    )
    sections = (Section("", table), Section("", Table(("the daemon", ""), upkeep_rows)))
    title = "The spine: JPEGs to batches, one trainer and four"
    return Report(title, "python benchmarks/run.py", where, text, sections)


def build_parser(description: str, name: str, rounds: int) -> argparse.ArgumentParser:
    """The options that benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--data", type=Path, default=make_data.DEFAULT_FOLDER)
    parser.add_argument("--results", type=Path, default=RESULTS / f"{name}.json")
    return parser


def main() -> None:
    parser = build_parser("The spine benchmark: the limit, one trainer, four trainers.", "spine", rounds=5)
    options = parser.parse_args()
    make_data.make(options.data)
    rounds: list[Round] = []
    for number in range(1, options.rounds + 1):
        rounds.append(measure_round(options.data))
        print(f"round {number}: {describe_round(rounds[-1])}")
    finish(build_report(machine(), rounds, measure_upkeep(options.data)), options.results)


if __name__ == "__main__":
    main()
