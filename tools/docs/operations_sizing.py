"""The worked example of docs/operations.md: how large a daemon is to be, by the arithmetic that admits its trainers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Final

from operations_settings import unit_settings
from operations_table import table

from streamd.cli.check.findings import TrainerCapacity
from streamd.cli.check.run import compute_trainer_capacity
from streamd.config.units import format_bytes
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import ImageSpec, LabelSpec, OrderId, PixelId, StreamShape, StreamSpec
from streamd.dataset.cache import CacheLayout
from streamd.limits import (
    DEFAULT_CREDIT,
    GIB,
    MIB,
    MIN_CREDIT,
    OWN_DESCRIPTORS,
    SESSION_DESCRIPTORS,
    TASK_ROWS,
    WORKER_DESCRIPTORS,
)
from streamd.scheduler.admission import SchedulerLimits, compute_least_stream_bytes, compute_production_slots

DAEMON_BYTES: Final = 64 * MIB  # of its own, and what the soak saw is less; a worker as well
WORKER_BYTES: Final = 64 * MIB
MANIFEST_SAMPLE_BYTES: Final = 26  # short names, one class; benchmarks/results/growth.md
DESCRIPTORS: Final = (OWN_DESCRIPTORS, WORKER_DESCRIPTORS, SESSION_DESCRIPTORS)  # and one for each slot

SAMPLES: Final = 1_200_000
FILE_BYTES: Final = 110_000  # the mean of JPEGs of 500x375
DECODE_S: Final = 0.0010  # of one of them on one core, at 224x224: what `streamd check` finds out on the spot
WANTED_PER_S: Final = 8_000  # samples that each trainer takes
TRAINERS: Final = 4
MEMORY: Final = 4 * GIB


@dataclass(frozen=True, slots=True)
class Need:
    """What `trainers` of a stream take. `easy_bytes` is the smallest `memory` at which all have what they ask for."""

    shape: StreamShape
    workers: int
    easy_bytes: int
    least_bytes: int
    room: TrainerCapacity


def stream() -> StreamSpec:
    """Of the example: ImageNet-like files with one class, at 224x224, in batches of 256."""
    label = LabelSpec("label", "category", classes=tuple(range(1000)))
    return StreamSpec(
        name="train",
        samples=SAMPLES,
        batch_size=256,
        batches=-(-SAMPLES // 256),
        images={"image": ImageSpec(224, 224, 3)},
        labels={"label": label},
        normalize="imagenet",
        shuffle="full",
        seed=0,
        remainder="keep",
        bad_policy="substitute",
        order_id=OrderId(""),
        pixel_id=PixelId(""),
    )


def shape(spec: StreamSpec) -> StreamShape:
    """As the daemon has it of a stream that it serves."""
    return StreamShape(
        spec.name, spec.batches, compute_slot_bytes(spec), -(-min(spec.batch_size, spec.samples) // TASK_ROWS)
    )


def workers() -> int:
    """As many as decode what the trainers take, who share each decode."""
    return ceil(WANTED_PER_S * DECODE_S)


@cache
def need(trainers: int = TRAINERS) -> Need:
    """What the example's trainers take, in whole MiB of memory."""
    one = shape(stream())
    count = workers()
    easy = (
        bisect_left(
            range(1 << 13),
            trainers,
            key=lambda mib: compute_trainer_capacity([one], SchedulerLimits(mib * MIB, count)).at_ease,
        )
        * MIB
    )
    limits = SchedulerLimits(MEMORY, count)
    return Need(one, count, easy, compute_least_stream_bytes(one, limits), compute_trainer_capacity([one], limits))


def ram_bytes(need: Need) -> int:
    """Without the page cache."""
    return MEMORY + DAEMON_BYTES + need.workers * WORKER_BYTES + SAMPLES * MANIFEST_SAMPLE_BYTES


def descriptors(need: Need) -> int:
    """That the daemon has open, each slot being a batch."""
    own, worker, trainer = DESCRIPTORS
    return own + worker * need.workers + trainer * TRAINERS + MEMORY // need.shape.slot_bytes


def example() -> str:
    """The worked example, a line for each resource."""
    rows = [*_for_batches(need()), *_for_files(ram_bytes(need()))]
    return table(("what", "how it comes about", "how much"), rows)


def _for_batches(found: Need) -> Iterator[tuple[str, str, str]]:
    batch, ahead = found.shape.slot_bytes, compute_production_slots(found.shape, SchedulerLimits(MEMORY, found.workers))
    spread = f"{WANTED_PER_S:,} samples/s x {DECODE_S * 1000:g} ms each, shared by {TRAINERS} trainers"
    easy = f"(({TRAINERS} + 1) x {DEFAULT_CREDIT} + {ahead}) x a batch"
    fit = f"{found.room.at_ease} trainers, or {found.room.at_most} with fewer batches each"
    yield "cores", spread, f"{found.workers} workers"
    yield "a batch", "256 x 224 x 224 x 3 bytes, ids, weights and labels, in whole pages", format_bytes(batch)
    yield "a trainer", f"{DEFAULT_CREDIT} batches", format_bytes(DEFAULT_CREDIT * batch)
    yield "the workers", f"{ahead} batches ahead", format_bytes(ahead * batch)
    yield "one trainer, at least", f"{MIN_CREDIT} batches and the workers'", format_bytes(found.least_bytes)
    yield f"{TRAINERS} trainers with all they ask for", easy, format_bytes(found.easy_bytes)
    yield f"`memory: {format_bytes(MEMORY).replace(' ', '')}`", "by the arithmetic of `streamd check`", fit
    yield "descriptors of the daemon", "one a slot, and those of workers and trainers", f"{descriptors(found):,}"


def _for_files(own_bytes: int) -> Iterator[tuple[str, str, str]]:
    files, each = SAMPLES * FILE_BYTES, f"{format_bytes(DAEMON_BYTES)} for the daemon and for each worker"
    share = unit_settings()["MemoryMax"]
    host_bytes = ceil((own_bytes + files) * 100 / int(share.rstrip("%")))
    read = f"{WANTED_PER_S * FILE_BYTES // 1_000_000:,} MB a second"
    cache_bytes = CacheLayout("", PixelId(""), SAMPLES, stream().image.row_bytes).file_bytes(SAMPLES)
    times = f"pixels, and 16 bytes each: {cache_bytes / files:.1f} times the files"
    listed = format_bytes(SAMPLES * MANIFEST_SAMPLE_BYTES)
    kept = f"{SAMPLES:,} files of {FILE_BYTES:,} bytes more"
    yield "RAM, without the page cache", f"`memory`, {each}, the list of samples", format_bytes(own_bytes)
    yield "RAM, with all files in the page cache", kept, format_bytes(own_bytes + files)
    yield "the host's RAM then", f"of which the unit's `MemoryMax={share}` are as much", format_bytes(host_bytes)
    yield "read from the disk, if the files are not in the page cache", f"{WANTED_PER_S:,} x {FILE_BYTES:,} bytes", read
    yield "an epoch", f"{SAMPLES:,} samples at {WANTED_PER_S:,} a second", f"{SAMPLES // WANTED_PER_S} s"
    yield "the list of samples, on disk", f"{MANIFEST_SAMPLE_BYTES} bytes each", listed
    yield "a `cache` of all of them", times, format_bytes(cache_bytes)
