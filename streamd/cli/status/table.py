"""The output of `streamd status`: troubles, trainers and their streams, rates, and advice.

Also the frames of `streamd top`, which show the same as it changes. Everything fits in 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from streamd.config.units import format_bytes
from streamd.core.epoch_timing import BOTTLENECK_ADVICE, Bottleneck
from streamd.core.status import (
    STATE_WORDS,
    WELL_SHARED,
    DaemonStatus,
    NodeState,
    SessionState,
    find_reached_epoch_and_step,
    format_window,
    identify_process,
    sort_sessions,
)
from streamd.core.text import escape_unprintable, format_count
from streamd.limits import POORLY_MIXED

WIDTH_CHARS: Final = 80  # numbers would be cut in fewer columns
_POORLY_SHARED: Final = 1.5  # decodes a batch: from here on half of the decoding is done for nothing
_BAR_CHARS: Final = 8
_NOTHING: Final = Text("-", style="dim")  # in a cell without a figure
_EXACT_BELOW: Final = 10  # slower rates than this show a decimal
STATE_COLOURS: Final[dict[SessionState, str]] = {
    "gathering": "yellow", "waiting": "yellow", "reading": "green", "resting": "dim", "finished": "dim",
}  # fmt: skip
_STATE_VERBS: Final[dict[SessionState, str]] = {
    "gathering": "gathers", "waiting": "waits", "reading": "reads", "resting": "rests", "finished": "finished",
}  # fmt: skip
_NODE_COLOURS: Final[dict[NodeState, str]] = {
    "starting": "dim", "serving": "green", "silent": "yellow", "refused": "red", "lost": "red",
}  # fmt: skip


def build_status_table(status: DaemonStatus) -> RenderableType:
    """Builds the whole output: troubles and the daemon first, advice last."""
    parts: list[RenderableType] = [
        *_format_trouble_lines(status),
        *_format_daemon_summary(status),
        Text(),
        *_build_streams_table(
            status, "\nstream", ">\nsamples", ">\nbatches", ">\ntrainers", ">decoded\nbatch/s", ">taken\nsample/s",
            ">decodes\na batch", ">\nbad", "\nreceipts",
        ),
        Text(),
    ]  # fmt: skip
    # A cluster's nodes: their state, their rates, and what each waits for.
    if status.cluster is not None:
        nodes = _build_plain_table("node", "state", ">workers", ">tasks", ">sample/s", "waits for")
        for node in status.cluster.nodes:
            nodes.add_row(
                Text(escape_unprintable(node.name)),
                Text(node.state, style=_NODE_COLOURS[node.state]),
                str(node.workers),
                str(node.tasks),
                format_rate(node.samples_per_s),
                Text(escape_unprintable(node.waits_for)),
            )
        no_nodes = f"the cluster at {status.cluster.address} has no node that decodes"
        parts += [nodes if status.cluster.nodes else Text(no_nodes, style="dim", overflow="fold"), Text()]
    parts.append(_build_trainers_table(status, "trainer", "stream", ">epoch", ">step", ">samples/s", "doing", ">held"))
    # Where the time of each trainer's last epoch went.
    timings: list[RenderableType] = []
    for each in sort_sessions(status.sessions):
        if each.last_epoch is not None:
            colour = "yellow" if BOTTLENECK_ADVICE[each.last_epoch.verdict].is_bad else ""
            rank = f", rank {each.rank} of {each.world}" if each.world > 1 else ""
            named = f"{escape_unprintable(each.name)}, " if each.name else ""
            timings.append(Text.assemble((f"{named}{each.stream}{rank}: ", colour), each.last_epoch.summary_text))
    # Advice on the streams.
    advice: list[RenderableType] = [
        Text(f"decodes a batch: {reason}", style="dim")
        for reason in dict.fromkeys(stream.decodes_unknown for stream in status.streams if stream.sessions)
        if reason
    ]
    advice += [
        Text.assemble((f"stream {stream.name!r}: ", "yellow"), sentence)
        for stream in status.streams
        for sentence in (stream.remedy, stream.poorly_mixed and escape_unprintable(stream.poorly_mixed))
        if sentence
    ]
    for remarks in (timings, advice):
        parts += [Text(), *remarks] if remarks else []
    return Group(*parts)


def _format_trouble_lines(status: DaemonStatus) -> Iterator[Text]:
    """Formats each trouble and its remedy in a line."""
    for trouble in status.all_troubles:
        yield Text(f"trouble: {escape_unprintable(trouble)}", style="bold red", overflow="fold")


def _format_daemon_summary(status: DaemonStatus) -> Iterator[Text]:
    """Formats the daemon's identity, workers and memory."""
    yield Text.assemble((f"streamd {status.version}", "bold"), f" at {status.endpoint}", overflow="fold")
    share = status.memory_used_bytes / status.memory_bytes if status.memory_bytes else 0.0
    replaced = f", {status.worker_deaths:,} replaced" if status.worker_deaths else ""
    yield Text(
        f"pid {status.pid}, up {format_time_span(status.uptime_s)}; {format_count(status.workers, 'worker')} "
        f"{status.busy_fraction:.0%} busy{replaced}; memory {format_bytes(status.memory_used_bytes)} of "
        f"{format_bytes(status.memory_bytes)} ({share:.0%})"
    )
    yield Text(f"rates and shares are those {format_window(status.window_s)}", style="dim")
    if status.held_over_bytes:
        yield Text(
            f"{format_bytes(status.held_over_bytes)} of the memory is still held by trainers whose subscriptions have "
            "ended"
        )


