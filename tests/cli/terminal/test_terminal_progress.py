"""The progress that long commands show on a terminal and in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from streamd.cli.terminal import Phase, ProgressDisplay, create_progress_display

PACKING = Phase("packing", "packed", "sample", row_bytes=1 << 20)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Log:
    """Lines at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.said: list[str] = []
        self.shown = ProgressDisplay(write_line=self.said.append, clock=lambda: self.now_s)

    def advance(self, seconds: float, items: int) -> None:
        self.now_s += seconds
        self.shown.advance(items)


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_listing_is_logged_every_ten_seconds(log: Log) -> None:
    for log.now_s in (109.0, 110.0, 119.0, 120.0):
        log.shown.update_listing("train", int(log.now_s) * 1000)
    assert log.said == ["listing train: 110,000 files so far", "listing train: 120,000 files so far"]


def test_reading_is_logged_every_ten_seconds_with_the_time_left(log: Log) -> None:
    log.shown.start_phase(4000)
    for _ in range(4):
        log.advance(6, 500)
    assert log.said == ["read 1,000 of 4,000 files, about 36 s to go", "read 2,000 of 4,000 files, about 24 s to go"]


def test_a_phase_of_rows_is_logged_with_its_rate(log: Log) -> None:
    log.shown.start_phase(4000, 0, PACKING)
    for _ in range(2):
        log.advance(6, 600)
    assert log.said == ["packed 1,200 of 4,000 samples, 100 samples/s, 100 MiB/s, about 28 s to go"]


def test_items_of_an_earlier_run_count_as_done_but_not_for_the_rate(log: Log) -> None:
    log.shown.start_phase(4000, 1000, PACKING)
    log.advance(10, 1000)
    assert log.said == [
        "continuing after 1,000 of 4,000 samples",
        "packed 2,000 of 4,000 samples, 100 samples/s, 100 MiB/s, about 20 s to go",
    ]


def test_a_quick_command_logs_only_its_notes(log: Log) -> None:
    log.shown.update_listing("train", 5)
    log.shown.start_phase(5)
    log.shown.advance(5)
    log.shown.print_note("b.png: an empty file")
    assert log.said == ["b.png: an empty file"]


def show_listing(shown: ProgressDisplay) -> None:
    shown.update_listing("train", 7)


def show_reading(shown: ProgressDisplay) -> None:
    shown.start_phase(10)
    shown.advance(4)


def show_packing(shown: ProgressDisplay) -> None:
    shown.start_phase(12, 4, PACKING)
    shown.advance(8)
    shown.print_note("b.png: [red] is no markup")


@pytest.mark.parametrize(
    ("show", "parts"),
    [
        (show_listing, ["listing train"]),
        (show_reading, ["reading", "4/10"]),
        (show_packing, ["packing, ", "12/12", "b.png: [red] is no markup"]),
    ],
)
def test_a_bar_names_the_phase_and_is_erased_at_the_end(
    show: Callable[[ProgressDisplay], None], parts: list[str]
) -> None:
    screen = StringIO()
    with ProgressDisplay(Console(file=screen, force_terminal=True, width=120)) as shown:
        show(shown)
    assert [part for part in parts if part not in screen.getvalue()] == []
    assert screen.getvalue().endswith("\x1b[2K")


def test_a_terminal_gets_the_bar_and_a_log_gets_lines_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for screen, said in ((Terminal(), "\x1b["), (StringIO(), "so far\n")):
        monkeypatch.setattr(sys, "stderr", screen)
        with create_progress_display() as shown:
            shown.start_phase(10)
            shown.print_note("so far")
        assert screen.getvalue().startswith(said)
        assert ("0/10" in screen.getvalue()) is isinstance(screen, Terminal)


def test_a_display_for_nobody_counts_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as shown:
        shown.start_phase(12, 4, PACKING)
        shown.advance(8)
        shown.print_note("b.png: an empty file")
    assert (shown.done, shown.total, *capsys.readouterr()) == (12, 12, "", "")
