"""The findings of a check, and which of them are troubles. Pure. The fields are those of `--json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from streamd.cli.check.labels import (
    LabelFinding,
    SimilarClasses,
    find_box_troubles,
    find_label_warnings,
    format_similar_classes,
)
from streamd.cli.check.masks import MaskFindings, find_mask_troubles, find_mask_warnings
from streamd.cli.check.reader_messages import RECORDED_EFFECTS, FaultEffect, PictureOddity
from streamd.config.units import format_bytes
from streamd.core.spec import BadPolicy
from streamd.core.text import format_count

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
        return [
            *(f"streamd serve, started by this user here and now, would refuse: {each}" for each in self.refused_here),
            *self.notes,
            *(each for name, stream in self.streams.items() for each in _find_stream_warnings(name, stream)),
            *self._find_joint_memory_warning(),
            *map(_format_leak, self.leaks),
            *_format_contradictions(each for each in self.contradictions if not each.trouble),
        ]

    def _find_joint_memory_warning(self) -> Iterator[str]:
        alone = all(stream.memory.trainers.at_most for stream in self.streams.values())
        if alone and self.together is not None and self.together.refusal is not None:
            yield (
                "no trainer can read all streams at the same time, though it can read any one of them: "
                f"{self.together.refusal}"
            )

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
    if unread := [each for each in stream.unreadable if each.effect != "transform"]:
        yield f"{name}: {stream.bad_samples.format_unreadable(len(unread))}{_format_first_unreadable_file(unread)}"
    if raised := [each for each in stream.unreadable if each.effect == "transform"]:
        yield (
            f"{name}: the transform raises on {len(raised):,} of "
            f"{format_count(stream.read, 'sample')}{_format_first_unreadable_file(raised)}"
        )
    if stream.weights is not None and not stream.weights.most:
        yield f"{name}: every sample has weight 0: nothing is learned from it; does `weights` name the right values?"
    for label, finding in stream.labels.items():
        yield from (f"{name}: {trouble}" for trouble in find_box_troubles(label, finding))
    yield from (f"{name}: {trouble}" for trouble in find_mask_troubles(stream.masks))
    if stream.bad_samples.stops is not None:
        yield (
            f"{name}: the daemon would stop this stream: "
            f"{stream.bad_samples.stops}{_format_sufficient_max_fraction(stream)}"
        )
    if stream.memory.trainers.refusal is not None:
        yield stream.memory.trainers.refusal
    yield from stream.unexpected


def _format_first_unreadable_file(bad: Sequence[UnreadableFile]) -> str:
    return f"{'' if len(bad) == 1 else ', the first'}: {bad[0].file}: {bad[0].reason}"


def _format_sufficient_max_fraction(stream: StreamFinding) -> str:
    """Formats the max_fraction with which the stream would not stop, if there is one."""
    if stream.bad_samples.policy == "fail" or any(each.effect not in RECORDED_EFFECTS for each in stream.unreadable):
        return ""
    if len(stream.unreadable) == stream.read:  # no picture would be left
        return ""
    enough = math.ceil(100 * len(stream.unreadable) / stream.read) / 100
    return f"; bad_samples: {{max_fraction: {enough:g}}} would let the stream continue"


def _find_stream_warnings(name: str, stream: StreamFinding) -> Iterator[str]:
    yield from _find_cache_warning(name, stream.cache)
    yield from _find_decompression_warning(name, stream)
    if stream.poorly_mixed is not None:
        yield f"{name}: {stream.poorly_mixed}"
    for label, finding in stream.labels.items():
        remarks = find_label_warnings(label, finding, is_shuffled=stream.shuffle != "none")
        yield from (f"{name}: {remark}" for remark in remarks)
    yield from (f"{name}: {remark}" for remark in find_mask_warnings(stream.masks))
    for oddity, found in stream.pictures.odd.items():
        what, effect = _ODDITIES[oddity]
        example = f", such as {found.file}" if found.count > 1 else f", {found.file}"
        yield f"{name}: {format_count(found.count, 'sample')} with a picture {what}{example}: {effect}"
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


def _find_cache_warning(name: str, cache: CacheEstimate | None) -> Iterator[str]:
    if cache is not None and not cache.samples:
        yield f"{name}: cache.max leaves no room for a single sample: nothing would be kept; set a larger one"
    elif cache is not None and cache.bytes > cache.free_bytes:
        yield (
            f"{name}: the disk of {cache.folder} has no room for the whole cache, so nothing more would be kept; make "
            "room, or set cache.max to the space that may be used"
        )


def _find_decompression_warning(name: str, stream: StreamFinding) -> Iterator[str]:
    chunks = stream.unpacking
    if chunks is not None and chunks.per_sample > _TOO_MANY_CHUNKS * chunks.fast_per_sample:
        yield (
            f"{name}: a batch of {stream.batch_size} decompresses "
            f"{format_chunks_per_batch(chunks.per_sample, stream)} chunks of {format_bytes(chunks.chunk_bytes)}, but "
            f"only {format_chunks_per_batch(chunks.fast_per_sample, stream)} with shuffle: {{kind: chunk, chunk: "
            f"{chunks.fast_chunk}, buffer: {chunks.fast_buffer}}}; use that setting, or shuffle the data once: "
            f"streamd pack {name} DEST --shuffle"
        )


def format_chunks_per_batch(per_sample: float, stream: StreamFinding) -> str:
    """Formats the chunks that a whole batch takes, such as `24` or `0.8`."""
    number = stream.batch_size * per_sample
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"  # noqa: PLR2004 - two digits say enough


def _format_leak(leak: DataLeak) -> str:
    return (
        f"leakage: {format_count(leak.files, 'file')} of {leak.second} with the same content as files of {leak.first}, "
        f"such as {leak.example[1]} and {leak.example[0]}; what a model memorizes in one looks like skill in the other"
    )


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
