"""A pytest plugin: with CI set in the environment a skipped test is a failure, for nobody reads skips there.

Loaded by scripts/test. The exception is a skip whose reason contains "GPU": no machine of ours promises one.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


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
