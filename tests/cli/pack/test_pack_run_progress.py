"""How far a pack has come: a line now and then in a log, a bar at a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from streamd.cli.pack.run import PackBar, PackLines


def test_a_log_gets_a_line_each_ten_seconds_with_rate_and_time_to_go() -> None:
    now_s, said = [100.0], list[str]()
    with PackLines(said.append, clock=lambda: now_s[0]) as shown:
        shown.start_packing(4000, 0, 1 << 20)
        for _ in range(4):
            now_s[0] += 6
            shown.advance_packing(600)
    assert said == [
        "packed 1,200 of 4,000 samples, 100 samples/s, 100 MiB/s, about 28 s to go",
        "packed 2,400 of 4,000 samples, 100 samples/s, 100 MiB/s, about 16 s to go",
    ]


def test_what_an_earlier_run_did_counts_as_done_and_not_for_the_rate() -> None:
    now_s, said = [100.0], list[str]()
    with PackLines(said.append, clock=lambda: now_s[0]) as shown:
        shown.start_packing(4000, 1000, 1 << 20)
        now_s[0] += 10
        shown.advance_packing(1000)
    assert said == [
        "going on behind 1,000 of 4,000 samples",
        "packed 2,000 of 4,000 samples, 100 samples/s, 100 MiB/s, about 20 s to go",
    ]


def test_listing_and_reading_back_are_told_too() -> None:
    now_s, said = [0.0], list[str]()
    with PackLines(said.append, clock=lambda: now_s[0]) as shown:
        now_s[0] = 11
        shown.update_listing("train", 81_920)
        shown.start_verifying(300)
        now_s[0] = 21
        shown.advance_verifying(100)
        shown.print_note("b.png: an empty file")
    assert said == [
        "listing train: 81,920 files so far",
        "read back 100 of 300 samples, 10 samples/s, 0 MiB/s, about 20 s to go",
        "b.png: an empty file",
    ]


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end_and_notes_that_stay() -> None:
    screen = StringIO()
    with PackBar(Console(file=screen, force_terminal=True, width=120)) as shown:
        shown.update_listing("train", 5)
        shown.start_packing(10, 4, 3072)
        shown.advance_packing(6)
        shown.print_note("b.png: [red] is no markup")
        shown.start_verifying(10)
        shown.advance_verifying(10)
    text = screen.getvalue()
    assert "b.png: [red] is no markup" in text
    assert "10/10" in text
    assert text.endswith("\x1b[2K")
