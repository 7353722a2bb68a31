"""All figures of the daemon at one moment, for metrics and dashboard: its status, and numbers kept elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Protocol

import msgspec

from streamd.core.counters import NumbersByGroup, ProcessStats, StageHistogram
from streamd.core.status import DaemonStatus
from streamd.daemon.monitor.bad_samples import FaultKind, classify_fault_reason
from streamd.daemon.monitor.batch_preview import BatchPreview
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream


class MonitoredDaemon(Protocol):
    """What the monitor reads of a daemon."""

    @property
    def streams(self) -> Mapping[str, ServedStream]: ...

    @property
    def batch_preview(self) -> BatchPreview: ...

    def build_status(self) -> DaemonStatus: ...

    def collect_stats_values(self) -> NumbersByGroup: ...


class MonitorSnapshot(msgspec.Struct, frozen=True):
    """All figures of one moment: the status, the numbers that a client gets for `stats`, and by stream those below.

    `bad_counts` counts the samples known to be bad, by kind; `read_times` and `decode_times` are in seconds a sample.
    """

    status: DaemonStatus
    numbers: NumbersByGroup
    bad_counts: Mapping[str, Mapping[FaultKind, int]]
    read_times: Mapping[str, StageHistogram]
    decode_times: Mapping[str, StageHistogram]


class SnapshotBuilder:
    """Takes snapshots of a daemon. Used by the event loop's thread, so that all figures are of one moment."""

    def __init__(self, daemon: MonitoredDaemon, stats: ProcessStats) -> None:
        self._daemon = daemon
        self._stats = stats
        self._bad_sample_counts: dict[str, _BadSampleCounts] = {}

    def take_snapshot(self) -> MonitorSnapshot:
        """Returns the figures as of now."""
        streams, known = self._daemon.streams, self._bad_sample_counts
        # Rebuilt from the streams that are served now, which drops the counts of a stream that a reload has removed or
        # has given another quarantine.
        self._bad_sample_counts = {}
        for name, stream in streams.items():
            tally = known.get(name)
            if tally is None or tally.quarantine is not stream.quarantine:
                tally = _BadSampleCounts(stream.quarantine)
            tally.count_new_bad_samples()
            self._bad_sample_counts[name] = tally
        return MonitorSnapshot(
            self._daemon.build_status(),
            self._daemon.collect_stats_values(),
            {name: dict(tally.counts_by_kind) for name, tally in self._bad_sample_counts.items()},
            {name: self._stats.copy_histogram(f"stream.{name}", "read") for name in streams},
            {name: self._stats.copy_histogram(f"stream.{name}", "decode") for name in streams},
        )


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
