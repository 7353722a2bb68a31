"""What `streamd top` draws at a time: the way of the data with where it waits, then streams and trainers.

All of it in 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from streamd.bottleneck import Stage
from streamd.config.units import format_bytes
from streamd.limits import POORLY_MIXED
from streamd.printable import counted
from streamd.status import Doing
from streamd.status_table import (
    DOING,
    daemon_lines,
    in_order,
    place,
    rate,
    receipts,
    shared,
    span,
    table_of,
    troubles,
)
from streamd.top import Away, Flow, Limit, Moment, StreamPace, TrainerPace

_BAR_CHARS: Final = 8
_WORDS: Final[dict[Doing, str]] = {
    "gathering": "gathers", "waiting": "waits", "reading": "reads", "resting": "rests", "finished": "finished",
}  # fmt: skip
_TRAINERS: Final = 6  # where on the way they are: here batches should wait
_VERDICTS: Final[dict[Stage, str]] = {"disk": "disk", "decode": "decode", "transport": "transport", "none": "trainer"}


@dataclass(frozen=True, slots=True)
class _Wait:
    """Where on the way a limit is marked, at a stage or an arrow of it, and what is said about it."""

    at: int | None
    words: str


_WAITS: Final[dict[Limit, _Wait]] = {
    "disk": _Wait(0, "waits for reads: a faster disk, a `cache` or `streamd pack` would help"),
    "decode": _Wait(2, "waits for decoding: more workers or a `cache` would help"),
    "memory": _Wait(4, "waits for a free slot: more `memory` would help"),
    "transport": _Wait(5, "waits on the way to the trainers, where batches lie ready or come one by one"),
    "none": _Wait(6, "the trainers themselves are the limit: data come as fast as they take them"),
    "pending": _Wait(2, "batches are under way, and none is done yet"),
    "nobody": _Wait(None, "nobody asks for batches"),
}


def top_table(seen: Moment | Away) -> RenderableType:
    """One frame; of a daemon that is away the last one, with a word about it."""
    now = seen.last if isinstance(seen, Away) else seen
    parts: list[RenderableType] = list(_away(seen)) if isinstance(seen, Away) else list(troubles(now.status))
    parts += [*daemon_lines(now.status), Text(), *_way(now), Text(), _streams(now.streams), Text()]
    parts.append(_trainers(now.trainers) if now.trainers else Text("no trainers", style="dim"))
    return Group(*parts)


def _away(seen: Away) -> Iterator[Text]:
    yield Text(f"away for {span(seen.seconds)}: no answer; shown is what was seen last", style="bold red")


def fitted(frame: RenderableType, console: Console) -> RenderableType:
    """As much of a frame as the window has lines for, and in the last of them how much there is below."""
    lines = console.render_lines(frame, pad=False)
    if len(lines) <= console.height:
        return frame
    shown = max(0, console.height - 1)
    below = Text(f"{counted(len(lines) - shown, 'line')} more, in a taller window", style="dim")
    return Group(SegmentLines(lines[:shown], new_lines=True), below)


# --- the way of the data


def _way(now: Moment) -> Iterator[RenderableType]:
    """Its stages from left to right with the arrows between, the one where it waits marked, and a sentence."""
    wait = _WAITS[now.flow.limit] if now.flow is not None else _Wait(None, "looking where batches wait")
    way = Table.grid(padding=(0, 1), pad_edge=False)
    cells = _stages(now, now.flow)
    for number, rows in enumerate(zip(*cells, strict=True)):
        words = [Text(each, style=_style(number, at, wait.at)) for at, each in enumerate(rows)]
        way.add_row(*words)
    yield way
    yield Text(wait.words, style="dim" if wait.at is None else "green" if wait.at == _TRAINERS else "yellow")


def _style(row: int, at: int, waits_at: int | None) -> str:
    marked = "bold reverse green" if at == _TRAINERS else "bold reverse yellow"
    if row == 0:
        return marked if at == waits_at else "bold"
    return ""


def _stages(now: Moment, flow: Flow | None) -> list[tuple[str, str, str]]:
    """Name and figures of each stage, an arrow between each two."""
    status, arrow = now.status, ("──▶", "", "")
    sent = sum(each.samples_per_s for each in now.streams)
    waiting = f"{flow.waiting:.1f} of " if flow else ""
    return [
        (" read ", f"{flow.reading:.0%}" if flow else "", "of the workers"),
        arrow,
        (" decode ", f"{flow.decoding:.0%}" if flow else "", "of the workers"),
        arrow,
        (" slots ", counted(flow.slots, "slot") if flow else "", format_bytes(status.memory_used_bytes)),
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
    for status in in_order(each.status for each in trainers):
        table.add_row(*_trainer(paces[status.session]))
    return table


def _trainer(trainer: TrainerPace) -> tuple[RenderableType, ...]:
    status = trainer.status
    epoch, step = place(status)
    return (
        Text(status.stream),
        f"{status.rank}/{status.world}",
        f"{epoch}",
        ProgressBar(total=max(1, status.steps), completed=step, width=_BAR_CHARS),
        "-" if trainer.left_s is None else span(trainer.left_s, units=1),
        rate(trainer.samples_per_s),
        "-" if trainer.lag is None else f"{trainer.lag:,}",
        f"{status.held}/{status.credit}",
        Text(_WORDS[status.doing], style=DOING[status.doing][1]),
        _verdict(status.last_epoch.verdict if status.last_epoch else None),
    )


def _verdict(verdict: Stage | None) -> Text:
    if verdict is None:
        return Text("-", style="dim")
    return Text(_VERDICTS[verdict], style="green" if verdict == "none" else "yellow")
