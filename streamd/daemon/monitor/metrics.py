"""Builds Prometheus metrics of streams, trainers and the daemon, and writes them as text.

A metric has a name, a help text that explains it, and values by label; without a value there is no line. Streams are
labelled by their name in the configuration, trainers by the number of their session: nothing that a client sends
becomes a label. The registry is our own, so that metrics of other libraries in this process are not exposed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final, TypeVar, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from streamd.core.activity import compute_steps_behind_leader, count_cohorts_by_stream
from streamd.core.bottleneck import EpochBottleneck
from streamd.core.counters import BUCKET_BOUNDS_S
from streamd.core.status import ClusterStatus, NodeStatus, SessionState, SessionStatus, StreamStatus
from streamd.daemon.monitor.bad_samples import FAULT_KINDS
from streamd.daemon.monitor.snapshot import MonitorSnapshot, TimeHistogram

MetricRows = Iterable[tuple[Sequence[str], float | None]]
ValueFamily = TypeVar("ValueFamily", GaugeMetricFamily, CounterMetricFamily)
BuildMetric = Callable[[str, str, Sequence[str], MetricRows], Metric]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # every version of Prometheus reads this format

_BUCKET_BOUNDS: Final = (*map(str, BUCKET_BOUNDS_S), "+Inf")
_STREAM_LABELS: Final = ["stream"]
_TRAINER_LABELS: Final = ["stream", "trainer"]
_LINES_PER_TURN: Final = 100
_NAME_SUFFIXES: Final = {"counter": "_total", "info": "_info"}  # part of the name in HELP and TYPE lines, too


def build_gauge_metric(name: str, text: str, labels: Sequence[str], rows: MetricRows) -> GaugeMetricFamily:
    """Builds a gauge, whose value goes up and down; rows whose value is None are left out."""
    return _add_metric_rows(GaugeMetricFamily(f"streamd_{name}", text, labels=labels), rows)


def build_counter_metric(name: str, text: str, labels: Sequence[str], rows: MetricRows) -> CounterMetricFamily:
    """Builds a counter, which only grows while the daemon runs; `_total` is appended to the name."""
    return _add_metric_rows(CounterMetricFamily(f"streamd_{name}", text, labels=labels), rows)


def build_histogram_metric(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], TimeHistogram]]
) -> HistogramMetricFamily:
    """Builds a histogram of times in seconds."""
    family = HistogramMetricFamily(f"streamd_{name}", text, labels=labels)
    for values, each in rows:
        buckets = [
            (bound, float(count)) for bound, count in zip(_BUCKET_BOUNDS, accumulate(each.bucket_counts), strict=True)
        ]
        family.add_metric(values, buckets, each.total_s)
    return family


def build_info_metric(name: str, text: str, labels: Sequence[str], rows: Iterable[Sequence[str]]) -> InfoMetricFamily:
    """Builds facts without a number, to be joined with other metrics; `_info` is appended to the name."""
    family = InfoMetricFamily(f"streamd_{name}", text, labels=labels)
    for values in rows:
        family.add_metric(values, {})
    return family


def _add_metric_rows(family: ValueFamily, rows: MetricRows) -> ValueFamily:
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
    return family


# Name, text, and the value of a stream.
_STREAM_GAUGES: Final[Sequence[tuple[str, str, Callable[[StreamStatus], float | None]]]] = (
    ("stream_samples", "Samples that the stream has.", lambda each: each.samples),
    ("stream_batches", "Batches that an epoch has.", lambda each: each.batches),
    (
        "stream_stopped",
        "1 if the stream is stopped and no trainer gets a batch from it; streamd status says why.",
        lambda each: bool(each.stopped),
    ),
    (
        "stream_failed",
        "1 if the stream's trainers were stopped because of an error, and none has connected since.",
        lambda each: bool(each.failed),
    ),
    (
        "decodes_per_batch",
        (
            "How often each batch that trainers got was decoded, over the last 10 s: 1 if they share "
            "each decode. No value before a trainer has read an epoch, and while no trainer gets a batch."
        ),
        lambda each: each.decodes_per_batch,
    ),
    (
        "shuffle_score",
        (
            "How well batches mix the labels: 1 is as well as a full shuffle. No value if the stored order is kept, "
            "or if all labels are equal."
        ),
        lambda each: each.shuffle_score,
    ),
)
# Name, text, and the name of the counter in stats.
_STREAM_COUNTERS: Final = (
    ("batches_decoded", "Batches that workers made, for however many trainers.", "produced"),
    ("batches_sent", "Batches that went to trainers, counted once for each of them.", "send_count"),
    (
        "samples_sent",
        (
            "Samples in the batches sent. It equals the number in the receipts if all trainers read to the end of an "
            "epoch."
        ),
        "sent_samples",
    ),
    ("send_seconds", "Time that the daemon took to tell trainers of batches.", "send_s"),
    (
        "trainer_wait_seconds",
        "Time, of all trainers together, that their loops waited for a batch: what faster data could save.",
        "client_wait_s",
    ),
)
_CACHE_COUNTERS: Final = (
    (
        "cache_hits",
        "Samples that were read, already decoded, from the stream's cache. No value without a cache.",
        "cache_hits",
    ),
    ("cache_misses", "Samples that had to be decoded, though the stream has a cache.", "cache_misses"),
)
_RECEIPTS_TEXT: Final = (
    "Receipts of epochs that trainers finished. A bad receipt does not add up: samples were missed, or came twice."
)
_BAD_SAMPLES_TEXT: Final = (
    "Samples known to be bad, earlier runs included, by kind of fault; streamd check names them all."
)
_READ_TEXT: Final = (
    "Time to read one sample. Samples that are read together, up to 32, each count with their mean time."
)
_DECODE_TEXT: Final = (
    "Time to decode, resize and transform one sample. The samples of one task, up to 32, each count with their mean "
    "time."
)
_TRAINERS_TEXT: Final = (
    "Trainers by state: gathering (waiting for other trainers to start), waiting (for a batch), reading, resting (no "
    "request for a while) or finished."
)
_LIMITED_TEXT: Final = (
    "Trainers by what limited their last epoch: disk, decode, transport, or none if it was the trainer itself."
)
_COHORTS_TEXT: Final = (
    "Groups of trainers that are close enough together to share each decode. If there are more groups than ranks, "
    "batches are decoded more than once."
)


def build_stream_metrics(snapshot: MonitorSnapshot) -> Iterator[Metric]:
    """Yields the metric families of the streams."""
    streams = snapshot.status.streams
    for name, text, of in _STREAM_GAUGES:
        yield build_gauge_metric(name, text, _STREAM_LABELS, [([each.name], of(each)) for each in streams])
    for name, text, counted in _STREAM_COUNTERS:
        sums = [([each.name], snapshot.stream_counter_value(each.name, counted)) for each in streams]
        yield build_counter_metric(name, text, _STREAM_LABELS, sums)
    for name, text, counted in _CACHE_COUNTERS:
        kept = [([each.name], snapshot.numbers.get(f"stream.{each.name}", {}).get(counted)) for each in streams]
        yield build_counter_metric(name, text, _STREAM_LABELS, kept)
    yield from _build_sample_metrics(snapshot)
    yield from _build_trainer_count_metrics(snapshot)


def _build_sample_metrics(snapshot: MonitorSnapshot) -> Iterator[Metric]:
    """Yields the families of receipts, bad samples, and times to read and decode a sample."""
    receipts = [
        ([each.name, result], count)
        for each in snapshot.status.streams
        for result, count in (("ok", each.receipts_ok), ("bad", each.receipts_bad))
    ]
    bad = [([name, kind], kinds.get(kind, 0)) for name, kinds in snapshot.bad_counts.items() for kind in FAULT_KINDS]
    yield build_counter_metric("receipts", _RECEIPTS_TEXT, [*_STREAM_LABELS, "result"], receipts)
    yield build_gauge_metric("bad_samples", _BAD_SAMPLES_TEXT, [*_STREAM_LABELS, "fault"], bad)
    yield build_histogram_metric(
        "read_seconds", _READ_TEXT, _STREAM_LABELS, [([name], each) for name, each in snapshot.read_times.items()]
    )
    yield build_histogram_metric(
        "decode_seconds", _DECODE_TEXT, _STREAM_LABELS, [([name], each) for name, each in snapshot.decode_times.items()]
    )


def _build_trainer_count_metrics(snapshot: MonitorSnapshot) -> Iterator[Metric]:
    """Yields the families that count a stream's trainers by state, bottleneck and cohort."""
    sessions, names = snapshot.status.sessions, [each.name for each in snapshot.status.streams]
    doing = Counter((each.stream, each.doing) for each in sessions)
    limits = Counter((each.stream, each.last_epoch.verdict) for each in sessions if each.last_epoch)
    together = count_cohorts_by_stream(sessions)
    at = [([name, word], doing[name, word]) for name in names for word in get_args(SessionState)]
    by = [([name, stage], limits[name, stage]) for name in names for stage in get_args(EpochBottleneck)]
    yield build_gauge_metric("trainers", _TRAINERS_TEXT, [*_STREAM_LABELS, "doing"], at)
    yield build_gauge_metric("trainers_limited", _LIMITED_TEXT, [*_STREAM_LABELS, "by"], by)
    yield build_gauge_metric(
        "cohorts", _COHORTS_TEXT, _STREAM_LABELS, [([name], together.get(name, 0)) for name in names]
    )


