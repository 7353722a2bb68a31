"""What `streamd top` draws at a time: the way of the data with where it waits, then streams and trainers.

All of it in 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from streamd.cli.status.table import (
    STATE_COLOURS,
    build_table,
    format_daemon,
    format_decodes_per_batch,
    format_rate,
    format_receipts,
    format_time_span,
    format_troubles,
)
from streamd.config.units import format_bytes
from streamd.core.activity import (
    BOTTLENECK_WORDS,
    Bottleneck,
    DaemonActivity,
    DataFlow,
    StreamPace,
    TrainerPace,
    UnreachableDaemon,
)
from streamd.core.epoch_timing import EpochBottleneck
from streamd.core.status import SessionState, find_reached_step, sort_sessions
from streamd.core.text import format_count
from streamd.limits import POORLY_MIXED

_BAR_CHARS: Final = 8
_STATE_VERBS: Final[dict[SessionState, str]] = {
    "gathering": "gathers", "waiting": "waits", "reading": "reads", "resting": "rests", "finished": "finished",
}  # fmt: skip
_TRAINERS_POSITION: Final = 6  # where on the way they are: here batches should wait
_EPOCH_LIMIT_NAMES: Final[dict[EpochBottleneck, str]] = {
    "disk": "disk",
    "decode": "decode",
    "transport": "transport",
    "none": "trainer",
}


# Where on the way a limit is marked, at a stage or an arrow of it.
_BOTTLENECK_POSITIONS: Final[dict[Bottleneck, int]] = {
    "disk": 0,
    "decode": 2,
    "memory": 4,
    "transport": 5,
    "none": _TRAINERS_POSITION,
    "pending": 2,
}


def build_top_frame(activity: DaemonActivity | UnreachableDaemon) -> RenderableType:
    """One frame; of a daemon that is away the last one, with a word about it."""
    now = activity.last if isinstance(activity, UnreachableDaemon) else activity
    parts: list[RenderableType] = (
        list(_format_unreachable(activity))
        if isinstance(activity, UnreachableDaemon)
        else list(format_troubles(now.status))
    )
    parts += [
        *format_daemon(now.status),
        Text(),
        *_build_data_path(now),
        Text(),
        _build_streams_table(now.streams),
        Text(),
    ]
    parts.append(_build_trainers_table(now.trainers) if now.trainers else Text("no trainers", style="dim"))
    return Group(*parts)


def _format_unreachable(daemon: UnreachableDaemon) -> Iterator[Text]:
    yield Text(f"away for {format_time_span(daemon.seconds)}: no answer; shown is what was seen last", style="bold red")


def fit_to_window(frame: RenderableType, console: Console) -> RenderableType:
    """As much of a frame as the window has lines for, and in the last of them how much there is below."""
    lines = console.render_lines(frame, pad=False)
    if len(lines) <= console.height:
        return frame
    shown = max(0, console.height - 1)
    below = Text(f"{format_count(len(lines) - shown, 'line')} more, in a taller window", style="dim")
    return Group(SegmentLines(lines[:shown], new_lines=True), below)


# --- the way of the data


def _build_data_path(now: DaemonActivity) -> Iterator[RenderableType]:
    """Its stages from left to right with the arrows between, the one where it waits marked, and a sentence."""
    waits_at, words = None, "looking where batches wait"
    if now.flow is not None:
        waits_at, words = _BOTTLENECK_POSITIONS.get(now.flow.bottleneck), BOTTLENECK_WORDS[now.flow.bottleneck]
    way = Table.grid(padding=(0, 1), pad_edge=False)
    cells = _build_stage_cells(now, now.flow)
    for number, rows in enumerate(zip(*cells, strict=True)):
        way.add_row(*(Text(each, style=_choose_style(number, at, waits_at)) for at, each in enumerate(rows)))
    yield way
    yield Text(words, style="dim" if waits_at is None else "green" if waits_at == _TRAINERS_POSITION else "yellow")


def _choose_style(row: int, at: int, waits_at: int | None) -> str:
    marked = "bold reverse green" if at == _TRAINERS_POSITION else "bold reverse yellow"
    if row == 0:
        return marked if at == waits_at else "bold"
    return ""


def _build_stage_cells(now: DaemonActivity, flow: DataFlow | None) -> list[tuple[str, str, str]]:
    """Name and figures of each stage, an arrow between each two."""
    status, arrow = now.status, ("──▶", "", "")
    sent = sum(each.samples_per_s for each in now.streams)
    waiting = f"{flow.waiting:.1f} of " if flow else ""
    return [
        (" read ", f"{flow.reading:.0%}" if flow else "", "of the workers"),
        arrow,
        (" decode ", f"{flow.decoding:.0%}" if flow else "", "of the workers"),
        arrow,
        (" slots ", format_count(flow.slots, "slot") if flow else "", format_bytes(status.memory_used_bytes)),
        arrow,
        (" trainers ", f"{format_rate(sent)} samples/s", f"{waiting}{len(status.sessions)} {'wait' if flow else ''}"),
    ]


# --- streams and trainers


def _build_streams_table(streams: tuple[StreamPace, ...]) -> Table:
    table = build_table(
        "\nstream", ">decoded\nbatch/s", ">sent\nsample/s", ">decodes\na batch", ">\nbad", ">shuffle\nscore",
        "\nreceipts",
    )  # fmt: skip
    for each in streams:
        table.add_row(
            Text(each.status.name, style="bold red" if each.status.stopped or each.status.failed else ""),
            format_rate(each.decoded_per_s),
            format_rate(each.samples_per_s),
            format_decodes_per_batch(each.status.decodes_per_batch),
            _format_bad_samples(each),
            _format_shuffle_score(each.status.shuffle_score),
            format_receipts(each.status),
        )
    return table


def _format_bad_samples(stream: StreamPace) -> Text:
    more = f" +{stream.new_bad:,}" if stream.new_bad else ""
    return Text(f"{stream.status.bad:,}{more}", style="yellow" if stream.status.bad else "")


def _format_shuffle_score(score: float | None) -> Text:
    if score is None:
        return Text("-", style="dim")
    return Text(f"{score:.2f}", style="yellow" if score < POORLY_MIXED else "green")


def _build_trainers_table(trainers: tuple[TrainerPace, ...]) -> Table:
    table = build_table(
        "\ntrainer",
        "\nrank",
        ">\nepoch",
        "\n",
        ">\nleft",
        ">\nsamples/s",
        ">\nlag",
        ">\nheld",
        "\ndoing",
        "last\nlimit",
    )
    paces = {each.status.session: each for each in trainers}
    for status in sort_sessions(each.status for each in trainers):
        table.add_row(*_build_trainer_row(paces[status.session]))
    return table


def _build_trainer_row(trainer: TrainerPace) -> tuple[RenderableType, ...]:
    status = trainer.status
    epoch, step = find_reached_step(status)
    return (
        Text(status.stream),
        f"{status.rank}/{status.world}",
        f"{epoch}",
        ProgressBar(total=max(1, status.steps), completed=step, width=_BAR_CHARS),
        "-" if trainer.left_s is None else format_time_span(trainer.left_s, units=1),
        format_rate(trainer.samples_per_s),
        "-" if trainer.lag is None else f"{trainer.lag:,}",
        f"{status.held}/{status.credit}",
        Text(_STATE_VERBS[status.doing], style=STATE_COLOURS[status.doing]),
        _format_epoch_limit(status.last_epoch.verdict if status.last_epoch else None),
    )


def _format_epoch_limit(limit: EpochBottleneck | None) -> Text:
    if limit is None:
        return Text("-", style="dim")
    return Text(_EPOCH_LIMIT_NAMES[limit], style="green" if limit == "none" else "yellow")
