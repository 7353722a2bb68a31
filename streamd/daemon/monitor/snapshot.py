"""Takes a snapshot of the daemon's figures, as plain values. It reads counters that are kept for other purposes."""

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
    """What the monitor reads of a daemon."""

    @property
    def streams(self) -> Mapping[str, ServedStream]: ...

    @property
    def batch_preview(self) -> BatchPreview: ...

    def build_status(self) -> DaemonStatus: ...

    def collect_stats_values(self) -> ValuesByGroup: ...


@dataclass(frozen=True, slots=True)
class TimeHistogram:
    """How many runs took how long: `bucket_counts` as in StageHistogram, and `total_s`, the sum of all runs."""

    bucket_counts: Sequence[int]
    total_s: float


@dataclass(frozen=True, slots=True)
class MonitorSnapshot(StatusSnapshot):
    """All figures of one moment: those of `streamd top`, and by stream those below.

    `bad_counts` counts the samples known to be bad, by kind; `read_times` and `decode_times` are in seconds a sample.
    """

    bad_counts: Mapping[str, Mapping[FaultKind, int]]
    read_times: Mapping[str, TimeHistogram]
    decode_times: Mapping[str, TimeHistogram]

    def stream_counter_value(self, stream: str, name: str) -> float:
        """Returns a stream's counter by its name; 0 if nothing was counted."""
        return self.counter_value(f"stream.{stream}", name)


class SnapshotBuilder:
    """Takes snapshots of a daemon. Used by the event loop's thread, so that all figures are of one moment."""

    def __init__(self, daemon: MonitoredDaemon, stats: ProcessStats) -> None:
        self._daemon = daemon
        self._stats = stats
        self._bad_sample_counts: dict[str, _BadSampleCounts] = {}

    def take_snapshot(self) -> MonitorSnapshot:
        """Returns the figures as of now."""
        streams = self._daemon.streams
        # Rebuilt from the streams that are served now, which drops the counts of a stream that a reload has removed.
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
    """Counts a quarantine's verdicts by kind; looks at each verdict once, since there may be very many."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self.counts_by_kind: Counter[FaultKind] = Counter()
        self._counted_reasons = 0

    def count_new_bad_samples(self) -> None:
        """Counts the verdicts that were added; verdicts are never removed, and keep their order."""
        reasons = self.quarantine.reasons
        if len(reasons) > self._counted_reasons:
            self.counts_by_kind.update(
                classify_fault_reason(reason) for reason in islice(reasons.values(), self._counted_reasons, None)
            )
            self._counted_reasons = len(reasons)
