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
from streamd.daemon.monitor.bad_samples import Fault, fault
from streamd.daemon.monitor.batch_preview import Leaving
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream

Numbers = Mapping[str, Mapping[str, float]]


class Watched(Protocol):
    """What is asked of a service."""

    @property
    def streams(self) -> Mapping[str, ServedStream]: ...

    @property
    def batch_preview(self) -> Leaving: ...

    def build_status(self) -> DaemonStatus: ...

    def collect_values(self) -> Numbers: ...


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many runs took how long: `cells` as in stats.Spread; `total_s` is all of them together."""

    cells: Sequence[int]
    total_s: float


@dataclass(frozen=True, slots=True)
class Figures(StatusSnapshot):
    """Everything that is told of, besides what `streamd top` looks at, by stream.

    `bad` counts the samples known to be bad, by kind; `reads` and `decodes` are seconds a sample.
    """

    bad: Mapping[str, Mapping[Fault, int]]
    reads: Mapping[str, Histogram]
    decodes: Mapping[str, Histogram]

    def of_stream(self, stream: str, name: str) -> float:
        """What was counted of a stream under a name; 0 when nothing was."""
        return self.counter_value(f"stream.{stream}", name)


class Sight:
    """Looks at a service's books."""

    def __init__(self, service: Watched, stats: ProcessStats) -> None:
        self._service = service
        self._stats = stats
        self._tallies: dict[str, _Tally] = {}

    def look(self) -> Figures:
        """The figures as of now."""
        streams = self._service.streams
        self._tallies = {name: self._tally(name, stream.quarantine) for name, stream in streams.items()}
        return Figures(
            self._service.build_status(),
            self._service.collect_values(),
            {name: dict(tally.kinds) for name, tally in self._tallies.items()},
            self._spreads(streams, "read"),
            self._spreads(streams, "decode"),
        )

    def _tally(self, name: str, quarantine: Quarantine) -> _Tally:
        tally = self._tallies.get(name)
        if tally is None or tally.quarantine is not quarantine:  # a reload may have changed the stream
            tally = _Tally(quarantine)
        tally.catch_up()
        return tally

    def _spreads(self, streams: Iterable[str], stage: str) -> dict[str, Histogram]:
        known = self._stats.histograms_by_group(stage)
        spreads = {name: known.get(f"stream.{name}", StageHistogram()) for name in streams}
        return {name: Histogram(tuple(spread.bucket_counts), spread.total_s) for name, spread in spreads.items()}


class _Tally:
    """Counts a quarantine's verdicts by kind, each of them once: there may be very many."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self.kinds: Counter[Fault] = Counter()
        self._seen = 0

    def catch_up(self) -> None:
        """Counts those that have come; a verdict never goes, and they keep their order."""
        reasons = self.quarantine.reasons
        if len(reasons) > self._seen:
            self.kinds.update(fault(reason) for reason in islice(reasons.values(), self._seen, None))
            self._seen = len(reasons)
