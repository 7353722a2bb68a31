"""Formats findings as text that fits one screen, or in full. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from rich.cells import cell_len, set_cell_size

from streamd.cli.check.findings import (
    BadSampleOutcome,
    CacheEstimate,
    CheckFindings,
    ImageSummary,
    MemoryEstimate,
    StreamFinding,
    TrainerCapacity,
    UnpackingEstimate,
    UnreadableFile,
    WeightSummary,
    format_chunks_per_batch,
    format_copy_count,
    list_distinct_files,
)
from streamd.cli.check.labels import LabelFinding
from streamd.cli.check.masks import MaskFinding
from streamd.config.units import format_bytes
from streamd.core.spec import BadPolicy
from streamd.core.text import escape_unprintable, format_count, format_duration, split_long_list
from streamd.limits import DEFAULT_CREDIT

_BAR_CHARS: Final = 30
_LEAST_SHARE: Final = 0.0001  # of a mask's pixels that two decimals of a percent show
_FEW_CLASSES: Final = 24  # up to so many classes are all shown; of more, the largest and the smallest _END_CLASSES
_END_CLASSES: Final = 10
_SHOWN_FILES: Final = 20  # of the unreadable files
_REMEDIES: Final[dict[BadPolicy, str]] = {
    "substitute": "substitute: the next good image of the batch takes the place of each bad one",
    "mask": "mask: zeros with weight 0 take the place of each bad image",
    "fail": "fail: the first one stops the stream",
}


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A line, and its style by the name that rich has for it."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Whether to write everything or what fits a screen, and the character of which bars are made."""

    everything: bool = False
    bar_character: str = "█"


def format_report(findings: CheckFindings, options: ReportOptions) -> Iterator[ReportLine]:
    """Yields the lines of the whole report."""
    for name, stream in findings.streams.items():
        yield from _format_stream(name, stream, options)
        yield ReportLine("")
    yield from _format_total_memory(findings)
    if findings.streams:
        yield ReportLine(
            "An epoch's time assumes that files are read as fast as they were just now; it is not known how many came "
            "from memory rather than from the disk, so a first epoch may take longer.",
            "dim",
        )
    yield from _format_titled_sentences("Trouble", findings.troubles, "bold red")
    yield from _format_titled_sentences("Worth knowing", findings.warnings, "yellow")
    if not findings.troubles:
        yield ReportLine("")
        what = "Nothing in the configuration or the data" if findings.refused_here else "Nothing"
        yield ReportLine(f"{what} stands in the way of serving this.", "bold green")


def _format_titled_sentences(title: str, sentences: Sequence[str], style: str) -> Iterator[ReportLine]:
    if sentences:
        yield ReportLine("")
        yield ReportLine(f"{title}:", style)
        yield from (ReportLine(f"  {sentence}") for sentence in sentences)


def _format_stream(name: str, stream: StreamFinding, options: ReportOptions) -> Iterator[ReportLine]:
    height, width = stream.size
    yield ReportLine(
        f"{name}: {format_count(stream.samples, 'sample')}, {format_bytes(stream.bytes)} in {stream.root}; "
        f"{format_count(stream.batches, 'batch', 'batches')} of {stream.batch_size}, images of {height}x{width}, "
        "height x width",
        "bold",
    )
    if stream.read < stream.samples:
        yield _format_named_line(
            "read",
            f"{stream.read:,} of {format_count(stream.samples, 'file')}, evenly spread; what is reported about files "
            "applies to these",
        )
    for label, finding in stream.labels.items():
        yield from _format_label_rows(label, finding, options)
    for image, mask in stream.masks.classes.items():
        yield from _format_mask_rows(image, mask, options)
    if stream.weights is not None:
        yield _format_named_line("weights", _format_weights(stream.weights, stream.samples))
    yield _format_named_line("shuffle", _format_shuffle(stream), "yellow" if stream.poorly_mixed else "")
    if stream.unpacking is not None:
        yield _format_named_line("chunks", _format_chunks(stream.unpacking, stream))
    yield _format_named_line("files", _format_images(stream.pictures))
    yield from _format_duplicate_files(stream.duplicates, options)
    yield from _format_unreadable(stream.unreadable, stream.bad_samples, options)
    yield _format_named_line("memory", _format_stream_memory(stream.memory))
    if stream.order_id:
        found = f'order: "{stream.order_id}", pixels: "{stream.pixel_id}"'
        yield _format_named_line("identity", found, "yellow" if stream.unexpected else "")
    if stream.cache is not None:
        yield _format_named_line("cache", _format_cache(stream.cache, stream.samples))
    epoch = stream.epoch
    yield _format_named_line(
        "epoch",
        f"takes about {format_duration(epoch.seconds)} with {format_count(epoch.processes, 'worker')}, reading alone "
        f"{format_duration(epoch.reading_s)}",
    )


