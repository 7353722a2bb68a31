"""Counters and timings of every stage, kept by whoever does the work and read by everything that shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Stage:
    """How often a stage ran, how long it took in all, and how long at most, in seconds."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.total_s += seconds
        if seconds > self.longest_s:  # noqa: PLR1730 - a call to max shows where a stage runs for every batch
            self.longest_s = seconds


class Stats:
    """One process's numbers: `stages` are timed, `counters` counted; both by (group, name)."""

    def __init__(self) -> None:
        self._stages: defaultdict[tuple[str, str], Stage] = defaultdict(Stage)
        self._counters: defaultdict[tuple[str, str], float] = defaultdict(float)

    def stage(self, group: str, stage: str) -> Stage:
        """A stage, for whoever books so often that looking it up shows."""
        return self._stages[group, stage]

    def time(self, group: str, stage: str, seconds: float, count: int = 1) -> None:
        """Books `count` runs of a stage that took `seconds` together."""
        self._stages[group, stage].add(seconds, count)

    def count(self, group: str, name: str, more: float = 1) -> None:
        self._counters[group, name] += more

    def gauge(self, group: str, name: str, value: float) -> None:
        """Sets a number that goes up and down."""
        self._counters[group, name] = value

    def read(self) -> dict[str, dict[str, float]]:
        """All numbers by group; a stage shows as NAME_count, NAME_s and NAME_longest_s."""
        values: dict[str, dict[str, float]] = {}
        for group, name, value in self._flat():
            values.setdefault(group, {})[name] = value
        return values

    def _flat(self) -> Iterator[tuple[str, str, float]]:
        for (group, name), stage in self._stages.items():
            yield group, f"{name}_count", stage.count
            yield group, f"{name}_s", stage.total_s
            yield group, f"{name}_longest_s", stage.longest_s
        for (group, name), value in self._counters.items():
            yield group, name, value
