"""The tutorials of examples/ need three changed lines, run before and after them, and train the same model.

README.md shows what changes in two of them.
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
import runpy
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from loader_process import python_of
from support.daemon_process import write_images
from support.example_daemons import EXAMPLES, serving

from streamd.config.load import load_config
from streamd.config.rules import list_unserved_settings

ROOT: Final = EXAMPLES.parent
FOLDER: Final = EXAMPLES / "tutorials"
MOST_LINES: Final = 3
EPOCHS: Final = 3
SAMPLES: Final = 40

Sums = dict[str, float]  # of each target over all that a model was shown; how many samples, under "samples"


def write_flowers(folder: Path) -> Sums:
    classes = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
    write_images(folder / "flowers", dict.fromkeys(classes, SAMPLES // len(classes)))
    return {"samples": SAMPLES, "": sum(range(len(classes))) * SAMPLES / len(classes)}


def write_drive(folder: Path) -> Sums:
    write_images(folder / "frames", {"centre": SAMPLES})
    angles = [number / 10 - 2 for number in range(SAMPLES)]
    write_table(folder / "drive.csv", "centre", {"image": None, "angle": angles})
    return {"samples": SAMPLES, "": sum(angles)}


def write_faces(folder: Path) -> Sums:
    write_images(folder / "faces", {"2026": SAMPLES})
    moods = [("calm", "glad", "sad")[number % 7 % 3] for number in range(SAMPLES)]
    ages = [20.0 + number for number in range(SAMPLES)]
    write_table(folder / "faces.csv", "2026", {"file": None, "age": ages, "mood": moods})
    return {"samples": SAMPLES, "age": sum(ages), "mood": sum(("calm", "glad", "sad").index(mood) for mood in moods)}


def write_table(path: Path, folder: str, columns: Mapping[str, Sequence[object] | None]) -> None:
    """Writes the columns, that of the files' names for None, and one that holds back every fifth row."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*columns, "split"])
        for number in range(SAMPLES):
            name = f"{folder}/{number:04}.jpg"
            cells = [name if values is None else values[number] for values in columns.values()]
            table.writerow([*cells, "train" if number % 5 else "validation"])


@dataclass(frozen=True, slots=True)
class Tutorial:
    """A folder of examples/tutorials; `write` makes its data, and says what an epoch of it adds up to."""

    name: str
    write: Callable[[Path], Sums]
    streams: tuple[str, ...] = ("train", "validation")
    shown_in_readme: bool = False

    @property
    def folder(self) -> Path:
        return FOLDER / self.name


KERAS_TUTORIALS: Final = [
    Tutorial("directory", write_flowers, shown_in_readme=True),
    Tutorial("dataframe", write_drive),
    Tutorial("outputs", write_faces),
]
TORCH_TUTORIAL: Final = Tutorial("torch", write_flowers, streams=("train",), shown_in_readme=True)
TUTORIALS: Final = [*KERAS_TUTORIALS, TORCH_TUTORIAL]


def each_of(tutorials: Sequence[Tutorial]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("tutorial", tutorials, ids=lambda tutorial: tutorial.name)


def test_no_tutorial_is_left_out() -> None:
    assert sorted(folder.name for folder in FOLDER.iterdir()) == sorted(tutorial.name for tutorial in TUTORIALS)


README_DIFFS: Final = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def new_lines(before: Path, after: Path) -> list[str]:
    """The lines of `after` that `before` has not, but for blank ones."""
    compared = difflib.ndiff(before.read_text().splitlines(), after.read_text().splitlines())
    return [line[2:] for line in compared if line.startswith("+ ") and line[2:].strip()]


@each_of(TUTORIALS)
def test_a_tutorial_needs_three_new_lines(tutorial: Tutorial) -> None:
    new = new_lines(tutorial.folder / "before.py", tutorial.folder / "after.py")
    assert any("fit_data" in line or "loader" in line for line in new)
    assert len(new) <= MOST_LINES, new


@each_of([tutorial for tutorial in TUTORIALS if tutorial.shown_in_readme])
def test_the_readme_shows_all_that_changes_in_a_tutorial(tutorial: Tutorial) -> None:
    """A block of README.md turns `before.py` into `after.py`; a line of @@ stands for lines that stay as they are."""
    before, after = ((tutorial.folder / name).read_text() for name in ("before.py", "after.py"))
    new = new_lines(tutorial.folder / "before.py", tutorial.folder / "after.py")
    (block,) = (each for each in README_DIFFS if all(f"\n+{line}\n" in each for line in new))
    hunks = [hunk.splitlines() for hunk in re.split(r"^@@.*\n", block, flags=re.MULTILINE)]
    for text, left_out in ((before, "+"), (after, "-")):
        kept = ["".join(f"{line[1:]}\n" for line in hunk if line[:1] != left_out) for hunk in hunks]
        assert all(part in text for part in kept), kept
        assert text.startswith(kept[0])
        assert text.endswith(kept[-1])
    changed = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:1] in "+-" and line[2:]]
    shown = [line for line in block.splitlines() if line[:1] in "+-" and line[1:]]
    assert sorted(line[0] + line[2:] for line in changed) == sorted(shown)


