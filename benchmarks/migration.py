"""Measures the snippets of the migration page, theirs and streamd's in turn, and writes docs/migration.md.

    python benchmarks/migration.py [--rounds 3] [--images 4000] [--cores 2] [--schemes a,b]
    python benchmarks/migration.py --report-only    # the page anew, from examples/migration/ and the last figures

Each snippet is run as its user would: a process of its own, on files; streamd's beside a daemon that has listed them.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb
import make_data
import msgspec
import numpy as np
import run
import tables
from loader_process import python_of
from make_data import decoded, files
from migration_run import EPOCHS, Outcome
from report import RESULTS, Machine, Table, format_json

from streamd.dataset.lmdb.pyxis_layout import COUNT_KEY, DATA_DB, META_DB, build_sample_key, encode_sample

ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLES: Final = ROOT / "examples" / "migration"
PAGE: Final = ROOT / "docs" / "migration.md"
DEFAULT_RESULTS: Final = RESULTS / "migration.json"
SNIPPET_S: Final = 300.0
LOOK_AGAIN_S: Final = 0.01
_PART: Final = "\n---\n"  # between what stands before the snippets and what stands behind them
_HELD_BACK: Final = 10  # of so many rows of the table one belongs to another split
_MAP_BYTES: Final = 1 << 40  # of addresses, not of memory


@dataclass(frozen=True, slots=True)
class Scheme:
    """A loader that people come from: a folder of examples/migration, and what its snippets need.

    `kind` is that of its labels, or torch. `scale` is how many times larger streamd's pixels are than theirs.
    """

    name: str
    kind: str = "category"
    scale: float = 1.0

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.name

    def text(self, file: str) -> str:
        return (self.folder / file).read_text().rstrip("\n")


SCHEMES: Final = (
    Scheme("generator"),
    Scheme("in_memory"),
    Scheme("pytables"),
    Scheme("queue_loader"),
    Scheme("generator_enqueuer"),
    Scheme("dataframe", kind="angle", scale=255),
    Scheme("tf_data_list"),
    Scheme("pool"),
    Scheme("pyxis"),
    Scheme("image_data_generator", scale=255),
    Scheme("image_dataset_from_directory"),
    Scheme("torch_dataloader", kind="torch"),
    Scheme("torch_imagefolder", kind="torch"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a snippet: samples a second in its second epoch, seconds to its first step, with what it loads."""

    rate: float
    first_s: float


def median_run(runs: Sequence[Run]) -> Run:
    """Each figure's median."""
    return Run(statistics.median(each.rate for each in runs), statistics.median(each.first_s for each in runs))


@dataclass(frozen=True, slots=True)
class Pair:
    """Both snippets of a scheme, an entry a round."""

    theirs: tuple[Run, ...]
    ours: tuple[Run, ...]

    @property
    def times(self) -> float:
        """How many times faster: the median of each round's ratio."""
        return statistics.median(mine.rate / other.rate for mine, other in zip(self.ours, self.theirs, strict=True))


@dataclass(frozen=True, slots=True)
class Migration:
    """All that one run of migration.py found. A scheme that no run has measured yet has no pair."""

    machine: Machine
    images: int
    pairs: dict[str, Pair]


def load(results: Path) -> Migration:
    """Reads what `save` wrote."""
    return msgspec.json.decode(results.read_bytes(), type=Migration)


def save(found: Migration, results: Path) -> None:
    """Writes the figures, a run a line."""
    results.write_text(format_json(msgspec.to_builtins(found)) + "\n")


# --- the data, in every form that snippets read: images/CLASS/NUMBER.jpg all.csv train_list.txt samples.hdf5 data.lmdb


@dataclass(frozen=True, slots=True)
class Truth:
    """What a pass over the data shows: images, the sum of their labels."""

    images: int
    labels: float


def make_forms(images: Path, folder: Path, count: int) -> None:
    """Writes the first `count` of `images`, as many of each class, into `folder` in all forms, unless it exists."""
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    paths = _copy(images, unfinished / "images", count)
    labels = labels_of(paths)
    _write_table(unfinished, paths)
    names = [path.relative_to(unfinished) for path in paths]
    lines = (f"{name} {label}\n" for name, label in zip(names, labels, strict=True))
    (unfinished / "train_list.txt").write_text("".join(lines))
    _write_hdf5(unfinished / "samples.hdf5", paths, labels)
    _write_lmdb(unfinished / "data.lmdb", paths, labels)
    unfinished.rename(folder)


def labels_of(paths: list[Path]) -> list[int]:
    """The class of each image: the place of its folder among all, by name."""
    classes = sorted({path.parent.name for path in paths})
    return [classes.index(path.parent.name) for path in paths]


