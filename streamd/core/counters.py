"""Counters and timings of every stage, and nothing that interprets them. Pure.

The code that does the work updates the numbers; status, metrics and screens read them.

All names are listed here, so that a misspelt one is an error of the type checker and not a 0 where it is read. A stream
has its own group, `stream.NAME`; the others are `engine`, `wire`, `daemon`, `rules` and `dashboard`.

Nothing here locks: one event loop makes all updates and reads of a ProcessStats.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

StreamCounter = Literal[
    "produced",  # batches that workers made
    "first_sent",  # batches that were sent to a first trainer
    "sent_samples",
    "taken_samples",
    "bad_samples",  # samples that turned out bad since the daemon started
    "cache_hits",
    "cache_misses",
    "receipts_ok",
    "receipts_bad",
]
StreamStage = Literal["read", "decode", "send", "client_wait"]
EngineCounter = Literal["worker_deaths"]
EngineStage = Literal["idle", "queue"]  # workers without a task; tasks that no worker has yet
WireCounter = Literal["malformed", "stale"]  # frames that are ignored
DaemonGauge = Literal["sessions", "memory_used_bytes", "slots", "producing", "slot_wait_s"]
DashboardCounter = Literal["drawn"]

CounterName = Literal[StreamCounter, EngineCounter, WireCounter, DashboardCounter]
StageName = Literal[StreamStage, EngineStage]
# Every name that is read, but for the rules, which the invariant checker names. A stage has three numbers.
NumberName = Literal[
    CounterName,
    DaemonGauge,
    "read_count", "decode_count", "send_count", "client_wait_count", "idle_count", "queue_count",
    "read_s", "decode_s", "send_s", "client_wait_s", "idle_s", "queue_s",
    "read_longest_s", "decode_longest_s", "send_longest_s", "client_wait_longest_s", "idle_longest_s",
    "queue_longest_s",
]  # fmt: skip
NumbersByGroup = Mapping[str, Mapping[str, float]]

# The upper bounds, inclusive, of a histogram's buckets, for the time of one run of a stage; one more bucket has all
# longer runs. Half decades tell a page cache from a disk and a disk from a network; finer ones would cost every scrape.
BUCKET_BOUNDS_S: Final = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(slots=True)
class StageTimes:
    """How often a stage ran, how long it took in all, and how long at most, in seconds."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add_runs(self, seconds: float, count: int = 1) -> None:
        """Adds `count` runs of the stage that took `seconds` together."""
        self.count += count
        self.total_s += seconds
        if seconds > self.longest_s:  # noqa: PLR1730 - a call to max shows where a stage runs for every batch
            self.longest_s = seconds


@dataclass(slots=True)
class StageHistogram(StageTimes):
    """A stage with a histogram of its runs: `bucket_counts` has one count for each of BUCKET_BOUNDS_S, and one more.

    Runs that are added together count as equal, each with their mean time.
    """

    bucket_counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS_S) + 1))

    def add_runs(self, seconds: float, count: int = 1) -> None:
        # `super()` without arguments fails here: `slots=True` replaces the class by a new one, but `super()` still
        # refers to the old one.
        StageTimes.add_runs(self, seconds, count)
        if count:
            self.bucket_counts[bisect_left(BUCKET_BOUNDS_S, seconds / count)] += count


class ProcessStats:
    """One process's numbers: times of stages and counts of events, by (group, name)."""

    def __init__(self) -> None:
        self._stages: defaultdict[tuple[str, StageName], StageTimes] = defaultdict(StageTimes)
        self._histograms: defaultdict[tuple[str, StageName], StageHistogram] = defaultdict(StageHistogram)
        self._counters: defaultdict[tuple[str, CounterName], float] = defaultdict(float)

    def find_stage_times(self, group: str, stage: StageName) -> StageTimes:
        """Returns a stage. Callers that add runs so often that the look-up would cost time keep it."""
        return self._stages[group, stage]

    def stage_histogram(self, group: str, stage: StageName) -> StageHistogram:
        """Returns a stage that also has a histogram of its runs."""
        return self._histograms[group, stage]

    def copy_histogram(self, group: str, stage: StageName) -> StageHistogram:
        """Returns a stage with its histogram as they are now; an empty one if it has not run."""
        stored = self._histograms.get((group, stage))
        return StageHistogram() if stored is None else replace(stored, bucket_counts=stored.bucket_counts.copy())

    def add_count(self, group: str, name: CounterName, more: float = 1) -> None:
        self._counters[group, name] += more

    def counter_value(self, group: str, name: CounterName) -> float:
        """Returns the value of a counter, 0 if nothing was counted."""
        return self._counters.get((group, name), 0)

    def values_by_group(self) -> dict[str, dict[str, float]]:
        """Returns all numbers by group; a stage appears as NAME_count, NAME_s and NAME_longest_s, times in seconds."""
        values: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for (group, stage), times in (*self._stages.items(), *self._histograms.items()):
            values[group] |= {
                f"{stage}_count": times.count,
                f"{stage}_s": times.total_s,
                f"{stage}_longest_s": times.longest_s,
            }
        for (group, name), value in self._counters.items():
            values[group][name] = value
        return dict(values)


def read_number(numbers: NumbersByGroup, group: str, name: NumberName) -> float:
    """Returns one of the numbers of a daemon, 0 if it has none by that name."""
    return numbers.get(group, {}).get(name, 0)
