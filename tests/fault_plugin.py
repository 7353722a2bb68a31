"""A pytest plugin: writes docs/evidence/faults.md from what the fault tests did, for `scripts/test --faults --report`.

A row is a line of the table; tests say which they provoke by the mark `fault(row, what, departs="")`, and what they saw
by `record_property("saw", sentence)`. The page is written when all tests have run, whatever came of them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

# Every fault that may befall the daemon and its trainers, whether anything provokes it or not.
ROWS: Final = {
    "1": "none: the yardstick",
    "2": "a group of ranks",
    "3": "a group resized at a step's end",
    "4": "daemon killed",
    "5": "daemon killed with its workers",
    "6": "daemon killed between writing and sending",
    "7": "trainer killed and resumed",
    "8": "trainer killed with mapped slots",
    "9": "somebody stopped and continued",
    "10": "trainer busy",
    "11": "trainer stopped for ever",
    "12": "trainer ten times slower",
    "13": "packets lost, late, out of order",
    "14": "network gone for 45 s",
    "15": "network gone one way",
    "16": "TCP connections killed",
    "17": "a slow network, large batches",
    "18": "two consumers of one name",
    "19": "old frames replayed",
    "20": "an acknowledgement after its lease",
    "21": "daemon killed within a write to its ledger",
    "22": "disk full",
    "23": "damaged and odd images",
    "24": "decompression bombs",
    "25": "other things posing as images",
    "26": "workers killed, crashed, out of memory, hung",
    "27": "files changed, gone, unreadable",
    "28": "a plugin that loosens the decoder",
    "29": "every EXIF orientation",
    "30": "the same bytes, whatever differs",
    "31": "tokens at every edge, and false ones",
    "32": "endless frames",
    "33": "malformed frames",
    "34": "floods of connections",
    "35": "floods of subscriptions",
    "36": "lies about credit",
    "37": "a client that writes to its mapping",
    "38": "another user on the machine",
    "39": "wrong keys",
    "40": "two daemons in one place",
    "41": "the clock set",
    "42": "the event loop blocked",
    "43": "ended and reloaded under load",
    "44": "descriptors used up",
    "45": "a fork after connecting",
    "46": "batches fetched ahead at a checkpoint",
    "47": "client and daemon of other versions",
    "48": "hours of all that",
    "49": "the data away for a while",
    "cut": "connection cut",
}
_NETWORK: Final = "needs the TCP listener, which is not built yet"
_NOT_PLANNED: Final = "not planned: no group shares batches by a ledger"
WHY_NOT: Final = {
    **dict.fromkeys(["13", "14", "15", "16", "17", "39"], _NETWORK),
    **dict.fromkeys(["18", "20", "21"], _NOT_PLANNED),
    **dict.fromkeys(["32", "33", "34", "35", "36", "37", "38"], "hostile clients are another issue's"),
    "24": "hostile images are another issue's",
    "47": "there is one version so far",
    "48": "run by scripts/bench soak, which writes its own page",
}
_ABOUT: Final = (
    "Written by `scripts/test --faults --report`, never by hand. Trainers are processes that write down every batch "
    "that they take; an oracle that lists and decodes the data by itself compares what they wrote with the plan and "
    "the files (`tests/faults/oracle.py`). Rows are those of `tests/fault_plugin.py`; a seed runs again with "
    "`scripts/test --faults --seed N`."
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One test's word on one row; or that of several tests that did the same, with other parameters."""

    row: str
    what: str
    departs: str
    outcome: str
    seconds: float
    saw: str


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-report", type=Path, metavar="PAGE", help="write what came of the fault tests there")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Marks travel with the report, as properties do, to the process that writes the page."""
    report = yield
    for mark in item.iter_markers("fault"):
        report.user_properties.append(("fault", [*mark.args, mark.kwargs.get("departs", "")]))
    return report


class Reporter:
    """Collects the reports and writes the page at the end."""

    def __init__(self, page: Path) -> None:
        self._page = page
        self._faults: list[Fault] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self._faults += faults_of(report)

    def pytest_sessionfinish(self) -> None:
        self._page.write_text(page_of(self._faults, seed=os.environ.get("FAULTS_SEED", "0"), commit=commit()))


def pytest_configure(config: pytest.Config) -> None:
    page = config.getoption("--fault-report")
    if page is not None and not hasattr(config, "workerinput"):  # a helper process of xdist writes nothing
        config.pluginmanager.register(Reporter(page), "fault-reporter")


def faults_of(report: pytest.TestReport) -> Iterable[Fault]:
    """One for each row that the test is marked with."""
    saw = "; ".join(str(value) for name, value in report.user_properties if name == "saw")
    for name, value in report.user_properties:
        if name == "fault" and isinstance(value, list):
            row, what, departs = map(str, value)
            yield Fault(row, what, departs, report.outcome, report.duration, saw)


def together(faults: Iterable[Fault]) -> list[Fault]:
    """One for each row and what was done: what failed once failed."""
    same: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        same.setdefault((fault.row, fault.what), []).append(fault)
    return [
        replace(
            each[0],
            outcome=next((one.outcome for one in each if one.outcome != "passed"), "passed"),
            seconds=sum(one.seconds for one in each),
            saw="; ".join(dict.fromkeys(one.saw for one in each if one.saw)),
        )
        for each in same.values()
    ]


def commit() -> str:
    """The commit that was tested, marked when files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],  # noqa: S607 - the git of whoever develops
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def page_of(faults: Iterable[Fault], *, seed: str, commit: str) -> str:
    """The page: a line for each thing that was done about a row, and one for each row that nothing was done about."""
    faults = together(faults)
    passed = sum(fault.outcome == "passed" for fault in faults)
    lines = [
        "# What was done to it, and what came of it",
        "",
        _ABOUT,
        "",
        f"{passed} of {len(faults)} passed, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| row | fault | what was done | result | seconds | seed | commit | what was seen | departs from the row |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, title in ROWS.items():
        ran = [_line(title, fault, seed, commit) for fault in faults if fault.row == row]
        lines += ran or [_not_run(row, title)]
    return "\n".join(lines) + "\n"


def _line(title: str, fault: Fault, seed: str, commit: str) -> str:
    run = (fault.outcome, f"{fault.seconds:.1f}", seed, commit)
    return _cells(fault.row, title, fault.what, *run, fault.saw, fault.departs)


def _not_run(row: str, title: str) -> str:
    return _cells(row, title, "", "not run", "", "", "", "", WHY_NOT.get(row, "no test was among those that ran"))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
