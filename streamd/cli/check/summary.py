"""Builds the findings from the listed and read samples, with estimates of memory, time, cache and order."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from streamd.cli.check import labels
from streamd.cli.check.findings import (
    BadSampleOutcome,
    CacheEstimate,
    CheckFindings,
    DataLeak,
    EpochTimeEstimate,
    ImageSummary,
    LabelContradiction,
    MemoryEstimate,
    OddPictures,
    StreamFinding,
    TrainerCapacity,
    UnpackingEstimate,
    UnreadableFile,
    WeightSummary,
)
from streamd.cli.check.labels import FileContents
from streamd.cli.check.masks import build_mask_findings
from streamd.cli.check.reader_messages import (
    RECORDED_EFFECTS,
    ClassPixels,
    GroupResult,
    OddBoxes,
    OddSizes,
    PictureOddity,
    SampleFault,
    SampleGroup,
)
from streamd.config.schema import Config
from streamd.core.sampler import PAD_ID, Ids, SampleOrder, compute_ids_of_batches
from streamd.core.spec import Cursor, LabelSpec, PixelId, StreamShape, StreamSpec
from streamd.core.text import format_count
from streamd.daemon.streams.catalog import find_expected_identities
from streamd.daemon.streams.served_stream import ServedStream
from streamd.daemon.streams.shuffle_score import score_stored_order_mixing
from streamd.dataset.cache import CacheLayout
from streamd.dataset.hdf5.chunk_grid import CompressedArray
from streamd.dataset.hdf5.library_store import ChunkCache
from streamd.dataset.manifest.types import Int64s
from streamd.decode.pixel_id import compute_sample_pixel_id
from streamd.limits import CHUNKS_KEPT_BYTES, DEFAULT_CREDIT, MASKS_COUNTED, MAX_SESSIONS, TASK_ROWS, UNPACKING_ROWS
from streamd.scheduler.admission import AdmissionDenial, SchedulerLimits, admit_session, compute_production_slots
from streamd.scheduler.events import Subscribed
from streamd.scheduler.session import ScheduledSession

_MAX_SIZES: Final = 20  # the most frequent ones are kept

StreamsByName = Mapping[str, ServedStream]
DuplicateGroups = Sequence[Sequence[labels.StreamSample]]


def build_findings(
    all_totals: Sequence[StreamTotals], config: Config, processes: int, *, notes: list[str]
) -> CheckFindings:
    """Builds all findings about the streams of `config`, which `processes` processes have read."""
    streams = {tally.stream.spec.name: tally.stream for tally in all_totals}
    contents = {tally.stream.spec.name: tally.comparable_contents for tally in all_totals}
    groups = labels.find_duplicate_groups(contents)
    shared = labels.find_shared_files(groups)
    alike = labels.group_identical_streams(shared, {name: each.ids.size for name, each in contents.items()})
    reported = {name for group in alike for name in group[1:]}
    shapes = [stream.stream_shape for stream in streams.values()]
    similar = list(_find_similar_classes(streams, config))
    return CheckFindings(
        memory_bytes=config.memory,
        workers=config.worker_count,
        streams={
            tally.stream.spec.name: _build_stream_finding(tally, config, processes, groups) for tally in all_totals
        },
        together=compute_trainer_capacity(shapes, _build_scheduler_limits(config)) if len(shapes) > 1 else None,
        leaks=[_build_data_leak(each, streams) for each in shared if reported.isdisjoint((each.first, each.second))],
        contradictions=list(_find_contradictions(groups, streams)),
        similar_classes=[each for each in similar if not each.are_boxes],
        notes=[
            *notes,
            *_find_random_crop_warnings(streams),
            *_find_clip_split_warnings(streams, config),
            *(labels.format_similar_classes(each) for each in similar if each.are_boxes),
            *map(_format_identical_streams, alike),
        ],
    )


def _find_random_crop_warnings(streams: StreamsByName) -> Iterator[str]:
    """Warns of random crops in streams in stored order, which are those for evaluation."""
    for name, stream in streams.items():
        if (stream.spec.shuffle, stream.spec.image.resize) == ("none", "random_crop"):
            yield (
                f"{name}: is not shuffled, as for evaluation, and shows a different part of each image in every "
                "epoch, so that results differ by chance; set image.resize: crop there"
            )


def _find_clip_split_warnings(streams: StreamsByName, config: Config) -> Iterator[str]:
    """Warns of clips whose split may put rows of one sequence into both parts, which then share pictures."""
    for name in streams:
        stream = config.streams[name]
        if stream.split is None or stream.source.part not in {"train", "validation"}:
            continue
        for image, settings in stream.all_images.items():
            if settings.frames is not None and stream.split.by != settings.frames.by:
                yield (
                    f"{name}: the clips of {image!r} show neighbouring rows, which the split may have put into the "
                    f"other part, so that validation looks better than it is; add  by: {settings.frames.by}  to split"
                )


def _format_identical_streams(names: Sequence[str]) -> str:
    return (
        f"{', '.join(names[:-1])} and {names[-1]} hold the same files: fine for training, but a model trained on one "
        "of them cannot be judged on the others"
    )


def _build_stream_finding(
    totals: StreamTotals, config: Config, processes: int, groups: DuplicateGroups
) -> StreamFinding:
    stream, spec = totals.stream, totals.stream.spec
    in_order = score_stored_order_mixing(spec, stream.manifest.gather_label)
    chunks = estimate_unpacking(stream, processes)
    return StreamFinding(
        samples=spec.samples,
        read=totals.samples_read,
        batches=spec.batches,
        batch_size=spec.batch_size,
        size=(spec.image.height, spec.image.width),
        bytes=int(stream.manifest.sizes.sum()),
        root=os.fsencode(stream.manifest.root).decode(errors="backslashreplace"),
        labels={name: _build_label_finding(each, totals) for name, each in spec.labels.items()},
        pictures=_summarize_images(totals, config.streams[spec.name].source.kind),
        unreadable=_list_unreadable(totals),
        duplicates=[
            [stream.format_file_name(sample_id) for sample_id in ids]
            for ids in labels.find_repeated_samples(groups, spec.name)
        ],
        bad_samples=_judge_bad_samples(totals),
        memory=_estimate_memory(stream, config),
        epoch=_estimate_epoch_time(totals, processes, chunks),
        cache=estimate_cache(stream),
        shuffle=_describe_shuffle(spec),
        shuffle_score=stream.shuffle_score,
        stored_score=None if in_order is None else in_order.score,
        poorly_mixed=stream.mixing_advice,
        unpacking=chunks,
        weights=_summarize_weights(stream),
        order_id=spec.order_id,
        pixel_id=totals.pixel_id,
        unexpected=_list_unexpected_identities(totals, config),
        masks=build_mask_findings(
            spec.images, spec.samples, totals.class_pixels, totals.odd_sizes, stream.format_file_name
        ),
    )


def _build_label_finding(label: LabelSpec, totals: StreamTotals) -> labels.LabelFinding:
    manifest, name = totals.stream.manifest, label.name
    if not label.is_ragged:
        return labels.build_label_finding(label, manifest.label_column(name))
    odd = totals.odd_boxes.get(name, OddBoxes())
    return labels.build_box_finding(label, manifest.ragged_column(name), odd, totals.stream.format_file_name)


def _list_unexpected_identities(totals: StreamTotals, config: Config) -> list[str]:
    spec = totals.stream.spec
    expected = find_expected_identities(config, spec.name)
    if expected is None:
        return []
    others = [expected.explain_other_order(spec.name, spec.order_id)]
    if totals.pixel_id:
        others.append(expected.explain_other_pixels(spec.name, totals.pixel_id))
    return [each for each in others if each is not None]


def _summarize_weights(stream: ServedStream) -> WeightSummary | None:
    weights = stream.manifest.gather_weights(np.arange(stream.spec.samples))
    if (weights == 1).all():
        return None
    least, most, mean = weights.min(), weights.max(), weights.mean(dtype=np.float64)
    return WeightSummary(float(least), float(most), float(mean), int(np.count_nonzero(weights == 0)))


def _describe_shuffle(spec: StreamSpec) -> str:
    if spec.shuffle != "chunk":
        return spec.shuffle
    return f"chunk, {format_count(spec.buffer, 'chunk')} of {format_count(spec.chunk, 'sample')} at a time"


def _summarize_images(totals: StreamTotals, kind: str) -> ImageSummary:
    """Describes the files of a source of this kind, which stands for the format of arrays."""
    sizes = dict(totals.sizes.most_common(_MAX_SIZES))
    formats = dict(totals.formats.most_common())
    if totals.stream.manifest.arrays is not None and totals.sizes:
        formats = {kind.upper(): totals.sizes.total()}
    odd = {
        oddity: OddPictures(len(ids), totals.stream.format_file_name(min(ids)))
        for oddity, ids in totals.odd_pictures.items()
    }
    return ImageSummary(formats, sizes, len(totals.sizes), totals.enlarged, totals.transparent, odd)


def _list_unreadable(totals: StreamTotals) -> list[UnreadableFile]:
    faults = sorted(totals.faults, key=lambda fault: fault.sample_id)
    return [
        UnreadableFile(each.sample_id, totals.stream.format_file_name(each.sample_id), each.reason, each.effect)
        for each in faults
    ]


def _judge_bad_samples(totals: StreamTotals) -> BadSampleOutcome:
    stream = totals.stream
    unread = [fault for fault in totals.faults if fault.effect != "transform"]
    files = len({stream.find_bad_picture(fault.sample_id, fault.reason) for fault in unread})
    return BadSampleOutcome(
        stream.spec.bad_policy,
        stream.max_bad_fraction,
        _explain_stream_stop(totals),
        stream.count_allowed_pictures(),
        files if files < len(unread) else 0,
    )


def _explain_stream_stop(totals: StreamTotals) -> str | None:
    """Returns why the daemon would stop the stream because of these files, in the daemon's words where possible."""
    stream = totals.stream
    known = stream.quarantine.reasons  # of this look alone, in memory
    known.update({fault.sample_id: fault.reason for fault in totals.faults if fault.effect in RECORDED_EFFECTS})
    reason = stream.explain_too_many_bad_samples()
    other = next((fault for fault in totals.faults if fault.effect not in RECORDED_EFFECTS), None)
    if reason is not None or other is None:
        return reason
    return f"{stream.format_file_name(other.sample_id)}: {other.reason}, and the stream does not skip such a fault"


