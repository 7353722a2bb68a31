"""Counters and timings of every stage. The code that does the work updates them; status, metrics and screens read them.

Nothing here locks: one event loop makes all updates and reads of a ProcessStats.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

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
        self._stages: defaultdict[tuple[str, str], StageTimes] = defaultdict(StageTimes)
        self._histograms: defaultdict[tuple[str, str], StageHistogram] = defaultdict(StageHistogram)
        self._counters: defaultdict[tuple[str, str], float] = defaultdict(float)

    def find_stage_times(self, group: str, stage: str) -> StageTimes:
        """Returns a stage, for callers that add runs so often that the look-up would cost time."""
        return self._stages[group, stage]

    def add_stage_runs(self, group: str, stage: str, seconds: float, count: int = 1) -> None:
        """Adds `count` runs of a stage that took `seconds` together."""
        self._stages[group, stage].add_runs(seconds, count)

    def stage_histogram(self, group: str, stage: str) -> StageHistogram:
        """Returns a stage that also has a histogram of its runs."""
        return self._histograms[group, stage]

    def histograms_by_group(self, stage: str) -> dict[str, StageHistogram]:
        """Returns the histograms of all stages called `stage`, by group. They are live and go on counting."""
        return {group: spread for (group, name), spread in self._histograms.items() if name == stage}

    def add_count(self, group: str, name: str, more: float = 1) -> None:
        self._counters[group, name] += more

    def set_gauge(self, group: str, name: str, value: float) -> None:
        """Sets a number that goes up and down."""
        self._counters[group, name] = value

    def values_by_group(self) -> dict[str, dict[str, float]]:
        """Returns all numbers by group; a stage appears as NAME_count, NAME_s and NAME_longest_s, times in seconds."""
        values: dict[str, dict[str, float]] = {}
        for group, name, value in self._iterate_counters_and_times():
            values.setdefault(group, {})[name] = value
        return values

    def _iterate_counters_and_times(self) -> Iterator[tuple[str, str, float]]:
        for (group, name), stage in (*self._stages.items(), *self._histograms.items()):
            yield group, f"{name}_count", stage.count
            yield group, f"{name}_s", stage.total_s
            yield group, f"{name}_longest_s", stage.longest_s
        for (group, name), value in self._counters.items():
            yield group, name, value
