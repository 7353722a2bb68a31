"""Puts a fault into a copy of the package, and sets the checks on it in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hunt import CHECKS, Find
from line_faults import Fault

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "streamd"
LIMIT_S: Final = 240.0  # a check that a fault keeps from ending has found it, but must not keep the tests


@dataclass(frozen=True, slots=True)
class Effort:
    """Runs of each check. A check ends with its first find; with `first`, so do all."""

    simulator: int
    random: int
    states: int
    talk: int
    first: bool = False

    def arguments(self) -> list[str]:
        runs = [f"--{check}={getattr(self, check)}" for check in CHECKS]
        return [*runs, "--first"] if self.first else runs


QUICK: Final = Effort(simulator=60, random=60, states=60, talk=60, first=True)
WHOLE: Final = Effort(simulator=150, random=100, states=120, talk=120, first=True)


PASS_TESTS: Final = (ROOT / "tests/frameworks/test_passes.py", ROOT / "tests/client/test_client_ranks.py")


def places_of(fault: Fault) -> list[int]:
    """Where the fault's line stands in its file: the numbers of all lines that read so, from 0."""
    lines = (PACKAGE / fault.file).read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines) if line.strip() == fault.old]


def copied(place: Path, fault: Fault | None) -> Path:
    """A copy of the package below `place`, with the fault in it, and compiled but for the file that has it."""
    half_written = shutil.ignore_patterns("*.pyc.*")
    shutil.copytree(PACKAGE, place / "streamd", ignore=half_written)
    if fault is not None:
        (number,) = places_of(fault)
        target = place / "streamd" / fault.file
        lines = target.read_text(encoding="utf-8").splitlines()
        lines[number] = lines[number].replace(fault.old, fault.new)
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


def hunted(place: Path, effort: Effort) -> list[Find]:
    """What the checks find in the package at `place`."""
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONHASHSEED": "0"}
    hunter = Path(__file__).with_name("hunt.py")
    command = [sys.executable, "-B", str(hunter), f"--package={place}", *effort.arguments()]
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the checks themselves failed: {done.stderr[-2000:]}")
    return [Find(**find) for find in json.loads(done.stdout.splitlines()[-1])]


def list_failed_tests(place: Path, tests: str) -> list[str]:
    """What pytest says of these tests of passes and ranks, with the package at `place`; [] if all pass."""
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    selected = ["-m", "not long and not train and not trainers", "-k", tests]
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout=30", f"--rootdir={ROOT}"]
    command = [sys.executable, "-m", "pytest", *options, "-c", str(ROOT / "pyproject.toml"), *selected, *PASS_TESTS]
    done = subprocess.run(
        [str(word) for word in command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode not in {0, 1}:  # no test was selected, or pytest could not run
        raise RuntimeError(f"the tests themselves failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