def _build_plain_table(*headings: str) -> Table:
    """Builds a table; a heading that begins with `>` marks a column of numbers, which are never wrapped."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        name = heading.removeprefix(">")
        is_number = name != heading
        table.add_column(
            name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold", vertical="top"
        )
    return table


def _build_streams_table(
    status: DaemonStatus, *headings: str, new_bad: Mapping[str, int] | None = None
) -> Iterator[RenderableType]:
    """Yields the table of the streams with these columns, then the images of each stream; `top` gives `new_bad`."""
    table = _build_plain_table(*headings)
    for each in status.streams:
        receipts = Text(f"{each.receipts_ok} ok")
        if each.receipts_bad:
            receipts.append(f"\n{each.receipts_bad} NOT OK", style="bold red")
        # The decodes a batch are coloured by the share that was wasted.
        decodes, score, added = each.decodes_per_batch, each.shuffle_score, (new_bad or {}).get(each.name, 0)
        waste = "green" if (decodes or 0) <= WELL_SHARED else "yellow" if (decodes or 0) < _POORLY_SHARED else "red"
        is_marked = new_bad is not None and (each.stopped or each.failed)
        cells: dict[str, RenderableType] = {
            # A name is wrapped in a Text, since rich reads a plain string as markup.
            "\nstream": Text(each.name, style="bold red" if is_marked else ""),
            ">\nsamples": f"{each.samples:,}",
            ">\nbatches": f"{each.batches:,}",
            ">\ntrainers": str(each.sessions),
            ">decoded\nbatch/s": format_rate(each.decoded_per_s),
            ">taken\nsample/s": format_rate(each.samples_per_s),
            ">decodes\na batch": _NOTHING if decodes is None else Text(f"{decodes:.2f}", style=waste),
            ">\nbad": Text(f"{each.bad:,}{f' +{added:,}' if added else ''}", style="yellow" if each.bad else ""),
            ">shuffle\nscore": _NOTHING
            if score is None
            else Text(f"{score:.2f}", style="yellow" if score < POORLY_MIXED else "green"),
            "\nreceipts": receipts,
        }
        table.add_row(*(cells[heading] for heading in headings))
    yield table
    # The images of each stream, as their arrays in a batch are named and shaped.
    for each in status.streams:
        if each.images:
            yield Text(f"{each.name}: {each.images_text}", style="dim", overflow="fold")


def _build_trainers_table(status: DaemonStatus, *headings: str) -> RenderableType:
    """Builds the table of the trainers with these columns; sessions of one process share its heading."""
    if not status.sessions:
        return Text("no trainers", style="dim")
    table = _build_plain_table(*headings)
    process_before: tuple[int, int] | None = None
    for each in sort_sessions(status.sessions):
        # The trainer's name and its process, in the row of its first session.
        trainer, process = Text(), identify_process(each)
        if process != process_before:
            trainer.append(escape_unprintable(each.name) or "unnamed")
            trainer.append(f"\npid {each.pid}" if each.pid else "", style="dim")
        process_before = process
        rank = f"\nrank {each.rank} of {each.world}" if each.world > 1 else ""
        # The progress in the epoch, in the trainer's own steps.
        epoch, step = find_reached_epoch_and_step(each)
        bar = ProgressBar(total=max(1, each.own_steps), completed=step, width=_BAR_CHARS)
        limit = BOTTLENECK_ADVICE[each.last_epoch.verdict] if each.last_epoch else None
        cells: dict[str, RenderableType] = {
            "trainer": trainer,
            "stream": Text(each.stream).append(f"\nbatch {each.batch_size:,}{rank}", style="dim"),
            "epoch": str(epoch),
            "step": Group(Text(f"{step:,}/{each.own_steps:,}", justify="right"), bar),
            "left": "-" if each.left_s is None else format_time_span(each.left_s, units=1),
            "samples/s": format_rate(each.samples_per_s),
            "lag": "-" if each.lag_steps is None else f"{each.lag_steps:,}",
            "held": f"{each.held}/{each.credit}",
            "doing": Text(STATE_WORDS[each.doing], style=STATE_COLOURS[each.doing]),
            "doing,\nlast limit": Text.assemble(
                (_STATE_VERBS[each.doing], STATE_COLOURS[each.doing]),
                "\n",
                ("-", "dim") if limit is None else (limit.short, "yellow" if limit.is_bad else "green"),
            ),
        }
        table.add_row(*(cells[heading.lstrip(">\n")] for heading in headings))
    return table


def format_rate(per_s: float) -> str:
    """Formats a rate with as many digits as are meaningful."""
    return f"{per_s:.1f}" if 0 < per_s < _EXACT_BELOW else f"{per_s:,.0f}"


def format_time_span(seconds: float, units: int = 2) -> str:
    """Formats a duration in its largest units, two by default: `42 s`, `12 min 3 s`, `3 h 12 min`, `5 d 2 h`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, size)
        if amount or parts or unit == "s":
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:units])


