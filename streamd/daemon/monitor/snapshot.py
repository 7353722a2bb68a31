"""What the daemon's books say at one moment, as plain values: nobody has counted anything for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from streamd.core.activity import StatusSnapshot
from streamd.core.counters import ProcessStats, StageHistogram
from streamd.core.status import DaemonStatus
from streamd.daemon.monitor.bad_samples import FaultKind, classify_fault_reason
from streamd.daemon.monitor.batch_preview import BatchPreview
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream

ValuesByGroup = Mapping[str, Mapping[str, float]]


class MonitoredDaemon(Protocol):
    """What is asked of a service."""

    @property
    def streams(self) -> Mapping[str, ServedStream]: ...

    @property
    def batch_preview(self) -> BatchPreview: ...

    def build_status(self) -> DaemonStatus: ...

    def collect_stats_values(self) -> ValuesByGroup: ...


@dataclass(frozen=True, slots=True)
class TimeHistogram:
    """How many runs took how long: `bucket_counts` as in stats.Spread; `total_s` is all of them together."""

    bucket_counts: Sequence[int]
    total_s: float


@dataclass(frozen=True, slots=True)
class MonitorSnapshot(StatusSnapshot):
    """Everything that is told of, besides what `streamd top` looks at, by stream.

    `bad_counts` counts the samples known to be bad, by kind; `read_times` and `decode_times` are seconds a sample.
    """

    bad_counts: Mapping[str, Mapping[FaultKind, int]]
    read_times: Mapping[str, TimeHistogram]
    decode_times: Mapping[str, TimeHistogram]

    def stream_counter_value(self, stream: str, name: str) -> float:
        """What was counted of a stream under a name; 0 when nothing was."""
        return self.counter_value(f"stream.{stream}", name)


class SnapshotBuilder:
    """Looks at a service's books."""

    def __init__(self, daemon: MonitoredDaemon, stats: ProcessStats) -> None:
        self._daemon = daemon
        self._stats = stats
        self._bad_sample_counts: dict[str, _BadSampleCounts] = {}

    def take_snapshot(self) -> MonitorSnapshot:
        """The figures as of now."""
        streams = self._daemon.streams
        self._bad_sample_counts = {
            name: self._count_bad_samples(name, stream.quarantine) for name, stream in streams.items()
        }
        return MonitorSnapshot(
            self._daemon.build_status(),
            self._daemon.collect_stats_values(),
            {name: dict(tally.counts_by_kind) for name, tally in self._bad_sample_counts.items()},
            self._copy_time_histograms(streams, "read"),
            self._copy_time_histograms(streams, "decode"),
        )

    def _count_bad_samples(self, name: str, quarantine: Quarantine) -> _BadSampleCounts:
        tally = self._bad_sample_counts.get(name)
        if tally is None or tally.quarantine is not quarantine:  # a reload may have changed the stream
            tally = _BadSampleCounts(quarantine)
        tally.count_new_bad_samples()
        return tally

    def _copy_time_histograms(self, streams: Iterable[str], stage: str) -> dict[str, TimeHistogram]:
        known = self._stats.histograms_by_group(stage)
        spreads = {name: known.get(f"stream.{name}", StageHistogram()) for name in streams}
        return {name: TimeHistogram(tuple(spread.bucket_counts), spread.total_s) for name, spread in spreads.items()}


class _BadSampleCounts:
    """Counts a quarantine's verdicts by kind, each of them once: there may be very many."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self.counts_by_kind: Counter[FaultKind] = Counter()
        self._counted_reasons = 0

    def count_new_bad_samples(self) -> None:
        """Counts those that have come; a verdict never goes, and they keep their order."""
        reasons = self.quarantine.reasons
        if len(reasons) > self._counted_reasons:
            self.counts_by_kind.update(
                classify_fault_reason(reason) for reason in islice(reasons.values(), self._counted_reasons, None)
            )
            self._counted_reasons = len(reasons)