# Name, text, and the value of a trainer.
_TRAINER_GAUGES: Final[Sequence[tuple[str, str, Callable[[SessionStatus], float | None]]]] = (
    ("trainer_epoch", "The epoch that the trainer is in, counted from 0.", lambda each: each.epoch),
    ("trainer_step", "Batches of the current epoch that the trainer has taken.", lambda each: each.step),
    ("trainer_steps", "Steps of an epoch for this trainer.", lambda each: each.steps),
    (
        "trainer_samples_per_second",
        "Samples per second that the trainer took, over the last 10 s.",
        lambda each: each.samples_per_s,
    ),
    ("trainer_credit", "Batches that the trainer may hold at a time.", lambda each: each.credit),
    ("trainer_leases", "Batches that the trainer holds, or that are on their way to it.", lambda each: each.held),
    (
        "trainer_epoch_seconds",
        "How long the trainer's last epoch took. No value before the first epoch is over.",
        lambda each: each.last_epoch.seconds if each.last_epoch else None,
    ),
    (
        "trainer_epoch_wait_seconds",
        "How long the trainer's loop waited for batches in its last epoch.",
        lambda each: each.last_epoch.waited_s if each.last_epoch else None,
    ),
)
# How a metric without labels is built, its name, its text, and its value.
DaemonMetric = tuple[BuildMetric, str, str, Callable[[MonitorSnapshot], float]]
_STATE_METRICS: Final[Sequence[DaemonMetric]] = (
    (
        build_gauge_metric,
        "draining",
        "1 while the daemon drains: it disconnects its trainers before it ends.",
        lambda at: at.status.draining,
    ),
    (
        build_gauge_metric,
        "troubles",
        "How many things streamd status finds wrong; it says which, and what to do.",
        lambda at: len(at.status.all_troubles),
    ),
    (
        build_gauge_metric,
        "reload_failed",
        "1 if the daemon does not serve all of the configuration as it is written now.",
        lambda at: at.status.reload_failed,
    ),
)
_WORK_METRICS: Final[Sequence[DaemonMetric]] = (
    (
        build_gauge_metric,
        "memory_limit_bytes",
        "The most memory that batches may take: `memory` in the configuration.",
        lambda at: at.status.memory_bytes,
    ),
    (
        build_gauge_metric,
        "memory_used_bytes",
        (
            "The memory that slots take, including empty slots that are kept for the next batch. It reaches the limit "
            "if trainers are slow, which is not a problem."
        ),
        lambda at: at.status.memory_used_bytes,
    ),
    (
        build_gauge_metric,
        "slots",
        "Pieces of shared memory, each with room for one batch.",
        lambda at: at.counter_value("daemon", "slots"),
    ),
    (
        build_counter_metric,
        "slot_wait_seconds",
        (
            "Time during which a trainer wanted a batch and no slot was free. If it grows fast, give the daemon more "
            "`memory`."
        ),
        lambda at: at.counter_value("daemon", "slot_wait_s"),
    ),
    (build_gauge_metric, "workers", "Decode processes: `workers` in the configuration.", lambda at: at.status.workers),
    (
        build_gauge_metric,
        "workers_busy_ratio",
        (
            "The fraction of the workers' time spent reading and decoding, over the last 10 s. If it is near 1 while "
            "trainers wait, decoding is the bottleneck."
        ),
        lambda at: at.status.busy_fraction,
    ),
    (
        build_counter_metric,
        "worker_deaths",
        "Workers that died and were replaced. A sample that kills them is set aside.",
        lambda at: at.counter_value("engine", "worker_deaths"),
    ),
    (
        build_counter_metric,
        "worker_idle_seconds",
        "Time, of all workers together, without a task.",
        lambda at: at.counter_value("engine", "idle_s"),
    ),
    (
        build_counter_metric,
        "tasks",
        "Parts of batches that were given to workers, up to 32 samples each.",
        lambda at: at.counter_value("engine", "queue_count"),
    ),
    (
        build_counter_metric,
        "task_wait_seconds",
        "Time, of all tasks together, between being made and being given to a worker.",
        lambda at: at.counter_value("engine", "queue_s"),
    ),
    (
        build_gauge_metric,
        "productions",
        "Batches that are being read and decoded.",
        lambda at: at.counter_value("daemon", "producing"),
    ),
)
_RULE_CHECKS_TEXT: Final = (
    "How often the daemon's invariant checker found that a rule holds. A rule that does not hold ends the daemon."
)
_FRAMES_DROPPED_TEXT: Final = (
    "Client frames that the daemon ignored: malformed frames from a broken or hostile client, and stale frames from a "
    "session that has ended."
)