_TRAINERS_POSITION: Final = 6  # the trainers' cell in the diagram of the data path: batches should wait for trainers
# The cell of the diagram, a stage or an arrow, at which a bottleneck is marked.
_BOTTLENECK_POSITIONS: Final[dict[Bottleneck, int]] = {
    "disk": 0,
    "decode": 2,
    "memory": 4,
    "transport": 5,
    "none": _TRAINERS_POSITION,
    "pending": 2,
}


@dataclass(frozen=True, slots=True)
class TopFrame:
    """One frame: the status, and how many samples of each stream turned out bad since the frame before.

    `away_s` is the time in seconds for which the daemon has not answered; None if it does.
    """

    status: DaemonStatus
    new_bad: Mapping[str, int]
    away_s: float | None = None


def build_top_frame(frame: TopFrame) -> RenderableType:
    """Builds one frame; for a daemon that is away the last one, with a line about its absence."""
    status = frame.status
    parts: list[RenderableType]
    if frame.away_s is None:
        parts = [*_format_trouble_lines(status)]
    else:
        absence = f"away for {format_time_span(frame.away_s)}: no answer; the last known state is shown"
        parts = [Text(absence, style="bold red")]
    parts += [*_format_daemon_summary(status), Text(), *_build_data_path_diagram(status), Text()]
    parts += _build_streams_table(
        status, "\nstream", ">decoded\nbatch/s", ">taken\nsample/s", ">decodes\na batch", ">\nbad", ">shuffle\nscore",
        "\nreceipts", new_bad=frame.new_bad,
    )  # fmt: skip
    trainers = _build_trainers_table(
        status, "\ntrainer", "\nstream", ">\nepoch", ">\nstep", ">\nleft", ">\nsamples/s", ">\nlag", ">\nheld",
        "doing,\nlast limit",
    )  # fmt: skip
    return Group(*parts, Text(), trainers)


def crop_to_window(frame: RenderableType, console: Console) -> RenderableType:
    """Cuts a frame to the window's height; the last line then says how many lines are below."""
    lines = console.render_lines(frame, pad=False)
    if len(lines) <= console.height:
        return frame
    shown = max(0, console.height - 1)
    below = Text(
        f"{format_count(len(lines) - shown, 'line')} more; make the window taller to see the rest", style="dim"
    )
    return Group(SegmentLines(lines[:shown], new_lines=True), below)


# --- the data path


def _build_data_path_diagram(status: DaemonStatus) -> Iterator[RenderableType]:
    """Yields a diagram of the data path, with its bottleneck marked, and a sentence of advice."""
    advice, marked = BOTTLENECK_ADVICE[status.bottleneck], _BOTTLENECK_POSITIONS.get(status.bottleneck)
    arrow, taken = ("──▶", "", ""), sum(each.samples_per_s for each in status.streams)
    # Each cell has the name of a stage and two lines of figures; arrows lead from one stage to the next.
    cells = [
        (" read ", f"{status.reading_fraction:.0%}", "of the workers"),
        arrow,
        (" decode ", f"{status.decoding_fraction:.0%}", "of the workers"),
        arrow,
        (" slots ", format_count(status.slots, "slot"), format_bytes(status.memory_used_bytes)),
        arrow,
        (
            " trainers ",
            f"{format_rate(taken)} samples/s",
            f"{status.waiting_trainers:.1f} of {len(status.sessions)} wait",
        ),
    ]
    styles = ["bold"] * len(cells)
    if marked is not None:
        styles[marked] = "bold reverse green" if marked == _TRAINERS_POSITION else "bold reverse yellow"
    names, *figures = zip(*cells, strict=True)
    diagram = Table.grid(padding=(0, 1), pad_edge=False)
    diagram.add_row(*map(Text, names, styles))
    for row in figures:
        diagram.add_row(*map(Text, row))
    yield diagram
    yield Text(advice.sentence, style="dim" if marked is None else "yellow" if advice.is_bad else "green")
