"""What `streamd status` prints, and what `streamd top` draws at a time."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from streamd.cli.status.table import (
    TopFrame,
    build_status_table,
    build_top_frame,
    crop_to_window,
    format_rate,
    format_time_span,
)
from streamd.core.epoch_timing import BOTTLENECK_ADVICE, BatchSupply, Bottleneck, EpochBottleneck, EpochTiming
from streamd.core.status import (
    DaemonStatus,
    ImageStatus,
    SessionState,
    SessionStatus,
    StreamStatus,
    suggest_remedy_for_apart_trainers,
)

TRAIN = StreamStatus("train", 1281167, 256, 5005, 3, 41.2, 31640.2, 1.02, 3, 12, 0)
TRAINER = SessionStatus(7, "train", 1, 4, 3, None, 412, 1250, 8, 2, "reading", 10522.0, 99.0, name="lr-0.01", pid=77,
    batch_size=64, own_step=412, own_steps=1250)  # fmt: skip
DAEMON = DaemonStatus(
    "0.1.0", 4711, "ipc:///run/streamd/streamd.sock", 11565.3, 8, 0.734, 1 << 30, 432 << 20, draining=False,
    streams=(TRAIN,), sessions=(TRAINER,),
)  # fmt: skip


def shown(seen: DaemonStatus | TopFrame, *, colour: bool = False) -> str:
    """What `status` prints of a daemon's status, or `top` in a frame, 80 columns wide."""
    out = io.StringIO()
    console = Console(
        file=out, width=80, highlight=False, force_terminal=colour, color_system="standard" if colour else None,
        no_color=not colour,  # whatever NO_COLOR says where the tests run
    )  # fmt: skip
    console.print(build_status_table(seen) if isinstance(seen, DaemonStatus) else build_top_frame(seen))
    return out.getvalue()


def with_train(**changes: Any) -> DaemonStatus:
    return replace(DAEMON, streams=(replace(TRAIN, **changes),))


def words_of(text: str, start: str) -> list[str]:
    """The words of the first line that begins with `start`."""
    return next(line.split() for line in text.splitlines() if line.startswith(start))


def test_status_and_top_show_the_images_of_each_stream() -> None:
    images = (ImageStatus("photo", (512, 512, 3), "RGB", "uint8"), ImageStatus("mask", (512, 512), "index", "uint16"))
    told = "train: photo 512x512x3 RGB, mask 512x512 index uint16"
    assert told in shown(with_train(images=images)).splitlines()
    assert told in shown(frame(streams=(replace(TOP_TRAIN, images=images),))).splitlines()


def test_status_begins_with_lines_about_the_daemon() -> None:
    assert shown(DAEMON).splitlines()[:3] == [
        "streamd 0.1.0 at ipc:///run/streamd/streamd.sock",
        "pid 4711, up 3 h 12 min; 8 workers 73% busy; memory 432 MiB of 1 GiB (42%)",
        "rates and shares are those over the last 10 s",
    ]


def test_status_has_a_line_for_each_stream_and_trainer() -> None:
    text = shown(replace(DAEMON, sessions=(replace(TRAINER, stream="x"),)))
    assert words_of(text, "train ") == [
        "train", "1,281,167", "5,005", "3", "41", "31,640", "1.02", "3", "12", "ok",
    ]  # fmt: skip
    assert words_of(text, "lr-0.01 ") == ["lr-0.01", "x", "3", "412/1,250", "10,522", "reads", "2/8"]
    assert words_of(text, "pid 77 ") == ["pid", "77", "batch", "64", "━━╸"]
    assert words_of(text, "        rank ") == ["rank", "1", "of", "4"]


def test_sessions_of_one_process_are_grouped_under_one_name() -> None:
    own = [replace(TRAINER, session=number, world=1, rank=0) for number in range(3)]
    sessions = (replace(own[0], stream="validation"), own[1], replace(own[2], pid=78, name="lr-0.1"))
    lines = [line.split() for line in shown(replace(DAEMON, sessions=sessions)).splitlines()]
    named = [(line[0], line[1]) for line in lines if len(line) > 1 and line[0].startswith(("lr-", "validation"))]
    assert named == [("lr-0.01", "train"), ("validation", "3"), ("lr-0.1", "train")]


