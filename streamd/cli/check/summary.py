"""From what was listed and read to the findings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from streamd.cli.check import duplicates, labels
from streamd.cli.check.estimates import caching, unpacking
from streamd.cli.check.findings import (
    BadSamples,
    Contradiction,
    EpochTime,
    Findings,
    Leak,
    Memory,
    Pictures,
    StreamFinding,
    Unpacking,
    Unreadable,
    Weights,
)
from streamd.cli.check.reader_messages import VERDICTS
from streamd.cli.check.totals import Tally
from streamd.cli.check.trainers_that_fit import room
from streamd.config import Config
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.core.text import format_count
from streamd.daemon.streams.served_stream import ServedStream
from streamd.daemon.streams.shuffle_score import score_stored_order
from streamd.limits import DEFAULT_CREDIT
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots

_SIZES: Final = 20  # the most frequent ones are kept

Streams = Mapping[str, ServedStream]
Groups = Sequence[Sequence[duplicates.Twin]]


def summed_up(
    tallies: Sequence[Tally], config: Config, processes: int, *, refused: list[str], notes: list[str]
) -> Findings:
    """Everything that was found in the streams of `config`, read by so many `processes`."""
    streams = {tally.stream.spec.name: tally.stream for tally in tallies}
    contents = {tally.stream.spec.name: tally.contents for tally in tallies}
    groups = duplicates.twins(contents)
    shared = duplicates.shared(groups)
    alike = duplicates.alike(shared, {name: each.ids.size for name, each in contents.items()})
    told = {name for group in alike for name in group[1:]}
    shapes = [stream.shape for stream in streams.values()]
    return Findings(
        memory_bytes=config.memory,
        workers=config.worker_count,
        streams={tally.stream.spec.name: _of_stream(tally, config, processes, groups) for tally in tallies},
        together=room(shapes, _limits(config)) if len(shapes) > 1 else None,
        leaks=[_leak(each, streams) for each in shared if told.isdisjoint((each.first, each.second))],
        contradictions=list(_contradictions(groups, streams)),
        refused=refused,
        notes=[*notes, *_judged_by_chance(streams), *map(_same, alike)],
    )


def _judged_by_chance(streams: Streams) -> Iterator[str]:
    """A stream in stored order is one for evaluation."""
    for name, stream in streams.items():
        if (stream.spec.shuffle, stream.spec.image.resize) == ("none", "random_crop"):
            yield (
                f"{name}: is not shuffled, as for evaluation, and shows another part of each image every epoch, so "
                "that results differ by chance; set image.resize: crop there"
            )


def _same(names: Sequence[str]) -> str:
    return (
        f"{', '.join(names[:-1])} and {names[-1]} hold the same files: fine for training, but what one has taught none "
        "of the others can judge"
    )


def _of_stream(tally: Tally, config: Config, processes: int, groups: Groups) -> StreamFinding:
    stream, spec = tally.stream, tally.stream.spec
    in_order = score_stored_order(spec, stream.manifest.gather_label)
    chunks = unpacking(stream, processes)
    return StreamFinding(
        samples=spec.samples,
        read=tally.read,
        batches=spec.batches,
        batch_size=spec.batch_size,
        size=(spec.image.height, spec.image.width),
        bytes=int(stream.manifest.sizes.sum()),
        root=os.fsencode(stream.manifest.root).decode(errors="backslashreplace"),
        labels={name: labels.describe(each, stream.manifest.label_column(name)) for name, each in spec.labels.items()},
        pictures=_pictures(tally),
        unreadable=_unreadable(tally),
        duplicates=[
            [stream.format_file_name(sample_id) for sample_id in ids] for ids in duplicates.repeats(groups, spec.name)
        ],
        bad_samples=BadSamples(spec.bad_policy, stream.max_bad_fraction, _stops(tally)),
        memory=_memory(stream, config),
        epoch=_epoch(tally, processes, chunks),
        cache=caching(stream),
        shuffle=_shuffled(spec),
        shuffle_score=stream.shuffle_score,
        stored_score=None if in_order is None else in_order.score,
        poorly_mixed=stream.mixing_advice,
        unpacking=chunks,
        weights=_weights(stream),
    )


def _weights(stream: ServedStream) -> Weights | None:
    weights = stream.manifest.gather_weights(np.arange(stream.spec.samples))
    if (weights == 1).all():
        return None
    least, most, mean = weights.min(), weights.max(), weights.mean(dtype=np.float64)
    return Weights(float(least), float(most), float(mean), int(np.count_nonzero(weights == 0)))


def _shuffled(spec: StreamSpec) -> str:
    if spec.shuffle != "chunk":
        return spec.shuffle
    return f"chunk, {format_count(spec.buffer, 'chunk')} of {format_count(spec.chunk, 'sample')} at a time"


def _pictures(tally: Tally) -> Pictures:
    sizes = dict(tally.sizes.most_common(_SIZES))
    return Pictures(dict(tally.formats.most_common()), sizes, len(tally.sizes), tally.enlarged)


def _unreadable(tally: Tally) -> list[Unreadable]:
    faults = sorted(tally.faults, key=lambda fault: fault.sample_id)
    return [
        Unreadable(each.sample_id, tally.stream.format_file_name(each.sample_id), each.reason, each.effect)
        for each in faults
    ]


def _stops(tally: Tally) -> str | None:
    """Why the daemon would stop the stream over these files, in its own words where it has them."""
    stream = tally.stream
    known = stream.quarantine.reasons  # of this look alone, in memory
    known.update({fault.sample_id: fault.reason for fault in tally.faults if fault.effect in VERDICTS})
    reason = stream.explain_too_many_bad()
    other = next((fault for fault in tally.faults if fault.effect not in VERDICTS), None)
    if reason is not None or other is None:
        return reason
    return f"{stream.format_file_name(other.sample_id)}: {other.reason}, which is no fault that it steps over"


def _memory(stream: ServedStream, config: Config) -> Memory:
    shape = stream.shape
    limits = _limits(config)
    return Memory(
        shape.slot_bytes,
        DEFAULT_CREDIT * shape.slot_bytes,
        compute_production_slots(shape, limits) * shape.slot_bytes,
        room([shape], limits),
    )


def _limits(config: Config) -> SchedulerLimits:
    return SchedulerLimits(config.memory, config.worker_count)


def _epoch(tally: Tally, processes: int, chunks: Unpacking | None) -> EpochTime:
    scale = tally.stream.spec.samples / tally.read / processes
    read_s = tally.read_s
    if chunks is not None and tally.unpacked:  # read in stored order, where each chunk was wanted but once
        read_s += tally.unpack_s * (tally.read * chunks.per_sample / tally.unpacked - 1)
    return EpochTime(processes, (read_s + tally.decode_s) * scale, read_s * scale)


def _leak(shared: duplicates.Shared, streams: Streams) -> Leak:
    first, second = shared.example
    names = (streams[shared.first].format_file_name(first), streams[shared.second].format_file_name(second))
    return Leak(shared.first, shared.second, shared.files, names)


def _contradictions(groups: Groups, streams: Streams) -> Iterator[Contradiction]:
    specs = {name: stream.spec.labels for name, stream in streams.items()}
    values = {
        name: {label: stream.manifest.label_column(label) for label in specs[name]} for name, stream in streams.items()
    }

    def worded(label: str, stream: str, sample_id: int) -> str:
        rows = streams[stream].manifest.gather_label(label, np.array([sample_id]))
        return _worded(specs[stream][label], rows[0])

    for conflict in labels.conflicts(groups, specs, values):
        yield Contradiction(
            conflict.label,
            [f"{stream}: {streams[stream].format_file_name(sample_id)}" for stream, sample_id in conflict.samples],
            [worded(conflict.label, *twin) for twin in conflict.samples],
            trouble=conflict.type in {"category", "tags"},
        )


def _worded(spec: LabelSpec, value: Any) -> str:
    """A label's value for people; `value` is what a batch would carry of it."""
    if spec.type == "category":
        return str(spec.classes[int(value)])
    if spec.type == "tags":
        return " and ".join(str(spec.classes[place]) for place in np.flatnonzero(value)) or "no tag"
    return ", ".join(f"{each:g}" for each in np.atleast_1d(value).tolist())