def _format_named_line(name: str, text: str, style: str = "") -> ReportLine:
    return ReportLine(f"  {name:<8} {text}", style)


def _format_label_rows(name: str, finding: LabelFinding, options: ReportOptions) -> Iterator[ReportLine]:
    if finding.boxes is not None:
        yield _format_named_line(
            name,
            f"{finding.boxes.count:,} {finding.type}, at most {finding.boxes.most:,} in a sample; "
            f"{format_count(finding.boxes.samples_without, 'sample has', 'samples have')} none",
        )
        if finding.classes:
            yield from _format_class_bars(finding.classes, options)
    elif finding.classes:
        yield _format_named_line(name, f"{finding.type}, {format_count(len(finding.classes), 'class', 'classes')}")
        yield from _format_class_bars(finding.classes, options)
    elif finding.least is None:
        yield _format_named_line(name, finding.type)
    else:
        yield _format_named_line(
            name,
            f"{finding.type} from {finding.least:g} to {finding.most:g}, mean {finding.mean:.4g}, standard deviation "
            f"{finding.std:.4g}",
        )


def _format_mask_rows(name: str, mask: MaskFinding, options: ReportOptions) -> Iterator[ReportLine]:
    shares = "exact shares of the pixels of all" if mask.exact else "estimated shares of the pixels, from"
    yield _format_named_line(
        name, f"{format_count(mask.classes, 'class number')}; {shares} {format_count(mask.masks, 'mask')}"
    )
    yield from _format_class_bars(mask.shares, options, format_share)


def format_share(share: float) -> str:
    """Formats a part of the pixels in percent; what is there is never 0."""
    return f"{share:.2%}" if share >= _LEAST_SHARE else f"below {_LEAST_SHARE:.2%}"


def _format_number(number: float) -> str:
    return f"{number:,}"


def _format_class_bars(
    classes: Mapping[str, float], options: ReportOptions, format_value: Callable[[float], str] = _format_number
) -> Iterator[ReportLine]:
    shown = [(escape_unprintable(name), count) for name, count in classes.items()]
    left_out = 0
    if len(shown) > _FEW_CLASSES and not options.everything:
        shown.sort(key=lambda each: -each[1])
        left_out = len(shown) - 2 * _END_CLASSES
        shown = shown[:_END_CLASSES] + shown[-_END_CLASSES:]
    wide, most = max(cell_len(name) for name, _ in shown), max(classes.values()) or 1
    for place, (name, count) in enumerate(shown):
        if left_out and place == _END_CLASSES:
            yield _format_named_line("", f"  ... {left_out} more (--all shows them) ...", "dim")
        bar = options.bar_character * ceil(count * _BAR_CHARS / most)
        yield _format_named_line("", f"  {set_cell_size(name, wide)}  {bar:<{_BAR_CHARS}} {format_value(count):>8}")


def _format_shuffle(stream: StreamFinding) -> str:
    if stream.stored_score is None:
        return stream.shuffle
    if stream.shuffle_score is None:
        return f"{stream.shuffle}; the stored order has a shuffle score of {stream.stored_score:.2f}"
    return f"{stream.shuffle}; shuffle score {stream.shuffle_score:.2f}, the stored order has {stream.stored_score:.2f}"


def _format_weights(weights: WeightSummary, samples: int) -> str:
    span = f"{weights.least:g} to {weights.most:g}, mean {weights.mean:.4g}"
    return f"{span}; {weights.zeros:,} of {format_count(samples, 'sample')} have weight 0" if weights.zeros else span


