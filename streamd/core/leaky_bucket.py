"""A leaky bucket: how much of something was taken lately, beside what may be taken in the long run. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LeakyBucket:
    """What was added drains at `rate` a second. `level` is what was in it at `time_s`, of a monotonic clock."""

    rate: float
    level: float = 0.0
    time_s: float = 0.0

    def compute_level(self, now_s: float) -> float:
        """Returns what is in the bucket."""
        return max(0.0, self.level - self.rate * max(0.0, now_s - self.time_s))

    def add(self, amount: float, now_s: float) -> None:
        """Adds an amount, of at least 0."""
        self.level, self.time_s = self.compute_level(now_s) + amount, now_s