def truths(folder: Path) -> dict[str, Truth]:
    """What snippets must have seen after one epoch, by the kind of their labels."""
    paths = files(folder / "images")
    with (folder / "all.csv").open(newline="") as file:
        angles = [float(row["angle"]) for row in csv.DictReader(file) if row["split"] == "train"]
    classes = Truth(len(paths), float(sum(labels_of(paths))))
    return {"category": classes, "torch": classes, "angle": Truth(len(angles), sum(angles))}


def _copy(images: Path, folder: Path, count: int) -> list[Path]:
    classes = sorted(path for path in images.iterdir() if path.is_dir())
    for room in classes:
        (folder / room.name).mkdir(parents=True)
        for path in sorted(room.iterdir())[: count // len(classes)]:
            os.link(path, folder / room.name / path.name)
    return files(folder)


def _write_table(folder: Path, paths: list[Path]) -> None:
    with (folder / "all.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "angle", "split"])
        for number, path in enumerate(paths):
            split = "test" if number % _HELD_BACK == 0 else "train"
            table.writerow([path.relative_to(folder), number % 41 / 40 - 0.5, split])


def _write_hdf5(path: Path, paths: list[Path], labels: list[int]) -> None:
    """As such scripts do: an array that grows, one image appended at a time."""
    side = decoded(paths[0]).shape
    with tables.open_file(str(path), "w") as file:
        images = file.create_earray(file.root, "training_samples", tables.UInt8Atom(), (0, *side))
        classes = file.create_earray(file.root, "training_labels", tables.Int64Atom(), (0,))
        for each, label in zip(paths, labels, strict=True):
            images.append(decoded(each)[None])
            classes.append(np.array([label]))


def _write_lmdb(path: Path, paths: list[Path], labels: list[int]) -> None:
    """As ml-pyxis lays it out."""
    with (
        lmdb.open(str(path), map_size=_MAP_BYTES, max_dbs=2) as environment,
        environment.begin(write=True) as transaction,
    ):
        samples, about = (environment.open_db(name, txn=transaction) for name in (DATA_DB, META_DB))
        for number, (each, label) in enumerate(zip(paths, labels, strict=True)):
            values = {"X": decoded(each), "y": np.array([label])}
            transaction.put(build_sample_key(number), encode_sample(values), db=samples)
        transaction.put(COUNT_KEY, b"%d" % len(paths), db=about)


# --- measuring


class WrongSnippetError(Exception):
    """A snippet that saw something else than its data."""


def environment(home: Path) -> dict[str, str]:
    """What a snippet and its daemon have: a place of their own to meet, and streamd as it is here."""
    places = {"XDG_RUNTIME_DIR": str(home), "STATE_DIRECTORY": str(home / "state")}
    return {**os.environ, **places, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


@contextmanager
def beside_a_daemon(scheme: Scheme, folder: Path) -> Iterator[Mapping[str, str]]:
    """A daemon that serves a scheme's config.yaml from `folder`; the environment of its trainers."""
    config = folder / "config.yaml"
    config.write_text(scheme.text("config.yaml"))
    with tempfile.TemporaryDirectory(prefix="streamd-m-") as home:
        names, log = environment(Path(home)), Path(home) / "log"
        with log.open("wb") as file:
            daemon = subprocess.Popen([run.STREAMD, "serve", "--config", config], stderr=file, env=names)
        try:
            while "daemon.ready" not in log.read_text():
                if daemon.poll() is not None:
                    raise WrongSnippetError(f"{scheme.name}: {log.read_text()}")
                time.sleep(LOOK_AGAIN_S)
            yield names
        finally:
            daemon.terminate()
            daemon.wait(run.STOP_S)


def run_snippet(scheme: Scheme, side: str, folder: Path, names: Mapping[str, str]) -> Outcome:
    """Runs one snippet to its end. Raises WrongSnippetError when it fails or has not seen its data twice."""
    python = python_of("keras_torch") if scheme.kind == "torch" else Path(sys.executable)
    truth = truths(folder)[scheme.kind]
    script = Path(__file__).with_name("migration_run.py")
    command: list[str | Path] = [python, script, scheme.folder / f"{side}.py", folder, scheme.kind, str(truth.images)]
    done = subprocess.run(command, env=names, capture_output=True, text=True, timeout=SNIPPET_S, check=False)
    if done.returncode:
        raise WrongSnippetError(f"{scheme.name}/{side}.py:\n{done.stderr}")
    outcome = msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
    if outcome.images != EPOCHS * truth.images or abs(outcome.labels / EPOCHS - truth.labels) > 1e-3 * truth.images:
        raise WrongSnippetError(f"{scheme.name}/{side}.py saw {outcome}, and there is {truth} an epoch")
    return outcome


def measure(scheme: Scheme, folder: Path) -> tuple[Run, Run]:
    """Theirs, then ours."""
    with tempfile.TemporaryDirectory(prefix="streamd-m-") as home:
        theirs = run_snippet(scheme, "theirs", folder, environment(Path(home)))
    with beside_a_daemon(scheme, folder) as names:
        ours = run_snippet(scheme, "ours", folder, names)
    return _run(theirs), _run(ours)


def measure_schemes(chosen: Sequence[Scheme], folder: Path, rounds: int) -> dict[str, Pair]:
    """All in turn, in every second round from the last to the first."""
    runs: dict[str, list[tuple[Run, Run]]] = {each.name: [] for each in chosen}
    for number in range(rounds):
        for scheme in chosen if number % 2 == 0 else reversed(chosen):
            theirs, ours = measure(scheme, folder)
            runs[scheme.name].append((theirs, ours))
            print(f"{scheme.name}: {theirs.rate:,.0f} and {ours.rate:,.0f} samples/s", flush=True)
    return {name: Pair(*(tuple(side) for side in zip(*several, strict=True))) for name, several in runs.items()}


def _run(outcome: Outcome) -> Run:
    return Run(outcome.images / EPOCHS / outcome.last_epoch_s, outcome.first_s)


# --- the page


def render(found: Migration) -> str:
    """The page."""
    where = found.machine
    rounds = len(next(iter(found.pairs.values())).ours)
    lines = [
        "# Coming from another loader",
        "",
        "One section a scheme: what people write, streamd beside it, what was measured, and what does not map.",
        "Each snippet stands in examples/migration/ and is run by a test. `model` is your compiled Keras model,",
        "`step` what you do with a batch; `streamd serve --config config.yaml` runs beside them, once, for all",
        "trainers. A subscription without `epochs=` never ends, so `fit` alone decides how many epochs there are.",
        "",
        f"Measured on {where.date} at commit {where.commit} on {where.cores} cores, Python {where.python}, by",
        f"`scripts/docs migration`: {found.images:,} JPEGs of 128x128 from memory, batches of 32, two epochs of a",
        "model that does next to nothing, so that loading is all that counts; medians of the second epoch over",
        f"{rounds} rounds in turn. With streamd a second trainer decodes nothing again; elsewhere it begins anew.",
        "",
        _overview(found),
        "",
        *(line for scheme in SCHEMES for line in _section(scheme, found.pairs.get(scheme.name))),
    ]
    return "\n".join(lines)


def _overview(found: Migration) -> str:
    rows = []
    for scheme in SCHEMES:
        if pair := found.pairs.get(scheme.name):
            rates = (f"{median_run(side).rate:,.0f}" for side in (pair.theirs, pair.ours))
            rows.append((f"[{_title(scheme)}](#{_anchor(_title(scheme))})", *rates, f"**{pair.times:.1f}**"))
    return Table(("samples a second", "theirs", "streamd", "times"), tuple(rows)).render()


def _title(scheme: Scheme) -> str:
    return scheme.text("notes.md").partition("\n")[0].removeprefix("# ")


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _describe_measurement(pair: Pair) -> str:
    theirs, ours = median_run(pair.theirs), median_run(pair.ours)
    return (
        f"**Measured**: {theirs.rate:,.0f} samples a second, the first step after {theirs.first_s:.1f} s; with streamd "
        f"{ours.rate:,.0f}, after {ours.first_s:.1f} s. That is {pair.times:.1f} times the rate."
    )


def _section(scheme: Scheme, pair: Pair | None) -> list[str]:
    before, after = scheme.text("notes.md").split(_PART)
    _, _, told = before.partition("\n")
    measured = [] if pair is None else [_describe_measurement(pair), ""]
    return [
        f"## {_title(scheme)}", "", told.strip(), "",
        "```python", scheme.text("theirs.py"), "```", "",
        "With streamd, config.yaml:", "",
        "```yaml", scheme.text("config.yaml"), "```", "",
        "and the trainer:", "",
        "```python", scheme.text("ours.py"), "```", "",
        *measured, after.strip(), "",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--schemes", help="only these, by their folders' names, kept among those of the last run")
    parser.add_argument("--report-only", action="store_true", help="writes the page of the last figures")
    options = parser.parse_args()
    if options.report_only:
        PAGE.write_text(render(load(DEFAULT_RESULTS)))
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    make_data.make(make_data.DEFAULT_FOLDER)
    folder = make_data.DATA / f"migration-{options.images}"
    make_forms(make_data.DEFAULT_FOLDER, folder, options.images)
    chosen = [each for each in SCHEMES if options.schemes is None or each.name in options.schemes.split(",")]
    found = measure_schemes(chosen, folder, options.rounds)
    before = load(DEFAULT_RESULTS).pairs if options.schemes and DEFAULT_RESULTS.exists() else {}
    save(Migration(run.machine(), options.images, {**before, **found}), DEFAULT_RESULTS)
    PAGE.write_text(render(load(DEFAULT_RESULTS)))


if __name__ == "__main__":
    main()
