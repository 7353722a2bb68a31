"""The metrics: a table over the daemon's figures at one moment, which the Prometheus client library writes as text.

A metric has a name, a help text that explains it, and values by label; without a value there is no line. Streams are
labelled by their name in the configuration, trainers by the number of their session: nothing that a client sends
becomes a label. No registry is used, so that metrics of other libraries in this process are not exposed.

A new metric is a row of METRICS. What it shows is computed elsewhere: in the status, or where it is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, Generic, Literal, TypeVar, get_args

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from streamd.core.counters import BUCKET_BOUNDS_S, NumberName, StageHistogram, read_number
from streamd.core.epoch_timing import EpochBottleneck
from streamd.core.status import NodeStatus, SessionState, SessionStatus, StreamStatus
from streamd.daemon.monitor.snapshot import MonitorSnapshot
from streamd.daemon.streams.quarantine import FAULT_KINDS

# `gauge`: goes up and down. `counter`: only grows while the daemon runs; `_total` is appended to its name. `histogram`:
# of times in seconds. `info`: facts in labels, to be joined with other metrics; `_info` is appended to its name.
MetricKind = Literal["gauge", "counter", "histogram", "info"]
MetricRows = Iterable[tuple[Sequence[str], float | StageHistogram | None]]  # values of labels, and what they have

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # every version of Prometheus reads this format

_FAMILIES: Final[dict[MetricKind, Callable[..., Any]]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}
_BUCKET_BOUNDS: Final = (*map(str, BUCKET_BOUNDS_S), "+Inf")
_LINES_PER_TURN: Final = 50  # about half a millisecond


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A row of the table. `read` returns the values by labels; a value of None is left out.

    Where `read` returns None, the daemon does not have what the metric is about, and there is no metric.
    """

    kind: MetricKind
    name: str
    labels: Sequence[str]
    read: Callable[[MonitorSnapshot], MetricRows | None]
    text: str

    def build_family(self, snapshot: MonitorSnapshot) -> Metric | None:
        """Returns the metric with its values; None if there is no such metric."""
        rows = self.read(snapshot)
        if rows is None:
            return None
        family: Any = _FAMILIES[self.kind](f"streamd_{self.name}", self.text, labels=self.labels)
        for labels, value in rows:
            if isinstance(value, StageHistogram):
                counts = map(float, accumulate(value.bucket_counts))
                family.add_metric(labels, list(zip(_BUCKET_BOUNDS, counts, strict=True)), value.total_s)
            elif value is not None:
                family.add_metric(labels, {} if self.kind == "info" else value)
        metric: Metric = family  # each kind takes values of another type, which its base does not name
        return metric


# --- what a row reads


Subject = TypeVar("Subject")


@dataclass(frozen=True)  # with slots, Python 3.11 cannot make one of a subscripted class
class _Subjects(Generic[Subject]):
    """What metrics are about: the labels, and each subject with its values of these; None if there is no such thing."""

    labels: Sequence[str]
    list_all: Callable[[MonitorSnapshot], Iterable[tuple[Sequence[str], Subject]] | None]

    def build_gauge(self, name: str, read: Callable[[Subject], float | None], text: str) -> MetricSpec:
        """Makes a row with the value that `read` returns of each subject."""

        def read_rows(at: MonitorSnapshot) -> MetricRows | None:
            found = self.list_all(at)
            return None if found is None else [(labels, read(each)) for labels, each in found]

        return MetricSpec("gauge", name, self.labels, read_rows, text)


_of_daemon: Final = _Subjects[MonitorSnapshot]((), lambda at: [((), at)]).build_gauge
_of_streams: Final = _Subjects[StreamStatus](
    ("stream",), lambda at: [((each.name,), each) for each in at.status.streams]
).build_gauge
_of_trainers: Final = _Subjects[SessionStatus](
    ("stream", "trainer"), lambda at: [((each.stream, str(each.session)), each) for each in at.status.sessions]
).build_gauge
_of_nodes: Final = _Subjects[NodeStatus](
    ("node",),
    lambda at: None if at.status.cluster is None else [((each.name,), each) for each in at.status.cluster.nodes],
).build_gauge
# Only a stream that has a cache counts these, and others have no such value.
_CACHE_NUMBERS: Final[frozenset[NumberName]] = frozenset({"cache_hits", "cache_misses"})


