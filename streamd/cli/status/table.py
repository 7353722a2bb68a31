"""What `streamd status` shows a person: what is wrong, who reads what, how fast, and what could be better.

All of it in 80 columns. `top_table` draws the same things as they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from streamd.config.units import format_bytes
from streamd.core.status import (
    STATE_WORDS,
    WELL_SHARED,
    DaemonStatus,
    SessionState,
    SessionStatus,
    StreamStatus,
    find_reached_step,
    sort_sessions,
)
from streamd.core.text import escape_unprintable, format_count

WIDTH_CHARS: Final = 80  # numbers would be cut in less
_POORLY_SHARED: Final = 1.5  # decodes a batch: from here on half of the decoding is done for nothing
_BAR_CHARS: Final = 8
_EXACT_BELOW: Final = 10  # slower rates than this show a decimal
STATE_COLOURS: Final[dict[SessionState, str]] = {
    "gathering": "yellow", "waiting": "yellow", "reading": "green", "resting": "dim", "finished": "dim",
}  # fmt: skip


def build_status_table(status: DaemonStatus) -> RenderableType:
    """Everything, from what is wrong, and the daemon, down to what could be better."""
    parts: list[RenderableType] = [
        *format_troubles(status),
        *format_daemon(status),
        Text(),
        _build_streams_table(status.streams),
        Text(),
    ]
    parts.append(_build_trainers_table(status.sessions) if status.sessions else Text("no trainers", style="dim"))
    for remarks in (list(_format_timings(status.sessions)), list(_format_advice(status))):
        parts += [Text(), *remarks] if remarks else []
    return Group(*parts)


def format_troubles(status: DaemonStatus) -> Iterator[Text]:
    """What is wrong and what to do, a line each."""
    for trouble in status.all_troubles:
        yield Text(f"trouble: {escape_unprintable(trouble)}", style="bold red", overflow="fold")


def format_daemon(status: DaemonStatus) -> Iterator[Text]:
    """Which daemon it is; its workers and its memory."""
    yield Text.assemble((f"streamd {status.version}", "bold"), f" at {status.endpoint}", overflow="fold")
    share = status.memory_used_bytes / status.memory_bytes if status.memory_bytes else 0.0
    replaced = f", {status.worker_deaths:,} replaced" if status.worker_deaths else ""
    yield Text(
        f"pid {status.pid}, up {format_time_span(status.uptime_s)}; {format_count(status.workers, 'worker')} "
        f"{status.busy_fraction:.0%} "
        f"busy{replaced}; memory {format_bytes(status.memory_used_bytes)} of {format_bytes(status.memory_bytes)} "
        f"({share:.0%})"
    )
    if status.held_over_bytes:
        yield Text(f"{format_bytes(status.held_over_bytes)} of it held by trainers of subscriptions that have ended")


def build_table(*headings: str) -> Table:
    """Columns of text; of numbers, which are never broken, where the heading begins with `>`."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        name = heading.removeprefix(">")
        is_number = name != heading
        table.add_column(
            name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold", vertical="top"
        )
    return table


def _build_streams_table(streams: tuple[StreamStatus, ...]) -> Table:
    table = build_table(
        "\nstream", ">\nsamples", ">\nbatches", ">\ntrainers", ">decoded\nbatch/s", ">sent\nsample/s",
        ">decodes\na batch", ">\nbad", "\nreceipts",
    )  # fmt: skip
    for stream in streams:
        table.add_row(
            Text(stream.name),
            f"{stream.samples:,}",
            f"{stream.batches:,}",
            str(stream.sessions),
            format_rate(stream.decoded_per_s),
            format_rate(stream.samples_per_s),
            format_decodes_per_batch(stream.decodes_per_batch),
            Text(f"{stream.bad:,}", style="yellow" if stream.bad else ""),
            format_receipts(stream),
        )
    return table


def format_decodes_per_batch(decodes: float | None) -> Text:
    """Decodes a batch, coloured by how many of them were for nothing."""
    if decodes is None:
        return Text("-", style="dim")
    colour = "green" if decodes <= WELL_SHARED else "yellow" if decodes < _POORLY_SHARED else "red"
    return Text(f"{decodes:.2f}", style=colour)


def format_receipts(stream: StreamStatus) -> Text:
    """How many there were, those that do not add up by themselves."""
    said = Text(f"{stream.receipts_ok} ok")
    if stream.receipts_bad:
        said.append(f"\n{stream.receipts_bad} NOT OK", style="bold red")
    return said


def _build_trainers_table(sessions: tuple[SessionStatus, ...]) -> Table:
    table = build_table("trainer", "rank", ">epoch", ">step", "", ">samples/s", "doing", ">held")
    for each in sort_sessions(sessions):
        epoch, step = find_reached_step(each)
        table.add_row(
            Text(each.stream),
            f"{each.rank} of {each.world}",
            str(epoch),
            f"{step:,}/{each.steps:,}",
            ProgressBar(total=max(1, each.steps), completed=step, width=_BAR_CHARS),
            format_rate(each.samples_per_s),
            Text(STATE_WORDS[each.doing], style=STATE_COLOURS[each.doing]),
            f"{each.held}/{each.credit}",
        )
    return table


def _format_timings(sessions: tuple[SessionStatus, ...]) -> Iterator[Text]:
    """Where the time of each trainer's last epoch went."""
    for each in sort_sessions(sessions):
        if each.last_epoch is not None:
            whose = f"{each.stream}, rank {each.rank} of {each.world}: "
            colour = "" if each.last_epoch.verdict == "none" else "yellow"
            yield Text.assemble((whose, colour), each.last_epoch.summary_text)


def _format_advice(status: DaemonStatus) -> Iterator[Text]:
    for stream in status.streams:
        if stream.remedy:
            yield Text.assemble((f"stream {stream.name!r}: ", "yellow"), stream.remedy)
        if stream.poorly_mixed:
            yield Text.assemble((f"stream {stream.name!r}: ", "yellow"), escape_unprintable(stream.poorly_mixed))


def format_rate(per_s: float) -> str:
    """A rate in as many digits as tell something."""
    return f"{per_s:.1f}" if 0 < per_s < _EXACT_BELOW else f"{per_s:,.0f}"


def format_time_span(seconds: float, units: int = 2) -> str:
    """How long, in the largest units, two of them: `42 s`, `12 min 3 s`, `3 h 12 min`, `5 d 2 h`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, size)
        if amount or parts or unit == "s":
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:units])
