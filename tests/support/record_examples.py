"""The worked examples in examples/records: made, served and run as their readers do, and judged."""

from __future__ import annotations

import csv
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from support.daemon_process import DaemonProcess
from support.example_daemons import EXAMPLES, serving

FOLDER: Final = EXAMPLES / "records"
FILES: Final = ("config.yaml", "make_data.py", "model.py", "ours.py", "theirs.py")
OWN_MODULES: Final = ("make_data", "model")  # each example has these

Names = Mapping[str, Any]  # what a program has defined when it ends


@dataclass(frozen=True, slots=True)
class RecordExample:
    """One folder of examples/records.

    measured: the name of the figure that says how good the model is on the validation stream.
    measure: takes what `ours.py` has defined, and returns that figure.
    guess: takes the folder of the data, and returns the figure of somebody who does not look.
    enough: the least share of the way from the guess to a perfect model that a test asks for.
    perfect: the figure of a perfect model.
    levels: the most by which a pixel may differ from that of `theirs.py`; 0 where nothing is resized, and None where
        both resize, each with its own filter.
    """

    name: str
    measured: str
    measure: Callable[[Names], float]
    guess: Callable[[Path], float]
    enough: float
    perfect: float = 1.0
    levels: int | None = 0

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def compute_progress(self, figure: float, guess: float) -> float:
        """Returns how far `figure` is on the way from the guess, 0, to a perfect model, 1."""
        return (figure - guess) / (self.perfect - guess)


def find_last(name: str) -> Callable[[Names], float]:
    """Returns a function that finds the last value of a figure of Keras's."""
    return lambda names: float(names["history"].history[name][-1])


def measure_cloth(folder: Path) -> float:
    """Returns the mean IoU of the answer that all pixels are cloth: their share, for one of four classes."""
    from PIL import Image  # noqa: PLC0415 - for this example alone

    masks = [np.asarray(Image.open(path)) for path in sorted((folder / "validation" / "masks").iterdir())]
    return float(np.mean(np.stack(masks) == 0)) / 4


def read_column(path: Path, name: str, split: str) -> list[float]:
    with path.open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row["split"] == split]


def measure_middle_angle(folder: Path) -> float:
    """Returns the mean error of the answer that every angle is the middle one."""
    angles = np.array(read_column(folder / "drive.csv", "angle", "validation"))
    return float(np.abs(angles - np.median(angles)).mean())


def measure_still_frame(folder: Path) -> float:
    """Returns the mean error of the best line through the angles that the frames show and those four frames later."""
    table = folder / "frames.csv"
    later = np.array(read_column(table, "next_angle", "validation"))
    frames = np.array(read_column(table, "frame", "validation"))
    shown, told = later[:-4][frames[4:] >= 4], later[4:][frames[4:] >= 4]
    slope, level = np.polyfit(shown, told, 1)
    return float(np.abs(told - slope * shown - level).mean())


EXAMPLES_OF_RECORDS: Final = (
    RecordExample("segmentation", "mean IoU", find_last("val_iou"), measure_cloth, 0.4),
    RecordExample("detection", "F1", lambda names: float(names["score"]), lambda _: 0.0, 0.5),
    RecordExample(
        "simclr", "nearest neighbours alike", lambda names: float(names["score"]), lambda _: 0.25, 0.3, levels=None
    ),
    RecordExample("cameras", "mean error, °", find_last("val_mae"), measure_middle_angle, 0.5, perfect=0.0),
    RecordExample("clip", "mean error, °", find_last("val_mae"), measure_still_frame, 0.5, perfect=0.0),
    RecordExample("tiles", "accuracy", find_last("val_accuracy"), lambda _: 0.25, 0.8),
)


@contextmanager
def prepare_example(example: RecordExample, place: Path) -> Iterator[DaemonProcess]:
    """Makes an example's data in `place`, serves them, and puts the process where its programs run."""
    before, endpoint = Path.cwd(), os.environ.get("STREAMD_ENDPOINT")
    # Other examples have modules of the same names, which other tests may have imported.
    others: dict[str, ModuleType] = {name: sys.modules.pop(name) for name in OWN_MODULES if name in sys.modules}
    sys.path.insert(0, str(example.folder))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        importlib.import_module("make_data").main(place)
        with serving(example.folder, place) as daemon:
            os.chdir(place)
            os.environ["STREAMD_ENDPOINT"] = daemon.endpoint
            yield daemon
    finally:
        os.chdir(before)
        os.environ.pop("STREAMD_ENDPOINT", None)
        if endpoint is not None:
            os.environ["STREAMD_ENDPOINT"] = endpoint
        sys.dont_write_bytecode = written
        sys.path.remove(str(example.folder))
        for name in OWN_MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def run_ours(example: RecordExample) -> Names:
    """Trains on the streams, and returns what the program has defined."""
    return runpy.run_path(str(example.folder / "ours.py"))


def run_theirs(example: RecordExample) -> Names:
    """Runs the program for two steps and one of validation, and returns what it has defined."""
    import keras  # noqa: PLC0415 - takes seconds

    fit = keras.Model.fit

    def fit_shortly(self: Any, *arguments: Any, **named: Any) -> Any:
        named |= {"epochs": 1, "steps_per_epoch": 2, "verbose": 0}
        if "validation_data" in named:
            named["validation_steps"] = 1
        return fit(self, *arguments, **named)

    keras.Model.fit = fit_shortly
    try:
        return runpy.run_path(str(example.folder / "theirs.py"))
    finally:
        keras.Model.fit = fit