def _count(
    name: str, number: NumberName, text: str, group: str | None = None, kind: MetricKind = "counter"
) -> MetricSpec:
    """Makes a row of a number that the daemon keeps in this group; without a group, one for each stream."""
    if group is not None:
        return MetricSpec(kind, name, (), lambda at: [((), read_number(at.numbers, group, number))], text)
    missing = None if number in _CACHE_NUMBERS else 0.0

    def read_rows(at: MonitorSnapshot) -> MetricRows:
        numbers = at.numbers
        return [
            ((each.name,), numbers.get(f"stream.{each.name}", {}).get(number, missing)) for each in at.status.streams
        ]

    return MetricSpec(kind, name, ("stream",), read_rows, text)


def _count_trainers(
    name: str, label: str, words: Sequence[str], read: Callable[[SessionStatus], str | None], text: str
) -> MetricSpec:
    """Makes a row with a value for each of `words`: how many trainers of a stream `read` returns that word for."""

    def read_rows(at: MonitorSnapshot) -> MetricRows:
        counts = Counter((each.stream, read(each)) for each in at.status.sessions)
        return [((each.name, word), counts[each.name, word]) for each in at.status.streams for word in words]

    return MetricSpec("gauge", name, ("stream", label), read_rows, text)


# --- the table


METRICS: Final = (
    MetricSpec("info", "build", ("version",), lambda at: [((at.status.version,), 1)], "The version that runs."),
    _of_daemon(
        "draining",
        lambda at: at.status.draining,
        "1 while the daemon drains: it disconnects its trainers before it ends.",
    ),
    _of_daemon(
        "troubles",
        lambda at: len(at.status.all_troubles),
        "How many things streamd status finds wrong; it says which, and what to do.",
    ),
    _of_daemon(
        "reload_failed",
        lambda at: at.status.reload_failed,
        "1 if the daemon does not serve all of the configuration as it is written now.",
    ),
    MetricSpec(
        "counter",
        "rule_checks",
        ("rule",),
        lambda at: [((rule,), checks) for rule, checks in at.numbers.get("rules", {}).items()],
        "How often the daemon's invariant checker found that a rule holds. A rule that does not hold ends the daemon.",
    ),
    _of_daemon(
        "memory_limit_bytes",
        lambda at: at.status.memory_bytes,
        "The most memory that batches may take: `memory` in the configuration.",
    ),
    _of_daemon(
        "memory_used_bytes",
        lambda at: at.status.memory_used_bytes,
        "The memory that slots take, including empty slots that are kept for the next batch. It reaches "
        "the limit if trainers are slow, which is not a problem.",
    ),
    _count("slots", "slots", "Pieces of shared memory, each with room for one batch.", "daemon", "gauge"),
    _count(
        "slot_wait_seconds",
        "slot_wait_s",
        "Time during which a trainer wanted a batch and no slot was free. If it grows fast, give the daemon "
        "more `memory`.",
        "daemon",
    ),
    _of_daemon("workers", lambda at: at.status.workers, "Decode processes: `workers` in the configuration."),
    _of_daemon(
        "workers_busy_ratio",
        lambda at: at.status.busy_fraction,
        "The fraction of the workers' time spent reading and decoding, over the last 10 s. If it is near "
        "1 while trainers wait, decoding is the bottleneck.",
    ),
    _count(
        "worker_deaths",
        "worker_deaths",
        "Workers that died and were replaced. A sample that kills them is set aside.",
        "engine",
    ),
    _count("worker_idle_seconds", "idle_s", "Time, of all workers together, without a task.", "engine"),
    _count("tasks", "queue_count", "Parts of batches that were given to workers, up to 32 samples each.", "engine"),
    _count(
        "task_wait_seconds",
        "queue_s",
        "Time, of all tasks together, between being made and being given to a worker.",
        "engine",
    ),
    _count("productions", "producing", "Batches that are being read and decoded.", "daemon", "gauge"),
    MetricSpec(
        "counter",
        "frames_dropped",
        ("reason",),
        lambda at: [
            (("malformed",), read_number(at.numbers, "wire", "malformed")),
            (("stale",), read_number(at.numbers, "wire", "stale")),
        ],
        "Client frames that the daemon ignored: malformed frames from a broken or hostile client, and "
        "stale frames from a session that has ended.",
    ),
    _of_nodes(
        "node_serving", lambda node: float(node.state == "serving"), "Whether a node of the cluster decodes now."
    ),
    _of_nodes("node_workers", lambda node: node.workers, "Decode processes of a node."),
    _of_nodes("node_tasks", lambda node: node.tasks, "Tasks that a node has not finished."),
    _of_nodes(
        "node_samples_per_second",
        lambda node: node.samples_per_s,
        "Samples that a node delivered a second, over the last 10 s.",
    ),
    _of_streams("stream_samples", lambda each: each.samples, "Samples that the stream has."),
    _of_streams("stream_batches", lambda each: each.batches, "Batches that an epoch has."),
    _of_streams(
        "stream_stopped",
        lambda each: bool(each.stopped),
        "1 if the stream is stopped and no trainer gets a batch from it; streamd status says why.",
    ),
    _of_streams(
        "stream_failed",
        lambda each: bool(each.failed),
        "1 if the stream's trainers were stopped because of an error, and none has connected since.",
    ),
    _of_streams(
        "decodes_per_batch",
        lambda each: each.decodes_per_batch,
        "How often each batch that trainers got was decoded, over the last 10 s: 1 if they share each "
        "decode. No value before a trainer has read an epoch, and while no trainer gets a batch.",
    ),
    _of_streams(
        "shuffle_score",
        lambda each: each.shuffle_score,
        "How well batches mix the labels: 1 is as well as a full shuffle. No value if the stored order "
        "is kept, or if all labels are equal.",
    ),
    _count("batches_decoded", "produced", "Batches that workers made, for however many trainers."),
    _count("batches_sent", "send_count", "Batches that went to trainers, counted once for each of them."),
    _count(
        "samples_sent",
        "sent_samples",
        "Samples in the batches sent. It equals the number in the receipts if all trainers read to the "
        "end of an epoch.",
    ),
    _count("send_seconds", "send_s", "Time that the daemon took to tell trainers of batches."),
    _count(
        "trainer_wait_seconds",
        "client_wait_s",
        "Time, of all trainers together, that their loops waited for a batch: what faster data could save.",
    ),
    _count(
        "cache_hits",
        "cache_hits",
        "Samples that were read, already decoded, from the stream's cache. No value without a cache.",
    ),
    _count("cache_misses", "cache_misses", "Samples that had to be decoded, though the stream has a cache."),
    MetricSpec(
        "counter",
        "receipts",
        ("stream", "result"),
        lambda at: [
            ((each.name, result), count)
            for each in at.status.streams
            for result, count in (("ok", each.receipts_ok), ("bad", each.receipts_bad))
        ],
        "Receipts of epochs that trainers finished. A bad receipt does not add up: samples were missed, or came twice.",
    ),
    MetricSpec(
        "gauge",
        "bad_samples",
        ("stream", "fault"),
        lambda at: [
            ((name, kind), counts.get(kind, 0)) for name, counts in at.bad_counts.items() for kind in FAULT_KINDS
        ],
        "Samples known to be bad, earlier runs included, by kind of fault; streamd check names them all.",
    ),
    MetricSpec(
        "histogram",
        "read_seconds",
        ("stream",),
        lambda at: [((name,), times) for name, times in at.read_times.items()],
        "Time to read one sample. Samples that are read together, up to 32, each count with their mean time.",
    ),
    MetricSpec(
        "histogram",
        "decode_seconds",
        ("stream",),
        lambda at: [((name,), times) for name, times in at.decode_times.items()],
        "Time to decode, resize and transform one sample. The samples of one task, up to 32, each count "
        "with their mean time.",
    ),
    _count_trainers(
        "trainers",
        "doing",
        get_args(SessionState),
        lambda each: each.doing,
        "Trainers by state: gathering (waiting for other trainers to start), waiting (for a batch), "
        "reading, resting (no request for a while) or finished.",
    ),
    _count_trainers(
        "trainers_limited",
        "by",
        get_args(EpochBottleneck),
        lambda each: each.last_epoch.verdict if each.last_epoch else None,
        "Trainers by what limited their last epoch: disk, decode, transport, or none if it was the trainer itself.",
    ),
    _of_streams(
        "cohorts",
        lambda each: each.cohorts,
        "Groups of trainers that are close enough together to share each decode. If there are more "
        "groups than ranks, batches are decoded more than once.",
    ),
    MetricSpec(
        "info",
        "trainer",
        ("stream", "trainer", "rank", "world"),
        lambda at: [
            ((each.stream, str(each.session), str(each.rank), str(each.world)), 1) for each in at.status.sessions
        ],
        "Which part of the stream a trainer takes.",
    ),
    _of_trainers("trainer_epoch", lambda each: each.epoch, "The epoch that the trainer is in, counted from 0."),
    _of_trainers("trainer_step", lambda each: each.step, "Batches of the current epoch that the trainer has taken."),
    _of_trainers("trainer_steps", lambda each: each.steps, "Steps of an epoch for this trainer."),
    _of_trainers(
        "trainer_samples_per_second",
        lambda each: each.samples_per_s,
        "Samples per second that the trainer took, over the last 10 s.",
    ),
    _of_trainers("trainer_credit", lambda each: each.credit, "Batches that the trainer may hold at a time."),
    _of_trainers(
        "trainer_leases", lambda each: each.held, "Batches that the trainer holds, or that are on their way to it."
    ),
    _of_trainers(
        "trainer_epoch_seconds",
        lambda each: each.last_epoch.seconds if each.last_epoch else None,
        "How long the trainer's last epoch took. No value before the first epoch is over.",
    ),
    _of_trainers(
        "trainer_epoch_wait_seconds",
        lambda each: each.last_epoch.waited_s if each.last_epoch else None,
        "How long the trainer's loop waited for batches in its last epoch.",
    ),
    _of_trainers(
        "trainer_lag_steps",
        lambda each: each.lag_steps,
        "How many batches the trainer is behind the furthest trainer of the same stream, rank and world; "
        "no value once the trainer has finished.",
    ),
)