def build_trainer_metrics(snapshot: MonitorSnapshot) -> Iterator[Metric]:
    """Yields the metric families of the trainers."""
    sessions = snapshot.status.sessions
    labels = [(each, [each.stream, str(each.session)]) for each in sessions]
    parts = [[*names, str(each.rank), str(each.world)] for each, names in labels]
    text = "Which part of the stream a trainer takes."
    yield build_info_metric("trainer", text, [*_TRAINER_LABELS, "rank", "world"], parts)
    for name, text, of in _TRAINER_GAUGES:
        yield build_gauge_metric(name, text, _TRAINER_LABELS, [(names, of(each)) for each, names in labels])
    behind = compute_steps_behind_leader(sessions)
    text = (
        "How many batches the trainer is behind the furthest trainer of the same stream, rank and world; no value "
        "once the trainer has finished."
    )
    lags = [(names, behind.get(each.session)) for each, names in labels]
    yield build_gauge_metric("trainer_lag_steps", text, _TRAINER_LABELS, lags)


_NODE_GAUGES: Final[tuple[tuple[str, str, Callable[[NodeStatus], float]], ...]] = (
    ("node_serving", "Whether a node of the cluster decodes now.", lambda node: float(node.state == "serving")),
    ("node_workers", "Decode processes of a node.", lambda node: node.workers),
    ("node_tasks", "Tasks that a node has not finished.", lambda node: node.tasks),
    (
        "node_samples_per_second",
        "Samples that a node delivered a second, over the last 10 s.",
        lambda node: node.samples_per_s,
    ),
)


