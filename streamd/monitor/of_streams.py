"""The metrics of each stream, by its name in the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, get_args

from prometheus_client.metrics_core import Metric

from streamd.bottleneck import Stage
from streamd.cohorts import cohorts
from streamd.monitor.families import counter, gauge, histogram
from streamd.monitor.faults import FAULTS
from streamd.monitor.figures import Figures
from streamd.status import Doing, StreamStatus

_STREAM: Final = ["stream"]


class _Gauge(NamedTuple):
    name: str
    text: str
    of: Callable[[StreamStatus], float | None]


class _Counter(NamedTuple):
    name: str
    text: str
    counted: str  # its name in stats


_GAUGES: Final = (
    _Gauge("stream_samples", "Samples that the stream has.", lambda each: each.samples),
    _Gauge("stream_batches", "Batches that an epoch has.", lambda each: each.batches),
    _Gauge("stream_stopped", "1 if nobody gets a batch of it; streamd status says why.",
           lambda each: bool(each.stopped)),
    _Gauge("stream_failed", "1 if its trainers were ended for a fault, and none has come since.",
           lambda each: bool(each.failed)),
    _Gauge("decodes_per_batch", "How often each batch that trainers got was decoded, over the last half minute: 1 if "
           "they share each decode. No value while nobody gets any.", lambda each: each.decodes_per_batch),
    _Gauge("shuffle_score", "How well batches mix the labels, 1 as a full shuffle does. No value where the stored "
           "order is kept, or all labels are alike.", lambda each: each.shuffle_score),
)  # fmt: skip
_COUNTERS: Final = (
    _Counter("batches_decoded", "Batches that workers made, for however many trainers.", "produced"),
    _Counter("batches_sent", "Batches that went to trainers, counted once for each of them.", "send_count"),
    _Counter("samples_sent", "Samples in those batches: as many as the receipts say, where all were taken to the "
             "end of an epoch.", "sent_samples"),
    _Counter("send_seconds", "Time that the daemon took to tell trainers of batches.", "send_s"),
    _Counter("trainer_wait_seconds", "Time, of all trainers together, that their loops waited for a batch: what faster "
             "data could save.", "client_wait_s"),
)  # fmt: skip
_CACHE: Final = (
    _Counter("cache_hits", "Samples that lay decoded in the stream's cache. No value without one.", "cache_hits"),
    _Counter("cache_misses", "Samples that had to be decoded, though the stream has a cache.", "cache_misses"),
)
_RECEIPTS: Final = "Epochs that trainers accounted for. A bad one did not add up: something was missed, or came twice."
_BAD_SAMPLES: Final = "Samples known to be bad, earlier runs included, by kind of fault; streamd check names them all."
_READ: Final = "Time to read one sample; those read together, up to 32, count with their mean."
_DECODE: Final = "Time to decode, resize and transform one sample; those of one task, up to 32, count with their mean."
_TRAINERS: Final = (
    "Trainers by what they are at: gathering (wait for others to begin), waiting (for a batch), reading, resting "
    "(have asked for nothing for a while) or finished."
)
_LIMITED: Final = "Trainers by what limited their last epoch: disk, decode, transport, or none but the trainer itself."
_COHORTS: Final = (
    "Groups of trainers that are close enough to share each decode. More than there are ranks: batches are decoded "
    "more than once."
)


def of_streams(figures: Figures) -> Iterator[Metric]:
    """One family after the other."""
    streams = figures.status.streams
    for name, text, of in _GAUGES:
        yield gauge(name, text, _STREAM, [([each.name], of(each)) for each in streams])
    for name, text, counted in _COUNTERS:
        yield counter(name, text, _STREAM, [([each.name], figures.of_stream(each.name, counted)) for each in streams])
    for name, text, counted in _CACHE:
        kept = [([each.name], figures.numbers.get(f"stream.{each.name}", {}).get(counted)) for each in streams]
        yield counter(name, text, _STREAM, kept)
    yield from _samples(figures)
    yield from _trainers(figures)


def _samples(figures: Figures) -> Iterator[Metric]:
    """What became of them."""
    receipts = [
        ([each.name, result], count)
        for each in figures.status.streams
        for result, count in (("ok", each.receipts_ok), ("bad", each.receipts_bad))
    ]
    bad = [([name, kind], kinds.get(kind, 0)) for name, kinds in figures.bad.items() for kind in FAULTS]
    yield counter("receipts", _RECEIPTS, [*_STREAM, "result"], receipts)
    yield gauge("bad_samples", _BAD_SAMPLES, [*_STREAM, "fault"], bad)
    yield histogram("read_seconds", _READ, _STREAM, [([name], each) for name, each in figures.reads.items()])
    yield histogram("decode_seconds", _DECODE, _STREAM, [([name], each) for name, each in figures.decodes.items()])


def _trainers(figures: Figures) -> Iterator[Metric]:
    """What they are at, all of a stream together."""
    sessions, names = figures.status.sessions, [each.name for each in figures.status.streams]
    doing = Counter((each.stream, each.doing) for each in sessions)
    limits = Counter((each.stream, each.last_epoch.verdict) for each in sessions if each.last_epoch)
    together = cohorts(sessions)
    at = [([name, word], doing[name, word]) for name in names for word in get_args(Doing)]
    by = [([name, stage], limits[name, stage]) for name in names for stage in get_args(Stage)]
    yield gauge("trainers", _TRAINERS, [*_STREAM, "doing"], at)
    yield gauge("trainers_limited", _LIMITED, [*_STREAM, "by"], by)
    yield gauge("cohorts", _COHORTS, _STREAM, [([name], together.get(name, 0)) for name in names])
