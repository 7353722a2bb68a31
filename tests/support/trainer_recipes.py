"""Runs the programs of examples/trainers as users start them, in the environment that has their libraries.

    python tests/support/trainer_recipes.py BATCHES DELAY_S PROGRAM [ARGUMENT]...

runs one that kills itself DELAY_S after its stream has handed out that many batches, wherever it is then: in a step, in
a save, between two epochs.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from streamd.client import Stream

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "examples" / "trainers"
STREAMD: Final = Path(sys.executable).with_name("streamd")
PYTHON: Final = ROOT / "benchmarks" / "environments" / "trainers" / "bin" / "python"
LIMIT_S: Final = 300.0
LATEST_KILL_S: Final = 0.05  # about as long as ten steps and their save take


def train(
    program: str,
    endpoint: str,
    run: Path,
    *,
    python: Sequence[object] | None = None,
    batches: int = 0,
    delay_s: float = 0,
) -> str:
    """Runs a program to its end, and returns what it said. With `batches` it must have been killed instead."""
    command = [*(python or [PYTHON]), FOLDER / program, run]
    if batches:
        command[-2:-2] = [Path(__file__), batches, delay_s]
    done = subprocess.run(
        [str(word) for word in command],
        env=build_environment(endpoint),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == (-signal.SIGKILL if batches else 0), done.stdout + done.stderr
    return done.stdout


def train_through_kills(
    program: str,
    endpoint: str,
    run: Path,
    *,
    kills: int,
    batches: int,
    seed: int,
    python: Sequence[object] | None = None,
) -> str:
    """Starts a program again after each of its kills; each comes within `batches` of its start."""
    chance = random.Random(seed)  # noqa: S311 - to be repeatable is what it is for
    for _ in range(kills):
        count, delay_s = chance.randint(1, batches), chance.uniform(0, LATEST_KILL_S)
        train(program, endpoint, run, python=python, batches=count, delay_s=delay_s)
    return train(program, endpoint, run, python=python)


def list_epochs(run: Path) -> list[str]:
    """What `streamd verify` says of the receipts that a training has left."""
    paths = sorted(run.glob("receipts-*.jsonl"))
    done = subprocess.run([STREAMD, "verify", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("train epoch")]


def build_environment(endpoint: str) -> Mapping[str, str]:
    """Equal bits need the same number of threads in each run."""
    return {
        **os.environ,
        "STREAMD_ENDPOINT": endpoint,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": "torch",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "RAY_ADDRESS": "local",  # not a cluster that somebody else has started here
        "RAY_AUTH_MODE": "disabled",  # no token in the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    }


def kill_after(batches: int, delay_s: float) -> None:
    """Lets this process be killed after its streams have handed out `batches`; under torchrun, all of them."""
    left = iter(range(batches - 1))
    begin, parent = Stream.epochs, os.getppid()

    def kill() -> None:
        if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def count(step: object) -> object:
        if next(left, None) is None:
            threading.Timer(delay_s, kill).start()
        return step

    def begin_counted(self: Stream, **how: Any) -> Iterator[Iterator[Any]]:
        return (map(count, steps) for steps in begin(self, **how))

    patch.object(Stream, "epochs", begin_counted).start()


if __name__ == "__main__":
    kill_after(int(sys.argv[1]), float(sys.argv[2]))
    sys.argv = sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")
