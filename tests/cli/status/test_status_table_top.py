"""What `streamd top` draws at a time."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Final

import pytest
from rich.console import Console, RenderableType

from streamd.cli.status.table import build_top_frame, crop_to_window
from streamd.core.activity import DaemonActivity, DataFlow, StreamPace, TrainerPace, UnreachableDaemon
from streamd.core.bottleneck import BOTTLENECK_ADVICE, Bottleneck
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus

TRAIN: Final = StreamStatus("train", 1000, 8, 125, 2, 10.0, 80.0, 1.25, 3, 4, 0, shuffle_score=0.97)
TRAINER: Final = SessionStatus(
    1, "x", 0, 2, 3, None, 40, 125, 16, 5, "reading", 90.0, 60.0, EpochTiming(2, 43.0, 2.0, "disk", BatchSupply()),
    name="lr-0.01", pid=77, batch_size=8, own_step=40, own_steps=125,
)  # fmt: skip
STATUS: Final = DaemonStatus(
    "1", 7, "ipc:///s", 60.0, 4, 0.5, 1 << 30, 1 << 20, draining=False, streams=(TRAIN,), sessions=(TRAINER,)
)
NOW: Final = DaemonActivity(
    STATUS,
    (StreamPace(TRAIN, 2),),
    (TrainerPace(TRAINER, 7, 125.0),),
    DataFlow(0.12, 0.81, 58, 0.6, "decode"),
)


def shown(seen: DaemonActivity | UnreachableDaemon, *, colour: bool = False) -> str:
    out = io.StringIO()
    Console(
        file=out, width=80, highlight=False, force_terminal=colour, color_system="standard" if colour else None,
        no_color=not colour,
    ).print(build_top_frame(seen))  # fmt: skip
    return out.getvalue()


def shown_by(console: Console, frame: RenderableType) -> list[str]:
    with console.capture() as captured:
        console.print(frame)
    return captured.get().splitlines()


def line_of(text: str, start: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(start))


def test_the_way_of_the_data_has_its_stages_in_order_and_their_figures() -> None:
    text = shown(NOW)
    assert line_of(text, " read") == ["read", "──▶", "decode", "──▶", "slots", "──▶", "trainers"]
    assert line_of(text, "12%") == ["12%", "81%", "58", "slots", "80", "samples/s"]
    assert line_of(text, "of the")[-6:] == ["1", "MiB", "0.6", "of", "1", "wait"]


@pytest.mark.parametrize(
    ("limit", "marked"),
    [
        ("disk", "read"), ("decode", "decode"), ("memory", "slots"), ("transport", "──▶"), ("none", "trainers"),
        ("pending", "decode"), ("nobody", None),
    ],
)  # fmt: skip
def test_where_batches_wait_is_marked_there_and_nowhere_else(limit: Bottleneck, marked: str | None) -> None:
    text = shown(replace(NOW, flow=replace(NOW.flow, bottleneck=limit)), colour=True)
    reverse = [part.split("m", 1)[1].split("\x1b")[0].strip() for part in text.split("\x1b[1;7;")[1:]]
    assert reverse == ([marked] if marked else [])


def test_the_sentence_below_says_whether_that_is_bad_and_what_would_help() -> None:
    assert BOTTLENECK_ADVICE["decode"].sentence in " ".join(shown(NOW).split())


def test_all_figures_are_over_one_stretch_of_time_that_a_line_names() -> None:
    assert "rates and shares are those over the last 10 s" in shown(NOW)


def test_a_line_tells_of_each_stream_and_each_trainer() -> None:
    text = shown(NOW)
    assert line_of(text, "train ") == ["train", "10", "80", "1.25", "3", "+2", "0.97", "4", "ok"]
    assert line_of(text, "lr-0.01 ") == ["lr-0.01", "x", "3", "40/125", "2", "min", "90", "7", "5/16", "reads"]
    assert line_of(text, "pid 77 ") == ["pid", "77", "batch", "8", "━━╸", "disk"]
    assert line_of(text, "        rank ") == ["rank", "0", "of", "2"]


def test_what_is_not_known_is_a_dash() -> None:
    stream, trainer = replace(TRAIN, shuffle_score=None), replace(TRAINER, last_epoch=None)
    text = shown(replace(NOW, streams=(StreamPace(stream, 0),), trainers=(TrainerPace(trainer, None, None),)))
    assert line_of(text, "train ")[5] == "-"
    assert line_of(text, "lr-0.01 ")[4:] == ["-", "90", "-", "5/16", "reads"]
    assert line_of(text, "pid 77 ")[-1] == "-"


def test_what_is_wrong_comes_first_and_a_daemon_that_is_away_before_everything() -> None:
    wrong = replace(NOW, status=replace(STATUS, reload_failed=True))
    assert shown(wrong).startswith("trouble: the last reload failed")
    text = shown(UnreachableDaemon(wrong, 65.0))
    assert text.startswith("away for 1 min 5 s: no answer")
    assert "trouble" not in text


@pytest.mark.parametrize(("height", "last"), [(40, "        rank"), (20, "14 lines more, in a taller window")])
def test_a_frame_that_is_too_long_for_the_window_ends_with_how_much_is_below(height: int, last: str) -> None:
    console = Console(file=io.StringIO(), width=80, height=height)
    frame = crop_to_window(build_top_frame(replace(NOW, trainers=NOW.trainers * 5)), console)
    lines = [line.rstrip() for line in shown_by(console, frame)]
    assert len(lines) == min(height, 33)
    assert lines[-1].startswith(last)


def test_nobody_to_train_is_said_so() -> None:
    assert shown(replace(NOW, trainers=())).endswith("no trainers\n")


def test_nothing_is_lost_or_wider_than_80_columns() -> None:
    long = replace(TRAIN, name="a-stream-of-a-long-name", bad=99999, receipts_ok=1234, receipts_bad=12)
    long = replace(long, decoded_per_s=12345.0, samples_per_s=123456.0)
    trainer = replace(
        TRAINER, stream=long.name, rank=255, world=256, epoch=1234, credit=1024, held=999, name="n" * 64, pid=4194303,
        batch_size=65536, own_step=123456, own_steps=1234567, samples_per_s=123456.0,
    )  # fmt: skip
    text = shown(
        DaemonActivity(
            replace(STATUS, streams=(long,), memory_used_bytes=1023 << 30),
            (StreamPace(long, 1234),),
            (TrainerPace(trainer, 1234, 3599.0),),
            DataFlow(0.999, 0.999, 4096, 255.5, "transport"),
        )
    )
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for figure in ("12,345", "123,456 samples/s", "99,999 +1,234", "4,096 slots", "255.5 of", "999/1024", "59 min"):
        assert figure in text
