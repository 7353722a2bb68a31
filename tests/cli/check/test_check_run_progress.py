"""How far it has come: a line now and then in a log, a bar at a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from streamd.cli.check.run import CheckBar, CheckLines


def test_a_log_gets_a_line_each_ten_seconds_with_the_time_to_go() -> None:
    now_s = [100.0]
    said: list[str] = []
    with CheckLines(said.append, clock=lambda: now_s[0]) as shown:
        shown.start_reading(4000)
        for _ in range(4):
            now_s[0] += 6
            shown.advance_reading(500)
    assert said == ["read 1,000 of 4,000 files, about 36 s to go", "read 2,000 of 4,000 files, about 24 s to go"]


def test_a_quick_check_says_nothing_to_a_log() -> None:
    said: list[str] = []
    with CheckLines(said.append, clock=lambda: 0.0) as shown:
        shown.update_listing("train", 5)
        shown.start_reading(5)
        shown.advance_reading(5)
    assert said == []


def test_a_long_listing_is_told_with_its_stream() -> None:
    now_s = [0.0]
    said: list[str] = []
    with CheckLines(said.append, clock=lambda: now_s[0]) as shown:
        now_s[0] = 11
        shown.update_listing("train", 81_920)
    assert said == ["listing train: 81,920 files so far"]


def test_a_bar_shows_how_many_files_are_read() -> None:
    screen = StringIO()
    with CheckBar(Console(file=screen, force_terminal=True, width=80)) as shown:
        shown.update_listing("train", 7)
        shown.start_reading(10)
        shown.advance_reading(4)
    assert "reading" in screen.getvalue()
    assert "4/10" in screen.getvalue()