@each_of(TUTORIALS)
def test_the_configuration_of_a_tutorial_is_served(tutorial: Tutorial) -> None:
    config = load_config(tutorial.folder / "config.yaml")
    assert list_unserved_settings(config) == []
    assert list(config.streams) == list(tutorial.streams)


@contextmanager
def watched(targets: Sequence[str]) -> Iterator[Sums]:
    """Adds up what Keras models are shown, in training and in validation. They run eagerly: tracing takes longer."""
    import keras  # noqa: PLC0415 - takes seconds
    import tensorflow as tf  # noqa: PLC0415 - as above

    sums = {name: tf.Variable(0.0, dtype="float64") for name in targets}
    seen: Sums = {}
    compute_loss, compile_model = keras.Model.compute_loss, keras.Model.compile

    def counting_loss(self: Any, x: Any = None, y: Any = None, *rest: Any, **named: Any) -> Any:
        sums["samples"].assign_add(tf.cast(tf.shape(x)[0], tf.float64))
        for name, values in (y if isinstance(y, dict) else {"": y}).items():
            sums[name].assign_add(tf.reduce_sum(tf.cast(values, tf.float64)))
        return compute_loss(self, x, y, *rest, **named)

    def compile_eagerly(self: Any, *arguments: Any, **named: Any) -> None:
        compile_model(self, *arguments, **named, run_eagerly=True)

    keras.Model.compute_loss, keras.Model.compile = counting_loss, compile_eagerly
    try:
        yield seen
    finally:
        keras.Model.compute_loss, keras.Model.compile = compute_loss, compile_model
    seen |= {name: float(total.numpy()) for name, total in sums.items()}


def trained(script: Path, targets: Sequence[str]) -> tuple[Any, Sums]:
    """The model that a script trains, and what it was shown."""
    with watched(targets) as seen:
        model = runpy.run_path(str(script))["model"]
    return model, seen


def form(model: Any) -> tuple[Any, ...]:
    """What goes in, what comes out, and the weights between."""
    weights = [(weight.shape, weight.dtype) for weight in model.weights]
    return model.input_shape, model.inputs[0].dtype, model.output_shape, weights, model.loss


@pytest.mark.train
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")  # of Keras, about a Sequence of its own
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of tf.data, which learns its length in an epoch
@each_of(KERAS_TUTORIALS)
def test_before_and_after_a_tutorial_trains_the_same_model_on_the_same_samples(
    tutorial: Tutorial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tutorial.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    theirs, shown_before = trained(tutorial.folder / "before.py", list(whole))
    with serving(tutorial.folder, tmp_path) as daemon:
        monkeypatch.setenv("STREAMD_ENDPOINT", daemon.endpoint)
        ours, shown_after = trained(tutorial.folder / "after.py", list(whole))
    assert form(ours) == form(theirs)
    assert shown_before == pytest.approx({name: EPOCHS * total for name, total in whole.items()}, abs=1e-3)
    assert shown_after == pytest.approx(shown_before, abs=1e-3)
    assert len(ours.history.history["val_loss"]) == EPOCHS
    assert np.isfinite(ours.history.history["val_loss"]).all()


COUNTED: Final = """
import json, runpy, sys, torch
from migration_run import allow_torchvision_without_operators

allow_torchvision_without_operators()
seen, cross_entropy = [], torch.nn.functional.cross_entropy
def count(outputs, labels):
    seen.append((len(labels), int(labels.sum())))
    return cross_entropy(outputs, labels)
torch.nn.functional.cross_entropy = count
model = runpy.run_path(sys.argv[1], run_name="__main__")["model"]
samples, labels = map(sum, zip(*seen))
print(json.dumps([samples, labels, [list(weights.shape) for weights in model.parameters()]]))
"""


@pytest.mark.train
@pytest.mark.timeout(240)  # it may have to install torch
def test_before_and_after_the_tutorial_in_torch_trains_the_same_model_on_the_same_samples(tmp_path: Path) -> None:
    whole = TORCH_TUTORIAL.write(tmp_path)

    def run(name: str, endpoint: str = "") -> list[Any]:
        done = subprocess.run(
            [python_of("keras_torch"), "-c", COUNTED, TORCH_TUTORIAL.folder / name],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "STREAMD_ENDPOINT": endpoint},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    theirs = run("before.py")
    with serving(TORCH_TUTORIAL.folder, tmp_path) as daemon:
        ours = run("after.py", daemon.endpoint)
    assert ours == theirs
    assert ours[:2] == [EPOCHS * whole["samples"], EPOCHS * whole[""]]
