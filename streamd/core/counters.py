"""Counters and timings of every stage, kept by whoever does the work and read by everything that shows them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

# How long one run of a stage took: the cells of a spread, each up to and with its bound, and one for all beyond. Half
# decades tell a page cache from a disk, and a disk from a network; finer cells would cost every scrape.
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
    """A stage that also knows how many runs took how long: `bucket_counts` are those of SPREAD_S and one more.

    Runs that are booked together count as alike, each with the mean of them.
    """

    bucket_counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS_S) + 1))

    def add_runs(self, seconds: float, count: int = 1) -> None:
        StageTimes.add_runs(self, seconds, count)  # super() knows nothing of a dataclass with slots
        if count:
            self.bucket_counts[bisect_left(BUCKET_BOUNDS_S, seconds / count)] += count


class ProcessStats:
    """One process's numbers: stages are timed, events counted, both by (group, name)."""

    def __init__(self) -> None:
        self._stages: defaultdict[tuple[str, str], StageTimes] = defaultdict(StageTimes)
        self._histograms: defaultdict[tuple[str, str], StageHistogram] = defaultdict(StageHistogram)
        self._counters: defaultdict[tuple[str, str], float] = defaultdict(float)

    def find_stage_times(self, group: str, stage: str) -> StageTimes:
        """A stage, for whoever books so often that looking it up shows."""
        return self._stages[group, stage]

    def add_stage_runs(self, group: str, stage: str, seconds: float, count: int = 1) -> None:
        """Books `count` runs of a stage that took `seconds` together."""
        self._stages[group, stage].add_runs(seconds, count)

    def stage_histogram(self, group: str, stage: str) -> StageHistogram:
        """A stage of which it is also known how many runs took how long."""
        return self._histograms[group, stage]

    def histograms_by_group(self, stage: str) -> dict[str, StageHistogram]:
        """All that are called so, by group, as they go on counting."""
        return {group: spread for (group, name), spread in self._histograms.items() if name == stage}

    def add_count(self, group: str, name: str, more: float = 1) -> None:
        self._counters[group, name] += more

    def set_gauge(self, group: str, name: str, value: float) -> None:
        """Sets a number that goes up and down."""
        self._counters[group, name] = value

    def values_by_group(self) -> dict[str, dict[str, float]]:
        """All numbers by group; a stage shows as NAME_count, NAME_s and NAME_longest_s."""
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