def _estimate_memory(stream: ServedStream, config: Config) -> MemoryEstimate:
    shape = stream.stream_shape
    limits = _build_scheduler_limits(config)
    return MemoryEstimate(
        shape.slot_bytes,
        DEFAULT_CREDIT * shape.slot_bytes,
        compute_production_slots(shape, limits) * shape.slot_bytes,
        compute_trainer_capacity([shape], limits),
    )


def compute_trainer_capacity(shapes: Sequence[StreamShape], limits: SchedulerLimits) -> TrainerCapacity:
    """Computes how many trainers fit that each read all of `shapes`, up to the most that a daemon accepts.

    The scheduler's own code admits one after another.
    """
    sessions: list[ScheduledSession] = []
    at_ease = 0
    while len(sessions) + len(shapes) <= MAX_SESSIONS:
        denial = next((each for shape in shapes if (each := _try_admit_session(sessions, shape, limits))), None)
        if denial is not None:
            trainers = len(sessions) // len(shapes)
            return TrainerCapacity(at_ease, trainers, None if trainers else denial.text)
        if all(session.credit == DEFAULT_CREDIT for session in sessions):
            at_ease = len(sessions) // len(shapes)
    return TrainerCapacity(at_ease, len(sessions) // len(shapes))


def _try_admit_session(
    sessions: list[ScheduledSession], shape: StreamShape, limits: SchedulerLimits
) -> AdmissionDenial | None:
    """Adds one more session of `shape`; returns the denial if it does not fit."""
    subscribed = Subscribed(len(sessions), shape.name, 0, 1, "drop", None, Cursor(), DEFAULT_CREDIT, resuming=False)
    verdict = admit_session(subscribed, shape, sessions, limits)
    if isinstance(verdict, AdmissionDenial):
        return verdict
    for number, credit in verdict.shrunk_credits.items():
        sessions[number].credit = credit
    sessions.append(ScheduledSession.from_subscription(subscribed, shape, verdict.credit))
    return None


def _build_scheduler_limits(config: Config) -> SchedulerLimits:
    return SchedulerLimits(config.memory, config.worker_count)


def _estimate_epoch_time(totals: StreamTotals, processes: int, chunks: UnpackingEstimate | None) -> EpochTimeEstimate:
    scale = totals.stream.spec.samples / totals.samples_read / processes
    read_s = totals.read_s
    if chunks is not None and totals.unpacked_chunks:  # read in stored order, where each chunk was wanted but once
        read_s += totals.unpack_s * (totals.samples_read * chunks.per_sample / totals.unpacked_chunks - 1)
    return EpochTimeEstimate(processes, (read_s + totals.decode_s) * scale, read_s * scale)


def _build_data_leak(shared: labels.SharedFiles, streams: StreamsByName) -> DataLeak:
    first, second = shared.example
    names = (streams[shared.first].format_file_name(first), streams[shared.second].format_file_name(second))
    return DataLeak(shared.first, shared.second, shared.files, names)


def _find_similar_classes(streams: StreamsByName, config: Config) -> Iterator[labels.SimilarClasses]:
    """Finds classes with names that differ slightly, which are probably one.

    Skips those that a configuration lists, and classes without a box.
    """
    specs = {
        name: label
        for stream in streams.values()
        for name, label in stream.spec.labels.items()
        if not _has_listed_classes(name, streams, config)
    }
    for name, spec in specs.items():
        for group in labels.group_similar_names(dict.fromkeys(str(each) for each in spec.classes)):
            uses = [_build_class_use(name, each, streams) for each in group]
            used = [each for each in uses if each.samples or not spec.is_ragged]
            if len(used) > 1:
                yield labels.SimilarClasses(name, used, spec.is_ragged)


def _has_listed_classes(label: str, streams: StreamsByName, config: Config) -> bool:
    wanted = ((config.streams[name].labels or {}).get(label) for name in streams)
    return any(each is not None and (each.classes is not None or isinstance(each.source, tuple)) for each in wanted)


def _build_class_use(label: str, class_name: str, streams: StreamsByName) -> labels.ClassUse:
    """Returns the number of a class's samples in all streams, and the first sample."""
    samples, example = 0, ""
    for name, stream in streams.items():
        spec = stream.spec.labels.get(label)
        number = (
            next((number for number, each in enumerate(spec.classes) if str(each) == class_name), -1) if spec else -1
        )
        if spec is None or number < 0 or not spec.counts[number]:
            continue
        if not example:
            listed = stream.manifest
            column = listed.ragged_column(label) if spec.is_ragged else listed.label_column(label)
            example = f"{name}: {stream.format_file_name(labels.find_first_sample_of_class(spec, column, number))}"
        samples += spec.counts[number]
    return labels.ClassUse(class_name, samples, example)


def _find_contradictions(groups: DuplicateGroups, streams: StreamsByName) -> Iterator[LabelContradiction]:
    specs = {
        name: {label: spec for label, spec in stream.spec.labels.items() if not spec.is_ragged}
        for name, stream in streams.items()
    }
    values = {
        name: {label: stream.manifest.label_column(label) for label in specs[name]} for name, stream in streams.items()
    }

    def format_sample_value(label: str, stream: str, sample_id: int) -> str:
        rows = streams[stream].manifest.gather_label(label, np.array([sample_id]))
        return _format_label_value(specs[stream][label], rows[0])

    for conflict in labels.find_label_conflicts(groups, specs, values):
        yield LabelContradiction(
            conflict.label,
            [f"{stream}: {streams[stream].format_file_name(sample_id)}" for stream, sample_id in conflict.samples],
            [format_sample_value(conflict.label, *twin) for twin in conflict.samples],
            trouble=conflict.type in {"category", "tags"},
        )


def _format_label_value(spec: LabelSpec, value: Any) -> str:
    """Formats a label's value for users; `value` is the value in a batch."""
    if spec.type == "category":
        return str(spec.classes[int(value)])
    if spec.type == "tags":
        return " and ".join(str(spec.classes[place]) for place in np.flatnonzero(value)) or "no tag"
    return ", ".join(f"{each:g}" for each in np.atleast_1d(value).tolist())


# --- what a cache takes of the disk, and an order decompresses


def estimate_cache(stream: ServedStream) -> CacheEstimate | None:
    """Estimates a stream's cache without creating it; None for a stream without one."""
    if stream.cache is None:
        return None
    folder = Path(stream.cache.folder)
    shape = CacheLayout.from_stream_spec(stream.spec, compute_sample_pixel_id(stream.spec.images))
    kept = shape.count_rows_within_limit(stream.cache.max_bytes)
    file = folder / shape.cache_file_name
    allocated_bytes = file.stat().st_blocks * 512 if file.is_file() else 0
    return CacheEstimate(
        folder=os.fsencode(folder).decode(errors="backslashreplace"),
        samples=kept,
        bytes=shape.file_bytes(kept),
        all_bytes=shape.file_bytes(shape.samples),
        free_bytes=_measure_free_bytes(folder) + allocated_bytes,
    )


def _measure_free_bytes(folder: Path) -> int:
    """Returns the free bytes of the file system on which the folder is, or will be."""
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.is_dir())).free