@pytest.mark.parametrize(("verdict", "colour"), [("none", ""), ("disk", "33")])
def test_status_shows_where_the_time_of_the_last_epoch_went(verdict: EpochBottleneck, colour: str) -> None:
    timing = EpochTiming(2, 43.0, 2.0, verdict, BatchSupply(reading_s=3.0, working_s=1.0))
    late = replace(TRAINER, session=3, rank=2, last_epoch=timing)
    status = replace(DAEMON, sessions=(late, TRAINER))
    text = " ".join(shown(status).split())
    assert text.endswith(f"lr-0.01, train, rank 2 of 4: {timing.summary_text}")
    assert "rank 1 of 4:" not in text
    assert (f"\x1b[{colour}mlr-0.01, train, rank" in shown(status, colour=True)) == bool(colour)


def test_status_and_top_say_when_there_are_no_trainers() -> None:
    text = shown(replace(DAEMON, streams=(replace(TRAIN, decodes_per_batch=None),), sessions=()))
    assert words_of(text, "train ")[6] == "-"
    assert text.endswith("no trainers\n")
    assert shown(frame(sessions=())).endswith("no trainers\n")


@pytest.mark.parametrize(
    ("doing", "words"),
    [
        ("gathering", "waits for others"),
        ("waiting", "waits for batch"),
        ("reading", "reads"),
        ("resting", "rests"),
        ("finished", "has finished"),
    ],
)
def test_the_state_of_a_trainer_is_shown_in_words(doing: SessionState, words: str) -> None:
    assert f" {words} " in shown(replace(DAEMON, sessions=(replace(TRAINER, doing=doing),)))


def test_a_finished_trainer_is_shown_at_the_end_of_its_last_epoch() -> None:
    ended = replace(TRAINER, doing="finished", epoch=5, epochs=5, step=0, own_step=0)
    fields = words_of(shown(replace(DAEMON, sessions=(ended,))), "lr-0.01 ")
    assert fields[2:4] == ["4", "1,250/1,250"]


def test_trainers_are_ordered_by_stream_and_rank() -> None:
    ranks = (3, 1, 0, 2)
    places = [(stream, rank) for stream in "ba" for rank in ranks]
    sessions = tuple(
        replace(TRAINER, session=number, stream=stream, rank=rank, pid=0)
        for number, (stream, rank) in enumerate(places)
    )
    text = shown(replace(DAEMON, sessions=sessions))
    assert re.findall(r"rank (\d) of", text) == ["0", "1", "2", "3"] * 2
    assert re.findall(r"^lr-0.01 +(\w) ", text, re.MULTILINE) == ["a"] * 4 + ["b"] * 4


@pytest.mark.parametrize(("decodes", "code"), [(1.0, "32"), (1.1, "32"), (1.2, "33"), (1.5, "31"), (4.0, "31")])
def test_decodes_a_batch_turn_from_green_to_red(decodes: float, code: str) -> None:
    text = shown(with_train(decodes_per_batch=decodes), colour=True)
    assert f"\x1b[{code}m" in text
    assert f"{decodes:.2f}" in text


def test_remedies_and_troubles_are_sentences_below_the_table() -> None:
    apart = replace(
        TRAIN, decodes_per_batch=2.4, remedy=suggest_remedy_for_apart_trainers(2.4, are_apart=True), receipts_bad=2
    )
    status = replace(DAEMON, streams=(apart,), draining=True)
    text = " ".join(shown(status).split())
    assert "stream 'train': each batch is decoded 2.4 times" in text
    assert 'start={"together": K}' in text
    assert "2 NOT OK" in text
    for trouble in status.all_troubles:
        assert f"trouble: {trouble}" in text


def test_troubles_come_before_everything_else() -> None:
    assert shown(replace(DAEMON, reload_failed=True)).startswith("trouble: the last reload failed")


