"""Findings as lines for people: one screen, unless everything is asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size

from streamd.cli.check.findings import (
    BadSamples,
    Cache,
    Findings,
    Memory,
    Pictures,
    StreamFinding,
    Unpacking,
    Unreadable,
    Weights,
    copied,
    distinct,
    per_batch,
)
from streamd.cli.check.labels import LabelFinding
from streamd.cli.check.trainers_that_fit import Room
from streamd.config.units import format_bytes
from streamd.core.spec import BadPolicy
from streamd.core.text import escape_unprintable, format_count, format_duration
from streamd.limits import DEFAULT_CREDIT

_BAR_CHARS: Final = 30
_FEW_CLASSES: Final = 12  # all of them are shown; of more, the largest and the smallest
_END_CLASSES: Final = 5
_FILES: Final = 20  # unreadable ones that are named
_REMEDIES: Final[dict[BadPolicy, str]] = {
    "substitute": "substitute: the next good image of the batch takes the place of each",
    "mask": "mask: zeros with weight 0 take the place of each",
    "fail": "fail: the first one stops the stream",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its style, as rich calls it."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """How to write: `everything`, or what fits a screen; `block` is the character that bars are made of."""

    everything: bool = False
    block: str = "█"


def lines(findings: Findings, look: Look) -> Iterator[Line]:
    """The whole report."""
    for name, stream in findings.streams.items():
        yield from _stream(name, stream, look)
        yield Line("")
    yield from _memory(findings)
    if findings.streams:
        yield Line(
            "An epoch's time holds for files that come as fast as just now; how many came from memory rather than from "
            "the disk is not known, so a first epoch may take longer.",
            "dim",
        )
    yield from _verdicts("Trouble", findings.troubles, "bold red")
    yield from _verdicts("Worth knowing", findings.warnings, "yellow")
    if not findings.troubles:
        yield Line("")
        yield Line("Nothing speaks against serving this.", "bold green")


def _verdicts(title: str, sentences: Sequence[str], style: str) -> Iterator[Line]:
    if sentences:
        yield Line("")
        yield Line(f"{title}:", style)
        yield from (Line(f"  {sentence}") for sentence in sentences)


def _stream(name: str, stream: StreamFinding, look: Look) -> Iterator[Line]:
    height, width = stream.size
    yield Line(
        f"{name}: {format_count(stream.samples, 'sample')}, {format_bytes(stream.bytes)} in {stream.root}; "
        f"{stream.batches:,} batches of {stream.batch_size}, images of {width}x{height}",
        "bold",
    )
    if stream.read < stream.samples:
        yield _row(
            "read", f"{stream.read:,} of {stream.samples:,} files, evenly spread; what is said of files holds for these"
        )
    for label, finding in stream.labels.items():
        yield from _label(label, finding, look)
    if stream.weights is not None:
        yield _row("weights", _weighed(stream.weights, stream.samples))
    yield _row("shuffle", _mixed(stream), "yellow" if stream.poorly_mixed else "")
    if stream.unpacking is not None:
        yield _row("chunks", _unpacked(stream.unpacking, stream))
    yield _row("files", _pictures(stream.pictures))
    yield from _copies(stream.duplicates, look)
    yield from _unreadable(stream.unreadable, stream.bad_samples, look)
    yield _row("memory", _arithmetic(stream.memory))
    if stream.cache is not None:
        yield _row("cache", _kept(stream.cache, stream.samples))
    epoch = stream.epoch
    yield _row(
        "epoch",
        f"takes about {format_duration(epoch.seconds)} with {format_count(epoch.processes, 'worker')}, "
        f"reading alone {format_duration(epoch.reading_s)}",
    )


def _row(name: str, text: str, style: str = "") -> Line:
    return Line(f"  {name:<8} {text}", style)


def _label(name: str, finding: LabelFinding, look: Look) -> Iterator[Line]:
    if finding.classes:
        yield _row(name, f"{finding.type}, {format_count(len(finding.classes), 'class', 'classes')}")
        yield from _bars(finding.classes, look)
    elif finding.least is None:
        yield _row(name, finding.type)
    else:
        yield _row(
            name,
            f"{finding.type} from {finding.least:g} to {finding.most:g}, mean {finding.mean:.4g}, "
            f"standard deviation {finding.std:.4g}",
        )


def _bars(classes: Mapping[str, int], look: Look) -> Iterator[Line]:
    shown = [(escape_unprintable(name), count) for name, count in classes.items()]
    left_out = 0
    if len(shown) > _FEW_CLASSES and not look.everything:
        shown.sort(key=lambda each: -each[1])
        left_out = len(shown) - 2 * _END_CLASSES
        shown = shown[:_END_CLASSES] + shown[-_END_CLASSES:]
    wide, most = max(cell_len(name) for name, _ in shown), max(1, *classes.values())
    for place, (name, count) in enumerate(shown):
        if left_out and place == _END_CLASSES:
            yield _row("", f"  ... {left_out} more (--all shows them) ...", "dim")
        bar = look.block * max(-(-count * _BAR_CHARS // most), 0)
        yield _row("", f"  {set_cell_size(name, wide)}  {bar:<{_BAR_CHARS}} {count:>8,}")


def _mixed(stream: StreamFinding) -> str:
    if stream.stored_score is None:
        return stream.shuffle
    if stream.shuffle_score is None:
        return f"{stream.shuffle}; the stored order has a shuffle score of {stream.stored_score:.2f}"
    return f"{stream.shuffle}; shuffle score {stream.shuffle_score:.2f}, the stored order has {stream.stored_score:.2f}"


def _weighed(weights: Weights, samples: int) -> str:
    span = f"{weights.least:g} to {weights.most:g}, mean {weights.mean:.4g}"
    return f"{span}; {weights.zeros:,} of {format_count(samples, 'sample')} weigh nothing" if weights.zeros else span


def _unpacked(chunks: Unpacking, stream: StreamFinding) -> str:
    return (
        f"compressed, {format_count(chunks.chunk_rows, 'sample')} each, {format_bytes(chunks.chunk_bytes)} when "
        f"decompressed; a batch takes {per_batch(chunks.per_sample, stream)} of them"
    )


def _pictures(pictures: Pictures) -> str:
    if not pictures.sizes:
        return "none of them is an image"
    formats = ", ".join(f"{name} {count:,}" for name, count in pictures.formats.items())
    size, count = next(iter(pictures.sizes.items()))
    others = pictures.distinct_sizes - 1
    sizes = f"all {size}" if not others else f"{size} most ({count:,}), {format_count(others, 'other size')}"
    enlarged = f"; {pictures.enlarged:,} smaller than wanted, enlarged" if pictures.enlarged else ""
    return f"{formats}; {sizes}{enlarged}"


def _copies(duplicates: Sequence[Sequence[str]], look: Look) -> Iterator[Line]:
    copies = [group for group in map(distinct, duplicates) if len(group) > 1]
    if copies:
        hint = "" if look.everything else " (--all names them)"
        yield _row("copies", copied(copies) + hint)
        for group in copies if look.everything else ():
            yield _row("", "  " + " = ".join(group))


def _unreadable(files: Sequence[Unreadable], bad: BadSamples, look: Look) -> Iterator[Line]:
    if not files:
        return
    shown = files if look.everything else files[:_FILES]
    raised = sum(each.effect == "transform" for each in files)
    told = [(len(files) - raised, format_count(len(files) - raised, "unreadable file"))]
    told.append((raised, f"{format_count(raised, 'sample')} that the transform raises on"))
    yield _row("bad", " and ".join(text for count, text in told if count), "red")
    yield from (_row("", f"  {each.file}: {each.reason}") for each in shown)
    if len(shown) < len(files):
        yield _row("", f"  ... {len(files) - len(shown)} more (--all or --json names them)", "dim")
    end = "the daemon would stop the stream" if bad.stops else f"the stream goes on (max_fraction {bad.max_fraction:g})"
    yield _row("", f"bad_samples: {_REMEDIES[bad.policy]}; {end}")


def _memory(findings: Findings) -> Iterator[Line]:
    together = ""
    if findings.together is not None:
        together = f"; if each trainer reads all streams, {_room(findings.together)}"
    yield Line(
        f"memory: {format_bytes(findings.memory_bytes)}, {format_count(findings.workers, 'worker')}{together}", "bold"
    )


def _arithmetic(memory: Memory) -> str:
    return (
        f"a batch takes {format_bytes(memory.batch_bytes)}, a trainer {DEFAULT_CREDIT} of them "
        f"({format_bytes(memory.trainer_bytes)}), the workers {format_bytes(memory.workers_bytes)}; "
        f"{_room(memory.trainers)}"
    )


def _kept(cache: Cache, samples: int) -> str:
    free = f"in {cache.folder}, where {format_bytes(cache.free_bytes)} are free"
    if cache.samples == samples:
        return f"takes {format_bytes(cache.bytes)} for all samples, {free}"
    part = f"{cache.samples:,} of {format_count(samples, 'sample')}"
    return f"takes {format_bytes(cache.bytes)} for {part} ({format_bytes(cache.all_bytes)} for all), {free}"


def _room(room: Room) -> str:
    if not room.at_most:
        return "no room for a single trainer"
    if room.at_ease == room.at_most:
        return f"room for {format_count(room.at_most, 'trainer')}"
    return f"room for {format_count(room.at_ease, 'trainer')}, or for {room.at_most:,} with fewer batches each"
