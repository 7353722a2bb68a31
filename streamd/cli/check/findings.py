"""The findings of a check, which of them are troubles, and their report. Pure. The fields are those of `--json`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Final

import msgspec
from rich.cells import cell_len, set_cell_size

from streamd.cli.check.labels import (
    LabelFinding,
    MaskFindings,
    SimilarClasses,
    find_box_troubles,
    find_label_warnings,
    find_mask_troubles,
    find_mask_warnings,
    format_similar_classes,
)
from streamd.config.units import format_bytes
from streamd.core.spec import BadPolicy
from streamd.core.text import escape_unprintable, format_count, format_duration, split_long_list
from streamd.ipc.worker_messages import RECORDED_EFFECTS, FaultEffect, PictureOddity
from streamd.limits import DEFAULT_CREDIT

_NAMED_FILES: Final = 3  # files in one sentence
_TOO_MANY_CHUNKS: Final = 2  # times as many chunks as necessary
_ODDITIES: Final[dict[PictureOddity, tuple[str, str]]] = {  # what is odd, and what follows
    "invisible": (
        "of which nothing is visible",
        "alpha is 0 everywhere, so that every pixel is served white; save them without alpha if it means nothing",
    ),
    "dark": (
        "of which nothing but black is served",
        "the highest of their 16 bits are not used, and 65535 is white; rescale them, or use mode: raw with a range",
    ),
    "unturned": (
        "whose EXIF data cannot be read",
        "nothing says which way up they are, so they are served as they are stored",
    ),
}


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that cannot be made into an image, or whose image the transform cannot use."""

    sample_id: int
    file: str
    reason: str
    effect: FaultEffect