def build_daemon_metrics(snapshot: MonitorSnapshot) -> Iterator[Metric]:
    """Yields the metric families of the daemon as a whole."""
    yield build_info_metric("build", "The version that runs.", ["version"], [[snapshot.status.version]])
    yield from _build_unlabelled_metrics(_STATE_METRICS, snapshot)
    rules = [([rule], checks) for rule, checks in snapshot.numbers.get("rules", {}).items()]
    yield build_counter_metric("rule_checks", _RULE_CHECKS_TEXT, ["rule"], rules)
    yield from _build_unlabelled_metrics(_WORK_METRICS, snapshot)
    dropped = [([kind], snapshot.counter_value("wire", kind)) for kind in ("malformed", "stale")]
    yield build_counter_metric("frames_dropped", _FRAMES_DROPPED_TEXT, ["reason"], dropped)
    if snapshot.status.cluster is not None:
        yield from _build_node_metrics(snapshot.status.cluster)


def _build_node_metrics(cluster: ClusterStatus) -> Iterator[Metric]:
    for name, text, of in _NODE_GAUGES:
        yield build_gauge_metric(name, text, ["node"], [([each.name], of(each)) for each in cluster.nodes])


def _build_unlabelled_metrics(metrics: Iterable[DaemonMetric], snapshot: MonitorSnapshot) -> Iterator[Metric]:
    for build, name, text, read_value in metrics:
        yield build(name, text, [], [([], read_value(snapshot))])


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotCollector(Collector):
    """Collects all families from one snapshot, which is taken when the first family is requested."""

    take_snapshot: Callable[[], MonitorSnapshot]

    def collect(self) -> Iterator[Metric]:
        figures = self.take_snapshot()
        yield from build_daemon_metrics(figures)
        yield from build_stream_metrics(figures)
        yield from build_trainer_metrics(figures)


class MetricsExposition:
    """Writes the metrics of a snapshot, and the process's own CPU time, memory and descriptors."""

    def __init__(self, take_snapshot: Callable[[], MonitorSnapshot]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)  # describing itself would take a snapshot
        self._registry.register(SnapshotCollector(take_snapshot))
        ProcessCollector(registry=self._registry)

    async def encode_metrics(self) -> bytes:
        """Returns all metrics of one moment, in Prometheus's text format."""
        lines = []
        # A scrape may take milliseconds, so the event loop gets control about every half millisecond, to send batches.
        # All values come from one snapshot, taken with the first line.
        for number, line in enumerate(chain.from_iterable(map(_format_metric_family, self._registry.collect())), 1):
            lines.append(line)
            if number % _LINES_PER_TURN == 0:
                await asyncio.sleep(0)
        return "".join(lines).encode()


def _format_metric_family(family: Metric) -> Iterator[str]:
    """Yields a family as lines of text.

    The library's own writer takes several times as long, and does not yield to the event loop.
    """
    name = family.name + _NAME_SUFFIXES.get(family.type, "")
    yield f"# HELP {name} {_escape_help_text(family.documentation)}\n"
    yield f"# TYPE {name} {'gauge' if family.type == 'info' else family.type}\n"
    for sample in family.samples:
        labels = ",".join([f'{label}="{_escape_label_value(value)}"' for label, value in sorted(sample.labels.items())])
        yield f"{sample.name}{f'{{{labels}}}' if labels else ''} {float(sample.value)!r}\n"


def _escape_help_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label_value(value: str) -> str:
    return _escape_help_text(value).replace('"', '\\"')