# --- the text


def build_families(snapshot: MonitorSnapshot) -> Iterator[Metric]:
    """Yields all metrics that there are at this moment."""
    for each in METRICS:
        family = each.build_family(snapshot)
        if family is not None:
            yield family


@dataclass(frozen=True, slots=True, eq=False)
class CollectedFamilies(Collector):
    """Metrics in the form in which the library's writer takes them."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


class MetricsExposition:
    """Writes the metrics of a snapshot, and the process's own CPU time, memory and descriptors."""

    def __init__(self, take_snapshot: Callable[[], MonitorSnapshot]) -> None:
        self._take_snapshot = take_snapshot
        self._own_process = ProcessCollector(registry=None)

    async def encode_metrics(self) -> bytes:
        """Returns all metrics of one moment, in Prometheus's text format."""
        texts, lines = [], 0
        # A scrape may take milliseconds, so the event loop gets control after each _LINES_PER_TURN lines, to send
        # batches. All values come from one snapshot.
        for family in chain(build_families(self._take_snapshot()), self._own_process.collect()):
            rest, is_first = family.samples, True
            while rest or is_first:
                room = _LINES_PER_TURN - lines
                family.samples, rest = rest[:room], rest[room:]
                text = generate_latest(CollectedFamilies([family]))
                # The library writes help and type before each part of a family, which has them only once.
                texts.append(text if is_first else text.split(b"\n", 2)[2])
                is_first = False
                lines += len(family.samples)
                if lines >= _LINES_PER_TURN:
                    await asyncio.sleep(0)
                    lines = 0
        return b"".join(texts)
