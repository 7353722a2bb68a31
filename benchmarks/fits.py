"""Measures `fit` of a nearly empty model on each of Keras's backends: from a stream, and on one batch that is there.

    python benchmarks/fits.py [--rounds 5] [--data FOLDER] [--results FILE.json]

Decoded images are served, so that no decoder takes part. Each round takes `streamd probe` and then, on each backend,
both fits once; the trainers live through all rounds. Backends have environments of their own, made the first time. Exit
status 1 when a backend misses its bound.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import make_data
import run
from loader_process import Process, python_of, started
from report import Bound, Machine, Report, Section, finish, tabulate_rounds

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
BACKENDS: Final[Mapping[str, str | None]] = {"tensorflow": None, "jax": "keras_jax", "torch": "keras_torch"}
CLASSES: Final = 10
LIMIT_S: Final = 3600.0  # of all rounds
LEAST: Final = 0.8  # of what the slower of probe and a fit on free data takes


@dataclass(frozen=True, slots=True)
class Fit:
    """One backend in one round, in samples a second: on one batch that is there, on the stream, and `streamd probe`."""

    constant: float
    stream: float
    probe: float

    @property
    def of_limit(self) -> float:
        """Of what `fit` could take: the lower one of constant and probe."""
        return self.stream / min(self.probe, self.constant)


def start_trainer(backend: str, endpoint: str) -> AbstractContextManager[list[Process]]:
    """A process of fits_trainer.py on that backend."""
    # One thread a matrix: torch's others would wait for its tiny ones on the cores that the daemon's workers have.
    settings = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [str(python_of(BACKENDS[backend])), str(HERE / "fits_trainer.py"), endpoint]
    return started([command], LIMIT_S, settings)


def rate(process: Process, source: str) -> float:
    """Samples a second of a `fit` on "stream" or "constant"."""
    process.tell(f"{source}\n")
    return float(process.answer()["samples_per_s"])


def labelled(array: Path, table: Path, samples: int) -> dict[str, Any]:
    """The stream that is measured: the images of `array`, and classes in turn."""
    table.write_text("label\n" + "".join(f"{number % CLASSES}\n" for number in range(samples)))
    return {**run.STREAM, "source": {"kind": "npy", "path": str(array.resolve()), "table": str(table)}}


def measure(stream: Mapping[str, Any], rounds: int) -> dict[str, list[Fit]]:
    """A fit a round, by backend."""
    for name in BACKENDS.values():
        python_of(name)
    fits: dict[str, list[Fit]] = {name: [] for name in BACKENDS}
    with run.serve_stream(stream) as serving, ExitStack() as ending:
        trainers = {name: ending.enter_context(start_trainer(name, serving.endpoint))[0] for name in BACKENDS}
        for each in trainers.values():
            rate(each, "constant")  # answers when it is ready, so that no other starts while one is measured
        for number in range(rounds):
            (probe,) = run.run_json(serving.probe(trainers=1, epochs=run.EPOCHS))["samples_per_s"]
            for backend, each in trainers.items():
                fits[backend].append(Fit(rate(each, "constant"), rate(each, "stream"), probe))
                print(f"round {number + 1}: {backend} {fits[backend][-1]}", file=sys.stderr)
    return fits


def build_report(machine: Machine, fits: Mapping[str, Sequence[Fit]]) -> Report:
    """The probe, then three rows a backend."""
    first = next(iter(fits.values()))
    rows: list[tuple[str, list[float], str]] = [("`streamd probe`", [fit.probe for fit in first], ",.0f")]
    for backend, several in fits.items():
        rows += [
            (f"{backend}: constant", [fit.constant for fit in several], ",.0f"),
            (f"{backend}: stream", [fit.stream for fit in several], ",.0f"),
            (f"{backend}: of it", [fit.of_limit for fit in several], ".2f"),
        ]
    bounds = [
        Bound(f"{backend}, of it", statistics.median(fit.of_limit for fit in several), "at least", LEAST)
        for backend, several in fits.items()
    ]
    text = (
        "`Model.fit` of a nearly empty model, batches of 32 x 128x128x3, from decoded images, samples/s. *Constant* is "
        "the same `fit` on one batch that lies ready for the backend; *of it* is the stream's rate as a part of the "
        "lower one of *constant* and `streamd probe`."
    )
    rounds = "Rounds are interleaved: compare along a column."
    section = Section(text, tabulate_rounds(rows), bounds=tuple(bounds))
    return Report("`fit` on a stream", "python benchmarks/fits.py", machine, rounds, (section,))


def main() -> None:
    options = run.build_parser("fit from a stream beside fit on one constant batch.", "fits", rounds=5).parse_args()
    make_data.make(options.data)
    array = make_data.make_array(options.data)
    with tempfile.TemporaryDirectory(prefix="streamd-fits-") as folder:
        stream = labelled(array, Path(folder) / "labels.csv", len(make_data.files(options.data)))
        fits = measure(stream, options.rounds)
    finish(build_report(run.machine(), fits), options.results)


if __name__ == "__main__":
    main()