@dataclass(frozen=True, slots=True)
class OddPictures:
    """A number of pictures, and the file of the first."""

    count: int
    file: str


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """The numbers of files by format and size; `sizes` are the most frequent of `distinct_sizes`, height first.

    `transparent` is the number of files with an alpha channel or a transparent colour, `odd` the number and the first
    of the pictures that are served, and seldom meant so.
    """

    formats: dict[str, int]
    sizes: dict[str, int]
    distinct_sizes: int
    enlarged: int
    transparent: int = 0
    odd: dict[PictureOddity, OddPictures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadSampleOutcome:
    """How the daemon would treat unreadable files; `stops` is the reason for which it would stop the stream, if any.

    `allowed` is the number of bad pictures that do not stop it; 0 under policy fail. `unreadable_files` are the files
    through which samples cannot be read, where they are fewer than the samples; else 0.
    """

    policy: BadPolicy
    max_fraction: float
    stops: str | None
    allowed: int = 0
    unreadable_files: int = 0

    def format_unreadable(self, samples: int) -> str:
        """Returns how many files cannot be read, and in how many samples they are if that is another number."""
        if not self.unreadable_files:
            return format_count(samples, "unreadable file")
        return f"{format_count(self.unreadable_files, 'unreadable file')}, shown by {format_count(samples, 'sample')}"


@dataclass(frozen=True, slots=True)
class TrainerCapacity:
    """The number of trainers that fit: `at_ease` with the credit that they request by default, `at_most` with less.

    `refusal` is the error of the first trainer if not even one fits.
    """

    at_ease: int
    at_most: int
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory of one stream: of a batch, of a trainer with the credit that it requests, and of the workers."""

    batch_bytes: int
    trainer_bytes: int
    workers_bytes: int
    trainers: TrainerCapacity


@dataclass(frozen=True, slots=True)
class CacheEstimate:
    """A cache of `samples` samples in `bytes`; all samples would need `all_bytes`.

    `free_bytes` includes the bytes that the cache occupies already.
    """

    folder: str
    samples: int
    bytes: int
    all_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class UnpackingEstimate:
    """The cost of compressed chunks of `chunk_rows` samples: in the stream's order, `per_sample` chunks a sample.

    With a shuffle in chunks of `fast_chunk` samples, `fast_buffer` of which are mixed, it would be `fast_per_sample`.
    """

    chunk_rows: int
    chunk_bytes: int
    per_sample: float
    fast_chunk: int
    fast_buffer: int
    fast_per_sample: float


@dataclass(frozen=True, slots=True)
class WeightSummary:
    """The weights of a stream's samples; `zeros` samples have weight 0."""

    least: float
    most: float
    mean: float
    zeros: int


@dataclass(frozen=True, slots=True)
class EpochTimeEstimate:
    """The seconds to read and decode all samples with `processes` workers, and those to read them only."""

    processes: int
    seconds: float
    reading_s: float


@dataclass(frozen=True, slots=True)
class StreamFinding:
    """One stream. `read` samples of `samples` were looked at; `duplicates` are groups of files with one content.

    `shuffle` says how it is shuffled, in words, `shuffle_score` how well that mixes the labels, and `stored_score` the
    same of the stored order: 1 is as good as a full shuffle, None where there is nothing to mix. `poorly_mixed` is what
    to do about it. `unpacking` is None where no chunks are compressed, `weights` where all samples weigh 1.

    `order_id` and `pixel_id` are what `expect` compares; `pixel_id` is empty if nothing could be read. `unexpected` has
    a sentence for each that is not what `expect` asks for.
    """

    samples: int
    read: int
    batches: int
    batch_size: int
    size: tuple[int, int]  # height, width
    bytes: int
    root: str
    labels: dict[str, LabelFinding]
    pictures: ImageSummary
    unreadable: list[UnreadableFile]
    duplicates: list[list[str]]
    bad_samples: BadSampleOutcome
    memory: MemoryEstimate
    epoch: EpochTimeEstimate
    cache: CacheEstimate | None = None
    shuffle: str = "full"
    shuffle_score: float | None = None
    stored_score: float | None = None
    poorly_mixed: str | None = None
    unpacking: UnpackingEstimate | None = None
    weights: WeightSummary | None = None
    order_id: str = ""
    pixel_id: str = ""
    unexpected: list[str] = field(default_factory=list)
    masks: MaskFindings = field(default_factory=MaskFindings)


@dataclass(frozen=True, slots=True)
class DataLeak:
    """`files` of stream `second` have the content of files of stream `first`, for `example` these two."""

    first: str
    second: str
    files: int
    example: tuple[str, str]


@dataclass(frozen=True, slots=True)
class LabelContradiction:
    """Files with one content and different `values` of a label, each named "stream: file"; `trouble` unless numbers."""

    label: str
    files: list[str]
    values: list[str]
    trouble: bool


@dataclass(frozen=True, slots=True)
class CheckFindings:
    """All findings.

    refused: sentences about parts of the configuration that a daemon would refuse.
    refused_here: sentences on why a daemon would not start here and now, with nothing to change in the configuration.
    notes: sentences on what remained unclear, or was skipped.
    """

    memory_bytes: int
    workers: int
    streams: dict[str, StreamFinding]
    together: TrainerCapacity | None = None  # trainers that read all streams
    leaks: list[DataLeak] = field(default_factory=list)
    contradictions: list[LabelContradiction] = field(default_factory=list)
    similar_classes: list[SimilarClasses] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    refused_here: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """The findings that must be corrected; with any of them, the command fails."""
        return [
            *self.refused,
            *(each for name, stream in self.streams.items() for each in _find_stream_troubles(name, stream)),
            *map(format_similar_classes, self.similar_classes),
            *_format_contradictions(each for each in self.contradictions if each.trouble),
        ]

    @property
    def warnings(self) -> list[str]:
        """The findings that a user should know, and that may be intended."""
        found = [
            *(f"streamd serve, started by this user here and now, would refuse: {each}" for each in self.refused_here),
            *self.notes,
            *(each for name, stream in self.streams.items() for each in _find_stream_warnings(name, stream)),
        ]
        # Streams that a trainer can read one at a time, and not together.
        alone = all(stream.memory.trainers.at_most for stream in self.streams.values())
        if alone and self.together is not None and self.together.refusal is not None:
            found.append(
                "no trainer can read all streams at the same time, though it can read any one of them: "
                f"{self.together.refusal}"
            )
        found += [
            f"leakage: {format_count(leak.files, 'file')} of {leak.second} with the same content as files of "
            f"{leak.first}, such as {leak.example[1]} and {leak.example[0]}; what a model memorizes in one looks like "
            "skill in the other"
            for leak in self.leaks
        ]
        return [*found, *_format_contradictions(each for each in self.contradictions if not each.trouble)]

    def to_json(self) -> bytes:
        """Returns one JSON object: the fields, with `ok`, `troubles` and `warnings`."""
        judged = {"ok": not self.troubles, "troubles": self.troubles, "warnings": self.warnings}
        return msgspec.json.encode(judged | msgspec.to_builtins(self))


def list_distinct_files(group: Sequence[str]) -> list[str]:
    """Returns the files of a group, each once: a file is listed as often as links or lines lead to it."""
    return list(dict.fromkeys(group))


def format_copy_count(duplicates: Iterable[Sequence[str]]) -> str:
    """Formats how many files are copies of others."""
    copies = sum(len(list_distinct_files(group)) - 1 for group in duplicates)
    return f"{format_count(copies, 'file')} with the same content as another"


def _find_stream_troubles(name: str, stream: StreamFinding) -> Iterator[str]:
    """Yields what must be corrected in a stream."""
    # Files that cannot be read, then pictures that the transform cannot use.
    if unread := [each for each in stream.unreadable if each.effect != "transform"]:
        first = f"{', the first' if len(unread) > 1 else ''}: {unread[0].file}: {unread[0].reason}"
        yield f"{name}: {stream.bad_samples.format_unreadable(len(unread))}{first}"
    if raised := [each for each in stream.unreadable if each.effect == "transform"]:
        first = f"{', the first' if len(raised) > 1 else ''}: {raised[0].file}: {raised[0].reason}"
        yield f"{name}: the transform raises on {len(raised):,} of {format_count(stream.read, 'sample')}{first}"
    if stream.weights is not None and not stream.weights.most:
        yield f"{name}: every sample has weight 0: nothing is learned from it; does `weights` name the right values?"
    for label, finding in stream.labels.items():
        yield from (f"{name}: {trouble}" for trouble in find_box_troubles(label, finding))
    yield from (f"{name}: {trouble}" for trouble in find_mask_troubles(stream.masks))
    # The stream would stop, unless a larger max_fraction lets it continue with the pictures that are left.
    if stream.bad_samples.stops is not None:
        remedy = ""
        can_skip = all(each.effect in RECORDED_EFFECTS for each in stream.unreadable)
        if stream.bad_samples.policy != "fail" and can_skip and len(stream.unreadable) < stream.read:
            enough = math.ceil(100 * len(stream.unreadable) / stream.read) / 100
            remedy = f"; bad_samples: {{max_fraction: {enough:g}}} would let the stream continue"
        yield f"{name}: the daemon would stop this stream: {stream.bad_samples.stops}{remedy}"
    if stream.memory.trainers.refusal is not None:
        yield stream.memory.trainers.refusal
    yield from stream.unexpected


def _find_stream_warnings(name: str, stream: StreamFinding) -> Iterator[str]:
    """Yields what a user should know about a stream."""
    # A cache that cannot keep anything, or more than the disk has room for.
    cache = stream.cache
    if cache is not None and not cache.samples:
        yield f"{name}: cache.max leaves no room for a single sample: nothing would be kept; set a larger one"
    elif cache is not None and cache.bytes > cache.free_bytes:
        yield (
            f"{name}: the disk of {cache.folder} has no room for the whole cache, so nothing more would be kept; make "
            "room, or set cache.max to the space that may be used"
        )
    # An order in which most of what is decompressed is thrown away.
    chunks = stream.unpacking
    if chunks is not None and chunks.per_sample > _TOO_MANY_CHUNKS * chunks.fast_per_sample:
        yield (
            f"{name}: a batch of {stream.batch_size} decompresses "
            f"{format_chunks_per_batch(chunks.per_sample, stream)} chunks of {format_bytes(chunks.chunk_bytes)}, but "
            f"only {format_chunks_per_batch(chunks.fast_per_sample, stream)} with shuffle: {{kind: chunk, chunk: "
            f"{chunks.fast_chunk}, buffer: {chunks.fast_buffer}}}; use that setting, or shuffle the data once: "
            f"streamd pack {name} DEST --shuffle"
        )
    if stream.poorly_mixed is not None:
        yield f"{name}: {stream.poorly_mixed}"
    for label, finding in stream.labels.items():
        remarks = find_label_warnings(label, finding, is_shuffled=stream.shuffle != "none")
        yield from (f"{name}: {remark}" for remark in remarks)
    yield from (f"{name}: {remark}" for remark in find_mask_warnings(stream.masks))
    # Pictures that are served, and seldom meant so.
    for oddity, found in stream.pictures.odd.items():
        what, effect = _ODDITIES[oddity]
        example = f", such as {found.file}" if found.count > 1 else f", {found.file}"
        yield f"{name}: {format_count(found.count, 'sample')} with a picture {what}{example}: {effect}"
    # Copies of files, and files that are listed several times.
    copies = [group for group in map(list_distinct_files, stream.duplicates) if len(group) > 1]
    if copies:
        yield f"{name}: {format_copy_count(copies)}, such as {copies[0][0]} and {copies[0][1]}"
    again = sum(len(group) - len(list_distinct_files(group)) for group in stream.duplicates)
    if again:
        twice = next(group[0] for group in stream.duplicates if len(list_distinct_files(group)) < len(group))
        yield (
            f"{name}: {format_count(again, 'sample')} whose file is already in the list, through a link or a second "
            f"line, such as {twice}"
        )


def format_chunks_per_batch(per_sample: float, stream: StreamFinding) -> str:
    """Formats the chunks that a whole batch takes, such as `24` or `0.8`."""
    number = stream.batch_size * per_sample
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"  # noqa: PLR2004 - two digits say enough


def _format_contradictions(found: Iterable[LabelContradiction]) -> Iterator[str]:
    """Yields one sentence for each label, however many of its pictures contradict each other."""
    by_label: dict[str, list[LabelContradiction]] = {}
    for each in found:
        by_label.setdefault(each.label, []).append(each)
    for label, those in by_label.items():
        first = those[0]
        by_value: dict[str, str] = {}
        for file, value in zip(first.files, first.values, strict=True):
            by_value.setdefault(value, file)
        shown = ", ".join(f"{file} ({value})" for value, file in islice(by_value.items(), _NAMED_FILES))
        remedy = (
            "for each picture, keep only the entry that is right"
            if first.trouble
            else "fine if these values were really measured"
        )
        if len(set(by_value.values())) < len(by_value):
            remedy += "; a file with two values is in the list twice, through a link or a second line"
        yield f"{format_count(len(those), 'picture')} with different values of {label}, such as {shown}; {remedy}"


# --- Formats findings as text that fits one screen, or in full. Pure.


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
    together = ""
    if findings.together is not None:
        together = f"; if each trainer reads all streams, {_format_capacity(findings.together)}"
    yield ReportLine(
        f"memory: {format_bytes(findings.memory_bytes)}, {format_count(findings.workers, 'worker')}{together}", "bold"
    )
    if findings.streams:
        yield ReportLine(
            "An epoch's time assumes that files are read as fast as they were just now; it is not known how many came "
            "from memory rather than from the disk, so a first epoch may take longer.",
            "dim",
        )
    for title, sentences, style in (
        ("Trouble", findings.troubles, "bold red"),
        ("Worth knowing", findings.warnings, "yellow"),
    ):
        if sentences:
            yield ReportLine("")
            yield ReportLine(f"{title}:", style)
            yield from (ReportLine(f"  {sentence}") for sentence in sentences)
    if not findings.troubles:
        yield ReportLine("")
        what = "Nothing in the configuration or the data" if findings.refused_here else "Nothing"
        yield ReportLine(f"{what} stands in the way of serving this.", "bold green")


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
        shares = "exact shares of the pixels of all" if mask.exact else "estimated shares of the pixels, from"
        counted = f"{format_count(mask.classes, 'class number')}; {shares} {format_count(mask.masks, 'mask')}"
        yield _format_named_line(image, counted)
        yield from _format_class_bars(mask.shares, options, format_share)
    # Weights and order.
    if (weights := stream.weights) is not None:
        span = f"{weights.least:g} to {weights.most:g}, mean {weights.mean:.4g}"
        zeros = (
            f"; {weights.zeros:,} of {format_count(stream.samples, 'sample')} have weight 0" if weights.zeros else ""
        )
        yield _format_named_line("weights", f"{span}{zeros}")
    shuffle = stream.shuffle
    if stream.stored_score is not None and stream.shuffle_score is None:
        shuffle += f"; the stored order has a shuffle score of {stream.stored_score:.2f}"
    elif stream.stored_score is not None:
        shuffle += f"; shuffle score {stream.shuffle_score:.2f}, the stored order has {stream.stored_score:.2f}"
    yield _format_named_line("shuffle", shuffle, "yellow" if stream.poorly_mixed else "")
    if (chunks := stream.unpacking) is not None:
        yield _format_named_line(
            "chunks",
            f"compressed, {format_count(chunks.chunk_rows, 'sample')} each, {format_bytes(chunks.chunk_bytes)} when "
            f"decompressed; a batch takes {format_chunks_per_batch(chunks.per_sample, stream)} of them",
        )
    # The files: what they are, and which are copies or bad.
    yield _format_named_line("files", _format_images(stream.pictures))
    copies = [group for group in map(list_distinct_files, stream.duplicates) if len(group) > 1]
    if copies:
        hint = "" if options.everything else " (--all names them)"
        yield _format_named_line("copies", format_copy_count(copies) + hint)
        for group in copies if options.everything else ():
            yield _format_named_line("", "  " + " = ".join(group))
    if stream.unreadable:
        files = stream.unreadable
        bad = stream.bad_samples
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
    yield from _format_costs(stream)


def _format_costs(stream: StreamFinding) -> Iterator[ReportLine]:
    """Yields what a stream takes of memory, disk and time, and its identity."""
    memory = stream.memory
    yield _format_named_line(
        "memory",
        f"a batch takes {format_bytes(memory.batch_bytes)}, a trainer {DEFAULT_CREDIT} of them "
        f"({format_bytes(memory.trainer_bytes)}), the workers {format_bytes(memory.workers_bytes)}; "
        f"{_format_capacity(memory.trainers)}",
    )
    if stream.order_id:
        found = f'order: "{stream.order_id}", pixels: "{stream.pixel_id}"'
        yield _format_named_line("identity", found, "yellow" if stream.unexpected else "")
    if (cache := stream.cache) is not None:
        what = f"takes {format_bytes(cache.bytes)} for all samples"
        if cache.samples != stream.samples:
            part = f"{cache.samples:,} of {format_count(stream.samples, 'sample')}"
            what = f"takes {format_bytes(cache.bytes)} for {part} ({format_bytes(cache.all_bytes)} for all)"
        yield _format_named_line("cache", f"{what}, in {cache.folder}, where {format_bytes(cache.free_bytes)} is free")
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


def format_share(share: float) -> str:
    """Formats a part of the pixels in percent; what is there is never 0."""
    return f"{share:.2%}" if share >= _LEAST_SHARE else f"below {_LEAST_SHARE:.2%}"


def _format_class_bars(
    classes: Mapping[str, float], options: ReportOptions, format_value: Callable[[float], str] = "{:,}".format
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


def _format_capacity(capacity: TrainerCapacity) -> str:
    if not capacity.at_most:
        return "no room for a single trainer"
    if capacity.at_ease == capacity.at_most:
        return f"room for {format_count(capacity.at_most, 'trainer')}"
    return f"room for {format_count(capacity.at_ease, 'trainer')}, or for {capacity.at_most:,} with fewer batches each"