def test_a_daemon_without_trouble_gets_no_advice() -> None:
    assert "trouble" not in shown(DAEMON)
    assert "remedy" not in shown(DAEMON)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (with_train(decodes_per_batch=None, decodes_unknown="known later"), "decodes a batch: known later"),
        (with_train(shuffle_score=0.25, poorly_mixed="batches are mixed badly"), "'train': batches are mixed badly"),
        (with_train(stopped="a\x1b[2J.jpg is bad"), "a\\x1b[2J.jpg is bad"),
        (with_train(name="[red]"), "[red]"),
        (replace(DAEMON, sessions=(replace(TRAINER, name="\x1b[2Jgone"),)), "[2Jgone"),
        (replace(DAEMON, worker_deaths=3), "8 workers 73% busy, 3 replaced; "),
    ],
    ids=["an unknown figure", "a poor mix", "a file", "a stream's name", "a trainer's name", "replaced workers"],
)
def test_status_shows_text_without_markup_and_escape_sequences(status: DaemonStatus, said: str) -> None:
    text = shown(status)
    assert said in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3600, "1 h 0 min"), (11565.3, "3 h 12 min"),
        (90_061, "1 d 1 h"), (8_640_000, "100 d 0 h"),
    ],
)  # fmt: skip
def test_a_time_span_is_shown_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert format_time_span(seconds) == words


@pytest.mark.parametrize(("per_s", "words"), [(0, "0"), (0.04, "0.0"), (5.25, "5.2"), (10, "10"), (31640.2, "31,640")])
def test_a_slow_rate_shows_a_decimal(per_s: float, words: str) -> None:
    assert format_rate(per_s) == words


def test_a_time_span_for_a_narrow_column_is_shown_in_its_largest_unit() -> None:
    assert format_time_span(11565.3, units=1) == "3 h"


# --- streamd top

TOP_TRAIN = StreamStatus("train", 1000, 8, 125, 2, 10.0, 80.0, 1.25, 3, 4, 0, shuffle_score=0.97)
TOP_TRAINER = SessionStatus(
    1, "x", 0, 2, 3, None, 40, 125, 16, 5, "reading", 90.0, 60.0, EpochTiming(2, 43.0, 2.0, "disk", BatchSupply()),
    name="lr-0.01", pid=77, batch_size=8, own_step=40, own_steps=125, lag_steps=7, left_s=125.0,
)  # fmt: skip
TOP_STATUS = DaemonStatus(
    "1", 7, "ipc:///s", 60.0, 4, 0.5, 1 << 30, 1 << 20, draining=False, streams=(TOP_TRAIN,), sessions=(TOP_TRAINER,),
    reading_fraction=0.12, decoding_fraction=0.81, waiting_trainers=0.6, slots=58, bottleneck="decode",
)  # fmt: skip


def frame(*, away_s: float | None = None, **changes: Any) -> TopFrame:
    """What `top` draws of the status with some changes, two samples having turned out bad since the frame before."""
    return TopFrame(replace(TOP_STATUS, **changes), {"train": 2}, away_s)


NOW = frame()


def test_the_data_path_shows_its_stages_in_order_with_figures() -> None:
    text = shown(NOW)
    assert words_of(text, " read") == ["read", "──▶", "decode", "──▶", "slots", "──▶", "trainers"]
    assert words_of(text, "12%") == ["12%", "81%", "58", "slots", "80", "samples/s"]
    assert words_of(text, "of the")[-6:] == ["1", "MiB", "0.6", "of", "1", "wait"]


@pytest.mark.parametrize(
    ("limit", "marked"),
    [
        ("disk", "read"), ("decode", "decode"), ("memory", "slots"), ("transport", "──▶"), ("none", "trainers"),
        ("pending", "decode"), ("nobody", None),
    ],
)  # fmt: skip
def test_only_the_bottleneck_is_marked(limit: Bottleneck, marked: str | None) -> None:
    text = shown(frame(bottleneck=limit), colour=True)
    reverse = [part.split("m", 1)[1].split("\x1b")[0].strip() for part in text.split("\x1b[1;7;")[1:]]
    assert reverse == ([marked] if marked else [])


