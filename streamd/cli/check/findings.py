"""What check found, and what of it is trouble. Pure: the fields are those of `--json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from streamd.cli.check.labels import LabelFinding, remarks
from streamd.cli.check.reader_messages import VERDICTS, Effect
from streamd.cli.check.trainers_that_fit import Room
from streamd.config.units import format_bytes
from streamd.core.spec import BadPolicy
from streamd.core.text import format_count

_NAMED: Final = 3  # files in one sentence
_TOO_OFTEN: Final = 2  # times as many chunks as need be


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that does not become an image, or not one that its transform can use."""

    sample_id: int
    file: str
    reason: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class Pictures:
    """What is in the files, in numbers of them; `sizes` are the most frequent of `distinct_sizes`, width first."""

    formats: dict[str, int]
    sizes: dict[str, int]
    distinct_sizes: int
    enlarged: int


@dataclass(frozen=True, slots=True)
class BadSamples:
    """What the daemon would do about unreadable files; `stops` is why it would stop the stream, if it would."""

    policy: BadPolicy
    max_fraction: float
    stops: str | None


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one stream: of a batch, of a trainer that gets the credit it asks for, of the workers."""

    batch_bytes: int
    trainer_bytes: int
    workers_bytes: int
    trainers: Room


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of `samples` in `bytes`; of all it would be `all_bytes`. `free_bytes` counts what is its own already."""

    folder: str
    samples: int
    bytes: int
    all_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Compressed chunks of `chunk_rows` samples: `per_sample` of them are decompressed in the stream's order.

    In chunks of `fast_chunk` samples, `fast_buffer` of which are mixed, it would be `fast_per_sample`.
    """

    chunk_rows: int
    chunk_bytes: int
    per_sample: float
    fast_chunk: int
    fast_buffer: int
    fast_per_sample: float


@dataclass(frozen=True, slots=True)
class Weights:
    """What the samples of a stream weigh; `zeros` of them nothing."""

    least: float
    most: float
    mean: float
    zeros: int


@dataclass(frozen=True, slots=True)
class EpochTime:
    """Seconds to read and decode all samples with `processes` workers, and to read them only."""

    processes: int
    seconds: float
    reading_s: float


@dataclass(frozen=True, slots=True)
class StreamFinding:
    """One stream. `read` samples of `samples` were looked at; `duplicates` are groups of files with one content.

    `shuffle` says how it is shuffled, in words, `shuffle_score` how well that mixes the labels, and `stored_score` the
    same of the stored order: 1 is as good as a full shuffle, None where there is nothing to mix. `poorly_mixed` is what
    to do about it. `unpacking` is None where no chunks are compressed, `weights` where all samples weigh 1.
    """

    samples: int
    read: int
    batches: int
    batch_size: int
    size: tuple[int, int]  # height, width
    bytes: int
    root: str
    labels: dict[str, LabelFinding]
    pictures: Pictures
    unreadable: list[Unreadable]
    duplicates: list[list[str]]
    bad_samples: BadSamples
    memory: Memory
    epoch: EpochTime
    cache: Cache | None = None
    shuffle: str = "full"
    shuffle_score: float | None = None
    stored_score: float | None = None
    poorly_mixed: str | None = None
    unpacking: Unpacking | None = None
    weights: Weights | None = None


@dataclass(frozen=True, slots=True)
class Leak:
    """`files` of stream `second` have the content of files of stream `first`, for `example` these two."""

    first: str
    second: str
    files: int
    example: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Files with one content and different `values` of a label, each named "stream: file"; `trouble` unless numbers."""

    label: str
    files: list[str]
    values: list[str]
    trouble: bool


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything. Sentences say which keys are `refused`, as not served by this version, and what is of `notes`."""

    memory_bytes: int
    workers: int
    streams: dict[str, StreamFinding]
    together: Room | None = None  # trainers that read all streams
    leaks: list[Leak] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """What has to be mended: with any of it, the command fails."""
        return [
            *self.refused,
            *(each for name, stream in self.streams.items() for each in _troubles(name, stream)),
            *_disagreements(each for each in self.contradictions if each.trouble),
        ]

    @property
    def warnings(self) -> list[str]:
        """What should be known, and may be meant."""
        return [
            *self.notes,
            *(each for name, stream in self.streams.items() for each in _warnings(name, stream)),
            *self._crowding(),
            *map(_leak, self.leaks),
            *_disagreements(each for each in self.contradictions if not each.trouble),
        ]

    def _crowding(self) -> Iterator[str]:
        alone = all(stream.memory.trainers.at_most for stream in self.streams.values())
        if alone and self.together is not None and self.together.refusal is not None:
            yield f"no trainer can read all streams at a time, though any one of them: {self.together.refusal}"

    def to_json(self) -> bytes:
        """One JSON object: the fields, and `ok`, `troubles` and `warnings`."""
        judged = {"ok": not self.troubles, "troubles": self.troubles, "warnings": self.warnings}
        return msgspec.json.encode(judged | msgspec.to_builtins(self))


def distinct(group: Sequence[str]) -> list[str]:
    """The files of a group, each once: a file is listed as often as links or lines lead to it."""
    return list(dict.fromkeys(group))


def copied(duplicates: Iterable[Sequence[str]]) -> str:
    """How many files are copies of others."""
    return f"{format_count(sum(len(distinct(group)) - 1 for group in duplicates), 'file')} with the content of another"


def listed_again(duplicates: Iterable[Sequence[str]]) -> int:
    """How many samples are a file that another sample is too."""
    return sum(len(group) - len(distinct(group)) for group in duplicates)


def _troubles(name: str, stream: StreamFinding) -> Iterator[str]:
    if unread := [each for each in stream.unreadable if each.effect != "transform"]:
        yield f"{name}: {format_count(len(unread), 'unreadable file')}{_first(unread)}"
    if raised := [each for each in stream.unreadable if each.effect == "transform"]:
        yield (
            f"{name}: the transform raises on {len(raised):,} of {format_count(stream.read, 'sample')}{_first(raised)}"
        )
    if stream.weights is not None and not stream.weights.most:
        yield f"{name}: every sample has weight 0: nothing is learned from it; does `weights` name the right values?"
    if stream.bad_samples.stops is not None:
        yield f"{name}: the daemon would stop this stream: {stream.bad_samples.stops}{_enough(stream)}"
    if stream.memory.trainers.refusal is not None:
        yield stream.memory.trainers.refusal


def _first(bad: Sequence[Unreadable]) -> str:
    return f"{'' if len(bad) == 1 else ', the first'}: {bad[0].file}: {bad[0].reason}"


def _enough(stream: StreamFinding) -> str:
    """The max_fraction with which the stream would go on, if any would do."""
    if stream.bad_samples.policy == "fail" or any(each.effect not in VERDICTS for each in stream.unreadable):
        return ""
    if len(stream.unreadable) == stream.read:  # what goes on then has no picture
        return ""
    enough = math.ceil(100 * len(stream.unreadable) / stream.read) / 100
    return f"; bad_samples: {{max_fraction: {enough:g}}} lets it go on"


def _warnings(name: str, stream: StreamFinding) -> Iterator[str]:
    yield from _of_cache(name, stream.cache)
    yield from _of_chunks(name, stream)
    if stream.poorly_mixed is not None:
        yield f"{name}: {stream.poorly_mixed}"
    for label, finding in stream.labels.items():
        yield from (f"{name}: {remark}" for remark in remarks(label, finding))
    copies = [group for group in map(distinct, stream.duplicates) if len(group) > 1]
    if copies:
        yield f"{name}: {copied(copies)}, such as {copies[0][0]} and {copies[0][1]}"
    again = listed_again(stream.duplicates)
    if again:
        twice = next(group[0] for group in stream.duplicates if len(distinct(group)) < len(group))
        yield (
            f"{name}: {format_count(again, 'sample')} of a file that is in the list already, by a link or a "
            "second line, "
            f"such as {twice}"
        )


def _of_cache(name: str, cache: Cache | None) -> Iterator[str]:
    if cache is not None and not cache.samples:
        yield f"{name}: cache.max leaves no room for a single sample: nothing would be kept; set a larger one"
    elif cache is not None and cache.bytes > cache.free_bytes:
        yield (
            f"{name}: the disk of {cache.folder} has no room for the cache: nothing more would be kept; make room, or "
            "set cache.max to what may be used"
        )


def _of_chunks(name: str, stream: StreamFinding) -> Iterator[str]:
    chunks = stream.unpacking
    if chunks is not None and chunks.per_sample > _TOO_OFTEN * chunks.fast_per_sample:
        yield (
            f"{name}: a batch of {stream.batch_size} decompresses {per_batch(chunks.per_sample, stream)} chunks of "
            f"{format_bytes(chunks.chunk_bytes)}, and {per_batch(chunks.fast_per_sample, stream)} with shuffle: "
            f"{{kind: chunk, chunk: {chunks.fast_chunk}, buffer: {chunks.fast_buffer}}}; write that, or mix the data "
            f"once: streamd pack {name} DEST --shuffle"
        )


def per_batch(per_sample: float, stream: StreamFinding) -> str:
    """`24`, `0.8`: of a whole batch."""
    number = stream.batch_size * per_sample
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"  # noqa: PLR2004 - two digits say enough


def _leak(leak: Leak) -> str:
    return (
        f"leakage: {format_count(leak.files, 'file')} of {leak.second} with the content of files of {leak.first}, "
        "such as "
        f"{leak.example[1]} and {leak.example[0]}; what is learned by heart in one looks like skill in the other"
    )


def _disagreements(found: Iterable[Contradiction]) -> Iterator[str]:
    """A sentence a label, however many of its pictures contradict each other."""
    by_label: dict[str, list[Contradiction]] = {}
    for each in found:
        by_label.setdefault(each.label, []).append(each)
    for label, those in by_label.items():
        first = those[0]
        by_value: dict[str, str] = {}
        for file, value in zip(first.files, first.values, strict=True):
            by_value.setdefault(value, file)
        shown = ", ".join(f"{file} ({value})" for value, file in islice(by_value.items(), _NAMED))
        remedy = "keep the one that is right of each" if first.trouble else "fine if they were measured so"
        if len(set(by_value.values())) < len(by_value):
            remedy += "; a file with two values is in the list twice, by a link or a second line"
        yield f"{format_count(len(those), 'picture')} with different values of {label}, such as {shown}; {remedy}"