def estimate_unpacking(stream: ServedStream, workers: int) -> UnpackingEstimate | None:
    """Estimates decompression from the first batches of a stream; None if it costs the same in any order."""
    packed = CompressedArray.from_manifest(stream.manifest.arrays, stream.manifest.find_extra_column)
    if packed is None:
        return None
    order, rows = stream.order, stream.manifest.lookup_rows(np.arange(stream.spec.samples, dtype=np.int64))
    chunk = packed.compute_shuffle_chunk_samples(rows.size)
    buffer = packed.compute_shuffle_buffer_chunks(rows, chunk)
    fast = msgspec.structs.replace(order, shuffle="chunk", chunk=chunk, buffer=buffer)
    return UnpackingEstimate(
        packed.chunk_rows,
        packed.chunk_bytes,
        _count_chunks_per_sample(packed, order, rows, workers),
        chunk,
        buffer,
        _count_chunks_per_sample(packed, fast, rows, workers),
    )


def _count_chunks_per_sample(array: CompressedArray, order: SampleOrder, rows: Int64s, workers: int) -> float:
    """Returns the chunks that are decompressed for each sample, by workers that take tasks in turn."""
    turns = cycle([ChunkCache(CHUNKS_KEPT_BYTES) for _ in range(workers)])
    unpacked = samples = 0
    for task in _iterate_task_ids(order):
        unpacked += _count_unpacked_chunks(array, rows[task] // array.chunk_rows, next(turns))
        samples += task.size
    return unpacked / samples


def _iterate_task_ids(order: SampleOrder) -> Iterator[Ids]:
    count = min(order.batches, max(1, UNPACKING_ROWS // order.batch_size))
    indices = np.arange(count, dtype=np.int64)
    ids = compute_ids_of_batches(order, 0, indices, np.full(count, order.batch_size, dtype=np.int64))
    for batch in ids.reshape(count, -1):
        for start in range(0, order.batch_size, TASK_ROWS):
            task = batch[start : start + TASK_ROWS]
            if (there := task[task != PAD_ID]).size:
                yield there


def _count_unpacked_chunks(array: CompressedArray, numbers: Int64s, cache: ChunkCache) -> int:
    """Returns how many chunks a worker decompresses for a task that needs the chunks `numbers`."""
    chunk = np.broadcast_to(np.uint8(0), array.chunk_bytes)  # as large, and takes no memory
    wanted, unpacked = np.unique(numbers).tolist(), 0
    for place in cache.order_cached_first((), wanted):
        if cache.get_chunk((), wanted[place]) is None:
            cache.add_chunk((), wanted[place], chunk)
            unpacked += 1
    return unpacked


# --- Sums of a stream's results from the reading processes.


_COUNTED_SEED: Final = 0


def choose_sample_ids(samples: int, max_samples: int | None) -> Int64s:
    """Returns the sample ids to read: all, or `max_samples` of them, evenly spread."""
    if max_samples is None or max_samples >= samples:
        return np.arange(samples, dtype=np.int64)
    return np.arange(max_samples, dtype=np.int64) * samples // max_samples


def choose_counted_ids(ids: Int64s, most: int = MASKS_COUNTED) -> Int64s:
    """Returns the `ids` whose masks are counted, in rising order: all, or `most` of them, always the same ones."""
    if ids.size <= most:
        return ids
    return np.sort(np.random.default_rng(_COUNTED_SEED).choice(ids, most, replace=False))


def split_into_sample_groups(stream: int, ids: Int64s, counted: Int64s) -> Iterator[SampleGroup]:
    """Splits a stream's `ids` into groups as large as a worker's tasks; the masks of the `counted` ones are counted."""
    is_counted = np.isin(ids, counted)
    for start in range(0, ids.size, TASK_ROWS):
        part = slice(start, start + TASK_ROWS)
        yield SampleGroup(stream, ids[part].tolist(), ids[part][is_counted[part]].tolist())


class StreamTotals:
    """One stream's sums; `ids` are the samples to be read, in rising order."""

    def __init__(self, stream: ServedStream, ids: Int64s) -> None:
        self.stream = stream
        self.ids = ids
        self.samples_read = 0
        self.read_s = 0.0
        self.decode_s = 0.0
        self.unpacked_chunks = 0
        self.unpack_s = 0.0
        self.formats: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.enlarged = 0
        self.pixel_id = PixelId("")  # as long as no process has read anything
        self.transparent = 0
        self.odd_pictures: dict[PictureOddity, list[int]] = {}
        self.odd_boxes: dict[str, OddBoxes] = {}
        self.odd_sizes: dict[str, OddSizes] = {}
        self.class_pixels: dict[str, ClassPixels] = {}
        self.faults: list[SampleFault] = []
        self._digests = np.zeros((ids.size, 2), dtype=np.uint64)
        self._good = np.zeros(ids.size, dtype=np.bool_)

    def add_group_result(self, result: GroupResult) -> None:
        """Adds the result of one group."""
        self.samples_read += len(result.ids)
        self.read_s += result.read_s
        self.decode_s += result.decode_s
        self.unpacked_chunks += result.unpacked
        self.unpack_s += result.unpack_s
        self.formats.update(result.formats)
        self.sizes.update(result.sizes)
        self.enlarged += result.enlarged
        self.pixel_id = PixelId(result.pixel_id) or self.pixel_id
        self.transparent += result.transparent
        for oddity, ids in result.odd_pictures.items():
            self.odd_pictures.setdefault(oddity, []).extend(ids)
        for label, odd in result.odd_boxes.items():
            self.odd_boxes[label] = self.odd_boxes.get(label, OddBoxes()).add_odd_boxes(odd)
        for name, sizes in result.odd_sizes.items():
            self.odd_sizes[name] = self.odd_sizes.get(name, OddSizes()).add_odd_sizes(sizes)
        for name, pixels in result.class_pixels.items():
            self.class_pixels[name] = self.class_pixels.get(name, ClassPixels()).add_class_pixels(pixels)
        self.faults += map(self._judge_fault, result.faults)
        bad = {fault.sample_id for fault in result.faults}
        good = np.searchsorted(self.ids, [sample_id for sample_id in result.ids if sample_id not in bad])
        self._good[good] = True
        self._digests[good] = np.frombuffer(bytes.fromhex("".join(result.digests)), dtype=np.uint64).reshape(-1, 2)

    def _judge_fault(self, fault: SampleFault) -> SampleFault:
        """Returns a fault with its effect in the daemon: with `expect`, one of this host's copy stops the stream."""
        stops = fault.of_this_host and self.stream.expected is not None
        return replace(fault, effect="retry") if stops else fault

    @property
    def comparable_contents(self) -> FileContents:
        """The contents that can be compared: those of all files that were read and are images."""
        ids = self.ids[self._good]
        return FileContents(ids, self.stream.manifest.lookup_sample_bytes(ids), self._digests[self._good])
