"""A pytest plugin, loaded by scripts/test: reads no file that `-m` leaves out whole, and lets no skip pass in CI.

Importing every test file takes a process some 20 s, and scripts/test starts two dozen of them, most for a few files.

With CI set in the environment a skipped test is a failure, for nobody reads skips there. The exception is a skip whose
reason contains "GPU": no machine of ours promises one.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

_MARK = re.compile(r"\bmark\.(\w+)")
_MARKS_OF_ALL = re.compile(r"^pytestmark = .*", re.MULTILINE)


def can_select(expression: str, source: str) -> bool:
    """Whether `-m expression` may take any of the tests in a file, by the names of the marks that its text has.

    A test has the marks of its whole file, and any of the others.
    """
    of_all = {name for line in _MARKS_OF_ALL.findall(source) for name in _MARK.findall(line)}
    selects = Expression.compile(expression).evaluate
    # A mark that the expression does not name cannot change its value.
    others = sorted(name for name in set(_MARK.findall(source)) - of_all if re.search(rf"\b{name}\b", expression))
    chosen = (of_all.union(more) for size in range(len(others) + 1) for more in itertools.combinations(others, size))
    return any(selects(lambda name, /, marks=marks, **_: name in marks) for marks in chosen)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a file none of whose tests `-m` can take; None leaves the decision to pytest."""
    expression: str = config.option.markexpr
    if not expression or collection_path.suffix != ".py" or not collection_path.is_file():
        return None
    return None if can_select(expression, collection_path.read_text(encoding="utf-8")) else True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses a quick file that imports Keras: each process of a part would take 6 s and a gigabyte for it."""
    if not session.config.option.markexpr or not session.items or "keras" not in sys.modules:
        return
    if not any(map(_may_train, session.items)):
        raise pytest.UsageError("a file of this part imports keras: mark its tests `train`, or import it inside")


def _may_train(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("train", "trainers", "bench", "package", "ray"))


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip into a failure; an expected failure is reported as skipped too, and is left alone."""
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if "GPU" not in reason:
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI counts as a failure: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report
