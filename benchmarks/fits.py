"""Measures `fit` of a nearly empty model on each of Keras's backends: from a stream, and on one batch that is there.

    python benchmarks/fits.py [--rounds 5] [--data FOLDER] [--results FILE.json]

Decoded images are served, so that no decoder takes part. Each round takes `streamd probe` and then, on each backend,
both fits once; the trainers live through all rounds. Backends have environments of their own, made the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

import make_data
import run
from compare_environments import python_of
from fits_page import PAGE, Fit, Fits, render

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
BACKENDS: Final[Mapping[str, str | None]] = {"tensorflow": None, "jax": "keras_jax", "torch": "keras_torch"}
CLASSES: Final = 10
LEAVE_S: Final = 20.0


class Trainer:
    """A process of fits_trainer.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._ask, self._answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

    def rate(self, source: str) -> float:
        """Samples a second of a `fit` on "stream" or "constant". Exits when the trainer has ended."""
        self._ask.write(f"{source}\n")
        self._ask.flush()
        answer = self._answers.readline()
        if not answer:
            sys.exit("fits: a trainer has ended; what it said is above")
        return float(json.loads(answer))

    def leave(self) -> None:
        self._ask.close()


@contextmanager
def trainer(backend: str, endpoint: str) -> Iterator[Trainer]:
    """A trainer on that backend, which ends with its standard input."""
    # One thread a matrix: torch's others would wait for its tiny ones on the cores that the daemon's workers have.
    settings = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment = {**os.environ, **settings}
    command = [str(python_of(BACKENDS[backend])), str(HERE / "fits_trainer.py"), endpoint]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        each = Trainer(process)
        yield each
        each.leave()
        process.wait(LEAVE_S)


def labelled(array: Path, table: Path, samples: int) -> dict[str, Any]:
    """The stream that is measured: the images of `array`, and classes in turn."""
    table.write_text("label\n" + "".join(f"{number % CLASSES}\n" for number in range(samples)))
    return {**run.STREAM, "source": {"kind": "npy", "path": str(array.resolve()), "table": str(table)}}


def measure(stream: Mapping[str, Any], rounds: int) -> Fits:
    for name in BACKENDS.values():
        python_of(name)
    probes: list[float] = []
    fits: list[Fit] = []
    with run.daemon_of(stream) as serving, ExitStack() as ending:
        trainers = {name: ending.enter_context(trainer(name, serving.endpoint)) for name in BACKENDS}
        for each in trainers.values():
            each.rate("constant")  # answers when it is ready, so that no other starts while one is measured
        for number in range(rounds):
            probes += run.run_json(serving.probe(trainers=1, epochs=run.EPOCHS))["samples_per_s"]
            for backend, each in trainers.items():
                fits.append(Fit(backend, number, each.rate("constant"), each.rate("stream")))
                print(f"round {number + 1}: {fits[-1]}", file=sys.stderr)
    return Fits(run.machine(), tuple(probes), tuple(fits))


def main() -> None:
    parser = argparse.ArgumentParser(description="fit from a stream beside fit on one constant batch.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=make_data.DEFAULT_FOLDER)
    parser.add_argument("--results", type=Path, default=PAGE.results)
    options = parser.parse_args()
    make_data.make(options.data)
    array = options.data.with_suffix(".npy")
    make_data.make_array(options.data, array)
    with tempfile.TemporaryDirectory(prefix="streamd-fits-") as folder:
        stream = labelled(array, Path(folder) / "labels.csv", len(make_data.files(options.data)))
        found = measure(stream, options.rounds)
    PAGE.save(found, options.results)
    print(render(found))


if __name__ == "__main__":
    main()
