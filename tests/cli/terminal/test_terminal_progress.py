"""What every long command shows of its listing, and where."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console

from streamd.cli.terminal.progress import ListingBar, ListingLines, create_progress_display


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_listing_is_told_to_a_log_when_ten_seconds_have_gone_by() -> None:
    now_s, said = [0.0], list[str]()
    with ListingLines(said.append, clock=lambda: now_s[0]) as shown:
        for now_s[0] in (9.0, 10.0, 19.0, 20.0):
            shown.update_listing("train", int(now_s[0]) * 1000)
    assert said == ["listing train: 10,000 files so far", "listing train: 20,000 files so far"]


def test_a_bar_names_the_stream_that_is_listed_and_is_gone_at_the_end() -> None:
    screen = StringIO()
    with ListingBar(Console(file=screen, force_terminal=True, width=80)) as shown:
        shown.update_listing("train", 7)
    assert "listing train" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")


def test_a_terminal_gets_the_bar_and_a_log_gets_lines_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(create_progress_display(ListingBar, ListingLines), ListingBar)
    log = StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    shown = create_progress_display(ListingBar, ListingLines)
    assert isinstance(shown, ListingLines)
    shown._write_line("so far")
    assert log.getvalue() == "so far\n"
