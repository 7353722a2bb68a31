"""Runs test modules in an environment that has a library, and of the tests' own tools pytest alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
LIMIT_S: Final = 240.0
# The tests' own configuration names plugins that are not there.
_OPTIONS: Final = f"-q --noconftest -c {os.devnull} --rootdir={TESTS.parent} -p no:cacheprovider".split()
_MARKS: Final = "train\ntrainers\nlong\ntimeout"


def run_tests_in(python: Path, modules: Iterable[Path], *options: str, **environment: str) -> str:
    """Returns the last line of what pytest says of these modules. Fails when one of their tests does."""
    warnings = ["-W", "error", "-W", "ignore:__array__ implementation:DeprecationWarning"]  # of Keras, beside NumPy 2
    done = subprocess.run(
        [python, "-m", "pytest", *_OPTIONS, "-o", f"markers={_MARKS}", *warnings, *options, *modules],
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS, TESTS.parent / "benchmarks"))),
        },
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert "passed" in last
    assert "skipped" not in last
    return last