def test_the_advice_for_the_bottleneck_is_shown() -> None:
    assert BOTTLENECK_ADVICE["decode"].sentence in " ".join(shown(NOW).split())


def test_top_names_the_time_that_its_figures_cover() -> None:
    assert "rates and shares are those over the last 10 s" in shown(NOW)


def test_top_has_a_line_for_each_stream_and_trainer() -> None:
    text = shown(NOW)
    assert words_of(text, "train ") == ["train", "10", "80", "1.25", "3", "+2", "0.97", "4", "ok"]
    assert words_of(text, "lr-0.01 ") == ["lr-0.01", "x", "3", "40/125", "2", "min", "90", "7", "5/16", "reads"]
    assert words_of(text, "pid 77 ") == ["pid", "77", "batch", "8", "━━╸", "disk"]
    assert words_of(text, "        rank ") == ["rank", "0", "of", "2"]


def test_an_unknown_figure_is_a_dash() -> None:
    stream = replace(TOP_TRAIN, shuffle_score=None)
    trainer = replace(TOP_TRAINER, last_epoch=None, lag_steps=None, left_s=None)
    text = shown(TopFrame(replace(TOP_STATUS, streams=(stream,), sessions=(trainer,)), {}))
    assert words_of(text, "train ")[5] == "-"
    assert words_of(text, "lr-0.01 ")[4:] == ["-", "90", "-", "5/16", "reads"]
    assert words_of(text, "pid 77 ")[-1] == "-"


def test_troubles_come_first_and_an_unreachable_daemon_before_them() -> None:
    assert shown(frame(reload_failed=True)).startswith("trouble: the last reload failed")
    text = shown(frame(reload_failed=True, away_s=65.0))
    assert text.startswith("away for 1 min 5 s: no answer")
    assert "trouble" not in text


@pytest.mark.parametrize(
    ("height", "last"), [(40, "        rank"), (20, "14 lines more; make the window taller to see the rest")]
)
def test_a_frame_taller_than_the_window_ends_with_the_number_of_hidden_lines(height: int, last: str) -> None:
    console = Console(file=io.StringIO(), width=80, height=height)
    cropped = crop_to_window(build_top_frame(frame(sessions=(TOP_TRAINER,) * 5)), console)
    with console.capture() as captured:
        console.print(cropped)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert len(lines) == min(height, 33)
    assert lines[-1].startswith(last)


LONG = replace(
    TRAIN, name="a-stream-of-a-long-name", samples=14_197_122, batches=1_774_640, sessions=256, decoded_per_s=12345.0,
    samples_per_s=123456.0, bad=99999, receipts_ok=1234, receipts_bad=12,
)  # fmt: skip
LONG_TRAINER = replace(
    TRAINER, stream=LONG.name, rank=255, world=256, epoch=1234, own_step=123456, own_steps=1234567, credit=1024,
    held=999, doing="waiting", samples_per_s=123456.0, name="n" * 64, pid=4194303, batch_size=65536,
)  # fmt: skip
LONG_NOW = TopFrame(
    replace(
        TOP_STATUS, streams=(LONG,), sessions=(replace(LONG_TRAINER, lag_steps=1234, left_s=3599.0),),
        memory_used_bytes=1023 << 30, reading_fraction=0.999, decoding_fraction=0.999, slots=4096,
        waiting_trainers=255.5, bottleneck="transport",
    ),
    {LONG.name: 1234},
)  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "figures"),
    [
        (
            replace(DAEMON, streams=(LONG,), sessions=(LONG_TRAINER,)),
            ["14,197,122", "1,774,640", "256", "12,345", "123,456", "99,999", "123,456/1,234,567", "999/1024"],
        ),
        (LONG_NOW, ["12,345", "123,456 samples/s", "99,999 +1,234", "4,096 slots", "255.5 of", "999/1024", "59 min"]),
    ],
    ids=["status", "top"],
)
def test_every_figure_is_shown_within_80_columns(seen: DaemonStatus | TopFrame, figures: list[str]) -> None:
    text = shown(seen)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert [figure for figure in figures if figure not in text] == []
