"""Compares the processor time of a batch in two checkouts, in alternation, on the same data.

    python benchmarks/two_checkouts.py OLD NEW [--arrays] [--rounds 9] [--epochs 2] [--data FOLDER] [--results FILE]

OLD and NEW are folders, as `git worktree add FOLDER COMMIT` makes them. Both run with this interpreter and its
libraries, each with its own streamd, which PYTHONPATH puts first. A checkout's daemon is started by the entry point in
its pyproject.toml, and its trainer uses the public client alone, so the modules within may have other names.

A round has a fresh daemon of each, and four trainers one after the other: old, new, new, old, and the reverse in the
next round, so that a drift falls on both. Each drains one epoch that does not count, then EPOCHS that do. The daemon
that waits uses no processor time. Exit status 1 when NEW is slower: the ratio of the medians, NEW to OLD, is over 1.03,
and its 95 % interval does not contain 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import make_data
import processes
import run
from processes import BatchCost

MOST_RATIO: Final = 1.03
FEWEST_ROUNDS: Final = 5  # with fewer, an interval is as narrow as chance has it
RESAMPLES: Final = 10_000
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with a streamd of its own, resolved, and the entry point of its `streamd` command, `module:function`."""

    path: Path
    entry_point: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.path)}

    def command(self, *arguments: str) -> list[str]:
        """`streamd` with these arguments, as this checkout has it."""
        module, _, function = self.entry_point.partition(":")
        return [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()", *arguments]


def open_checkout(path: Path) -> Checkout:
    """Exits when the folder is no checkout of streamd."""
    try:
        project = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return Checkout(path.resolve(), project["scripts"]["streamd"])
    except (OSError, KeyError) as error:
        sys.exit(f"two_checkouts: {path} is no checkout of streamd: {error!r}")


@dataclass(frozen=True, slots=True)
class Round:
    """Both checkouts, measured one after the other."""

    old: BatchCost
    new: BatchCost


@dataclass(frozen=True, slots=True)
class Ratio:
    """New to old, by their medians, and the 95 % interval of that."""

    ratio: float
    low: float
    high: float

    @property
    def is_kept(self) -> bool:
        """Whether nothing shows that the new one is slower by more than is allowed."""
        return self.ratio <= MOST_RATIO or self.low <= 1 <= self.high

    def __str__(self) -> str:
        allowed = "is at most" if self.ratio <= MOST_RATIO else "is over"
        contains = "contains" if self.low <= 1 <= self.high else "does not contain"
        interval = f"95 % interval {self.low:.3f} to {self.high:.3f}"
        return f"ratio {self.ratio:.3f} {allowed} {MOST_RATIO}; {interval} {contains} 1"


# --- measuring


def measure_cost(checkout: Checkout, daemon: run.Daemon, epochs: int) -> BatchCost:
    """One trainer's epochs. Exits when a process has run other code than the checkout's."""
    path = checkout.path
    drained = processes.run_trainer(daemon.endpoint, daemon.pid, epochs, checkout.environment)
    paths = {processes.environment_of(each).get("PYTHONPATH") for each in daemon.pids()}
    if drained.package != str(path / "streamd") or paths != {str(path)}:
        sys.exit(f"two_checkouts: {path} was not measured: {drained.package} was, or one of {paths}")
    return drained.cost


def serve_checkout(checkout: Checkout, stream: Mapping[str, Any]) -> AbstractContextManager[run.Daemon]:
    """A daemon of the checkout that serves the stream as `train`, stopped at the end."""
    return run.serve_stream(stream, command=checkout.command(), environment=checkout.environment)


def measure_round(number: int, old: Checkout, new: Checkout, stream: Mapping[str, Any], epochs: int) -> Round:
    """Both, twice: in odd rounds the old one first and last, in even rounds the new one."""
    outer, inner = (old, new) if number % 2 else (new, old)
    with serve_checkout(outer, stream) as first, serve_checkout(inner, stream) as second:
        turns = ((outer, first), (inner, second), (inner, second), (outer, first))
        one, two, three, four = (measure_cost(checkout, daemon, epochs) for checkout, daemon in turns)
    costs = {outer.path: mean_cost(one, four), inner.path: mean_cost(two, three)}
    return Round(costs[old.path], costs[new.path])


def mean_cost(one: BatchCost, other: BatchCost) -> BatchCost:
    return BatchCost((one.daemon_ms + other.daemon_ms) / 2, (one.trainer_ms + other.trainer_ms) / 2)


# --- judging


def compare_medians(rounds: Sequence[Round], figure: Callable[[BatchCost], float]) -> Ratio:
    """The ratio of the medians, and its interval by resampling whole rounds, since what drifts takes both along."""
    pairs = [(figure(each.old), figure(each.new)) for each in rounds]
    dice = random.Random(SEED)  # noqa: S311 - the same interval for the same figures, no secret
    ratios = sorted(_ratio_of_medians(dice.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return Ratio(_ratio_of_medians(pairs), ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES)])


def _ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(new for _, new in pairs) / statistics.median(old for old, _ in pairs)


FIGURES: Final[tuple[tuple[str, Callable[[BatchCost], float]], ...]] = (
    ("daemon and workers", lambda cost: cost.daemon_ms),
    ("trainer", lambda cost: cost.trainer_ms),
    ("together", lambda cost: cost.total_ms),
)


def describe_round(found: Round) -> str:
    """Both costs, each with its parts, and their ratio."""
    parts = [
        f"{name} {cost.total_ms:.3f} ms ({cost.daemon_ms:.3f} + {cost.trainer_ms:.3f})"
        for name, cost in (("old", found.old), ("new", found.new))
    ]
    return f"{', '.join(parts)}, ratio {found.new.total_ms / found.old.total_ms:.3f}"


def render_verdict(rounds: Sequence[Round]) -> tuple[str, bool]:
    """A line a figure, and whether the new checkout is kept: what all processes take together decides."""
    ratios = {name: compare_medians(rounds, figure) for name, figure in FIGURES}
    is_kept = ratios["together"].is_kept
    lines = [f"{name}: {ratio}" for name, ratio in ratios.items()]
    return "\n".join([*lines, "NEW is not slower" if is_kept else "NEW is slower"]), is_kept


def main() -> None:
    parser = argparse.ArgumentParser(description="The processor time of a batch in two checkouts, in alternation.")
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--arrays", action="store_true", help="serve the decoded images, from one .npy")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=make_data.DEFAULT_FOLDER)
    parser.add_argument("--results", type=Path, help="also write the rounds there, as JSON")
    options = parser.parse_args()
    if options.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds: at least {FEWEST_ROUNDS}")
    old, new = open_checkout(options.old), open_checkout(options.new)
    make_data.make(options.data)
    stream = run.folder_stream(options.data)
    if options.arrays:
        stream = run.array_stream(make_data.make_array(options.data))
    print("processor time a batch, all together (daemon and workers + trainer):")
    rounds: list[Round] = []
    for number in range(1, options.rounds + 1):
        rounds.append(measure_round(number, old, new, stream, options.epochs))
        print(f"round {number}: {describe_round(rounds[-1])}", flush=True)
    if options.results:
        options.results.write_text(json.dumps([asdict(each) for each in rounds], indent=2) + "\n")
    verdict, is_kept = render_verdict(rounds)
    print(verdict)
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
