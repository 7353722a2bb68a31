"""Measures the snippets of the migration page, theirs and streamd's in turn, and writes docs/migration.md.

    python benchmarks/migration.py [--rounds 3] [--images 4000] [--cores 2] [--schemes a,b]

Each snippet is run as its user would: a process of its own, on files; streamd's beside a daemon that has listed them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import make_data
import migration_data
import msgspec
import run
from compare_environments import python_of
from first_day_page import served
from migration_page import PAGE, SCHEMES, Migration, Pair, Run, Scheme
from migration_run import EPOCHS, Outcome

ROOT: Final = Path(__file__).resolve().parents[1]
SNIPPET_S: Final = 300.0


class WrongSnippetError(Exception):
    """A snippet that saw something else than its data."""


def environment(home: Path) -> dict[str, str]:
    """What a snippet and its daemon have: a place of their own to meet, and streamd as it is here."""
    places = {"XDG_RUNTIME_DIR": str(home), "STATE_DIRECTORY": str(home / "state")}
    return {**os.environ, **places, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


@contextmanager
def beside_a_daemon(scheme: Scheme, folder: Path) -> Iterator[Mapping[str, str]]:
    """A daemon that serves a scheme's config.yaml from `folder`; the environment of its trainers."""
    with tempfile.TemporaryDirectory(prefix="streamd-m-") as home:
        config = folder / "config.yaml"
        config.write_text(scheme.text("config.yaml"))
        names = environment(Path(home))
        with served(config, names) as refusal:
            if refusal is not None:
                raise WrongSnippetError(f"{scheme.name}: {refusal}")
            yield names


def run_snippet(scheme: Scheme, side: str, folder: Path, names: Mapping[str, str]) -> Outcome:
    """Runs one snippet to its end. Raises WrongSnippetError when it fails or has not seen its data twice."""
    python = python_of("keras_torch") if scheme.kind == "torch" else Path(sys.executable)
    truth = migration_data.truths(folder)[scheme.kind]
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


def _run(outcome: Outcome) -> Run:
    return Run(outcome.images / EPOCHS / outcome.last_epoch_s, outcome.first_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--schemes", help="only these, by their folders' names, kept among those of the last run")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    make_data.make(make_data.DEFAULT_FOLDER)
    folder = make_data.DATA / f"migration-{options.images}"
    migration_data.make(make_data.DEFAULT_FOLDER, folder, options.images)
    chosen = [each for each in SCHEMES if options.schemes is None or each.name in options.schemes.split(",")]
    runs: dict[str, list[tuple[Run, Run]]] = {each.name: [] for each in chosen}
    for number in range(options.rounds):
        for scheme in chosen if number % 2 == 0 else reversed(chosen):
            runs[scheme.name].append(measure(scheme, folder))
            theirs, ours = runs[scheme.name][-1]
            print(f"{scheme.name}: {theirs.rate:,.0f} and {ours.rate:,.0f} samples/s", flush=True)
    found = {name: Pair(*(tuple(side) for side in zip(*several, strict=True))) for name, several in runs.items()}
    before = PAGE.load(PAGE.results).pairs if options.schemes and PAGE.results.exists() else {}
    PAGE.save(Migration(run.machine(), options.images, {**before, **found}), PAGE.results)


if __name__ == "__main__":
    main()
