"""Made-up figures of a daemon, and the lines that Prometheus reads of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from streamd.core.counters import NumbersByGroup, ProcessStats, StageHistogram
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus, compare_sessions
from streamd.daemon.batch_sender import BatchPreview
from streamd.daemon.monitor.metrics import METRICS
from streamd.daemon.monitor.snapshot import MonitorSnapshot
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.slots import SlotStore

TIMING = EpochTiming(0, 43.0, 2.0, "disk", BatchSupply())
STREAM = StreamStatus("train", 1000, 8, 125, 1, 10.0, 80.0, 1.25, 3, 4, 1, shuffle_score=0.75)
SESSION = SessionStatus(
    7, "train", 1, 2, 3, None, 40, 62, 16, 5, "reading", 80.0, 60.0, TIMING, own_step=40, own_steps=62
)
STATUS = DaemonStatus("1.2", 4321, "ipc:///s", 60.0, 4, 0.5, 1 << 30, 1 << 20, draining=False, streams=(STREAM,))
NOTHING = StageHistogram()


def figures(
    *sessions: SessionStatus,
    streams: Iterable[StreamStatus] = (STREAM,),
    numbers: NumbersByGroup | None = None,
    draining: bool = False,
) -> MonitorSnapshot:
    """A snapshot of a daemon that serves `train`, without bad samples and reads."""
    compared = compare_sessions(sessions)
    status = replace(STATUS, streams=tuple(streams), sessions=compared, draining=draining)
    none: Mapping[str, StageHistogram] = {each.name: NOTHING for each in status.streams}
    return MonitorSnapshot(status, numbers or {}, {each.name: {} for each in status.streams}, none, none)


@dataclass
class Books:
    """A made-up service for the monitor."""

    told: DaemonStatus = STATUS
    counted: dict[str, dict[str, float]] = field(default_factory=dict)
    streams: Mapping[str, ServedStream] = field(default_factory=dict)
    stats: ProcessStats = field(default_factory=ProcessStats)
    batch_preview: BatchPreview = field(default_factory=lambda: BatchPreview(SlotStore()))

    def build_status(self) -> DaemonStatus:
        return self.told

    def collect_stats_values(self) -> NumbersByGroup:
        return self.counted


def metrics(at: MonitorSnapshot) -> dict[str, float]:
    """Every line of the daemon's metrics, see `values`."""
    return values(family for each in METRICS if (family := each.build_family(at)) is not None)


def values(families: Iterable[Metric]) -> dict[str, float]:
    """Every line of some families: `name{label=value}` without `streamd_`, labels in order."""
    return {_name(sample): sample.value for family in families for sample in family.samples}


def _name(sample: Sample) -> str:
    labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
    return f"{sample.name.removeprefix('streamd_')}{{{labels}}}"
