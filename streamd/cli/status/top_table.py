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
    DOING_COLOURS,
    daemon_lines,
    rate,
    receipts,
    shared,
    span,
    table_of,
    troubles,
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
_WORDS: Final[dict[SessionState, str]] = {
    "gathering": "gathers", "waiting": "waits", "reading": "reads", "resting": "rests", "finished": "finished",
}  # fmt: skip
_TRAINERS: Final = 6  # where on the way they are: here batches should wait
_VERDICTS: Final[dict[EpochBottleneck, str]] = {
    "disk": "disk",
    "decode": "decode",
    "transport": "transport",
    "none": "trainer",
}


# Where on the way a limit is marked, at a stage or an arrow of it.
_AT: Final[dict[Bottleneck, int]] = {
    "disk": 0,
    "decode": 2,
    "memory": 4,
    "transport": 5,
    "none": _TRAINERS,
    "pending": 2,
}


def top_table(seen: DaemonActivity | UnreachableDaemon) -> RenderableType:
    """One frame; of a daemon that is away the last one, with a word about it."""
    now = seen.last if isinstance(seen, UnreachableDaemon) else seen
    parts: list[RenderableType] = (
        list(_away(seen)) if isinstance(seen, UnreachableDaemon) else list(troubles(now.status))
    )
    parts += [*daemon_lines(now.status), Text(), *_way(now), Text(), _streams(now.streams), Text()]
    parts.append(_trainers(now.trainers) if now.trainers else Text("no trainers", style="dim"))
    return Group(*parts)


def _away(seen: UnreachableDaemon) -> Iterator[Text]:
    yield Text(f"away for {span(seen.seconds)}: no answer; shown is what was seen last", style="bold red")


def fitted(frame: RenderableType, console: Console) -> RenderableType:
    """As much of a frame as the window has lines for, and in the last of them how much there is below."""
    lines = console.render_lines(frame, pad=False)
    if len(lines) <= console.height:
        return frame
    shown = max(0, console.height - 1)
    below = Text(f"{format_count(len(lines) - shown, 'line')} more, in a taller window", style="dim")
    return Group(SegmentLines(lines[:shown], new_lines=True), below)


# --- the way of the data


def _way(now: DaemonActivity) -> Iterator[RenderableType]:
    """Its stages from left to right with the arrows between, the one where it waits marked, and a sentence."""
    waits_at, words = None, "looking where batches wait"
    if now.flow is not None:
        waits_at, words = _AT.get(now.flow.bottleneck), BOTTLENECK_WORDS[now.flow.bottleneck]
    way = Table.grid(padding=(0, 1), pad_edge=False)
    cells = _stages(now, now.flow)
    for number, rows in enumerate(zip(*cells, strict=True)):
        way.add_row(*(Text(each, style=_style(number, at, waits_at)) for at, each in enumerate(rows)))
    yield way
    yield Text(words, style="dim" if waits_at is None else "green" if waits_at == _TRAINERS else "yellow")


def _style(row: int, at: int, waits_at: int | None) -> str:
    marked = "bold reverse green" if at == _TRAINERS else "bold reverse yellow"
    if row == 0:
        return marked if at == waits_at else "bold"
    return ""


def _stages(now: DaemonActivity, flow: DataFlow | None) -> list[tuple[str, str, str]]:
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
        (" trainers ", f"{rate(sent)} samples/s", f"{waiting}{len(status.sessions)} {'wait' if flow else ''}"),
    ]


# --- streams and trainers


def _streams(streams: tuple[StreamPace, ...]) -> Table:
    table = table_of(
        "\nstream", ">decoded\nbatch/s", ">sent\nsample/s", ">decodes\na batch", ">\nbad", ">shuffle\nscore",
        "\nreceipts",
    )  # fmt: skip
    for each in streams:
        table.add_row(
            Text(each.status.name, style="bold red" if each.status.stopped or each.status.failed else ""),
            rate(each.decoded_per_s),
            rate(each.samples_per_s),
            shared(each.status.decodes_per_batch),
            _bad(each),
            _mixed(each.status.shuffle_score),
            receipts(each.status),
        )
    return table


def _bad(stream: StreamPace) -> Text:
    more = f" +{stream.new_bad:,}" if stream.new_bad else ""
    return Text(f"{stream.status.bad:,}{more}", style="yellow" if stream.status.bad else "")


def _mixed(score: float | None) -> Text:
    if score is None:
        return Text("-", style="dim")
    return Text(f"{score:.2f}", style="yellow" if score < POORLY_MIXED else "green")


def _trainers(trainers: tuple[TrainerPace, ...]) -> Table:
    table = table_of(
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
        table.add_row(*_trainer(paces[status.session]))
    return table


def _trainer(trainer: TrainerPace) -> tuple[RenderableType, ...]:
    status = trainer.status
    epoch, step = find_reached_step(status)
    return (
        Text(status.stream),
        f"{status.rank}/{status.world}",
        f"{epoch}",
        ProgressBar(total=max(1, status.steps), completed=step, width=_BAR_CHARS),
        "-" if trainer.left_s is None else span(trainer.left_s, units=1),
        rate(trainer.samples_per_s),
        "-" if trainer.lag is None else f"{trainer.lag:,}",
        f"{status.held}/{status.credit}",
        Text(_WORDS[status.doing], style=DOING_COLOURS[status.doing]),
        _verdict(status.last_epoch.verdict if status.last_epoch else None),
    )


def _verdict(verdict: EpochBottleneck | None) -> Text:
    if verdict is None:
        return Text("-", style="dim")
    return Text(_VERDICTS[verdict], style="green" if verdict == "none" else "yellow")