def _format_chunks(chunks: UnpackingEstimate, stream: StreamFinding) -> str:
    return (
        f"compressed, {format_count(chunks.chunk_rows, 'sample')} each, {format_bytes(chunks.chunk_bytes)} when "
        f"decompressed; a batch takes {format_chunks_per_batch(chunks.per_sample, stream)} of them"
    )


def _format_images(pictures: ImageSummary) -> str:
    if not pictures.sizes:
        return "none of them is an image"
    formats = ", ".join(f"{name} {count:,}" for name, count in pictures.formats.items())
    size, count = next(iter(pictures.sizes.items()))
    others = pictures.distinct_sizes - 1
    sizes = f"all {size}" if not others else f"mostly {size} ({count:,}), {format_count(others, 'other size')}"
    enlarged = f"; {pictures.enlarged:,} smaller than wanted, enlarged" if pictures.enlarged else ""
    transparent = f"; {pictures.transparent:,} with transparency, placed on white" if pictures.transparent else ""
    return f"{formats}; {sizes}{enlarged}{transparent}"


def _format_duplicate_files(duplicates: Sequence[Sequence[str]], options: ReportOptions) -> Iterator[ReportLine]:
    copies = [group for group in map(list_distinct_files, duplicates) if len(group) > 1]
    if copies:
        hint = "" if options.everything else " (--all names them)"
        yield _format_named_line("copies", format_copy_count(copies) + hint)
        for group in copies if options.everything else ():
            yield _format_named_line("", "  " + " = ".join(group))


def _format_unreadable(
    files: Sequence[UnreadableFile], bad: BadSampleOutcome, options: ReportOptions
) -> Iterator[ReportLine]:
    if not files:
        return
    shown, left_out = (files, 0) if options.everything else split_long_list(files, _SHOWN_FILES)
    raised = sum(each.effect == "transform" for each in files)
    counts = [(len(files) - raised, bad.format_unreadable(len(files) - raised))]
    counts.append((raised, f"{format_count(raised, 'sample')} that the transform raises on"))
    yield _format_named_line("bad", " and ".join(text for count, text in counts if count), "red")
    yield from (_format_named_line("", f"  {each.file}: {each.reason}") for each in shown)
    if left_out:
        yield _format_named_line("", f"  ... {left_out} more (--all or --json names them)", "dim")
    end = (
        "the daemon would stop the stream"
        if bad.stops
        else f"the stream continues, since up to {format_count(bad.allowed, 'picture')} may be bad"
    )
    yield _format_named_line("", f"bad_samples: {_REMEDIES[bad.policy]}; {end}")


def _format_total_memory(findings: CheckFindings) -> Iterator[ReportLine]:
    together = ""
    if findings.together is not None:
        together = f"; if each trainer reads all streams, {_format_capacity(findings.together)}"
    yield ReportLine(
        f"memory: {format_bytes(findings.memory_bytes)}, {format_count(findings.workers, 'worker')}{together}", "bold"
    )


def _format_stream_memory(memory: MemoryEstimate) -> str:
    return (
        f"a batch takes {format_bytes(memory.batch_bytes)}, a trainer {DEFAULT_CREDIT} of them "
        f"({format_bytes(memory.trainer_bytes)}), the workers {format_bytes(memory.workers_bytes)}; "
        f"{_format_capacity(memory.trainers)}"
    )


def _format_cache(cache: CacheEstimate, samples: int) -> str:
    free = f"in {cache.folder}, where {format_bytes(cache.free_bytes)} is free"
    if cache.samples == samples:
        return f"takes {format_bytes(cache.bytes)} for all samples, {free}"
    part = f"{cache.samples:,} of {format_count(samples, 'sample')}"
    return f"takes {format_bytes(cache.bytes)} for {part} ({format_bytes(cache.all_bytes)} for all), {free}"


def _format_capacity(capacity: TrainerCapacity) -> str:
    if not capacity.at_most:
        return "no room for a single trainer"
    if capacity.at_ease == capacity.at_most:
        return f"room for {format_count(capacity.at_most, 'trainer')}"
    return f"room for {format_count(capacity.at_ease, 'trainer')}, or for {capacity.at_most:,} with fewer batches each"
