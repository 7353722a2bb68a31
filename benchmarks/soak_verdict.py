"""Whether the curves of a soak are flat, and what that means."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from soak_rows import Row

WARM_S: Final = 30.0  # of a daemon's life that do not count: its trainers are coming back
LEAST_LIFE_S: Final = 300.0  # of a daemon, for a judgement on that life alone
LEAST_ROWS: Final = 12  # fewer say nothing of a slope
MIB: Final = 1 << 20

_Read = Callable[[Row], "int | None"]


@dataclass(frozen=True, slots=True)
class Curve:
    """One of a row's values. It is flat if it grows by less than `allowed`, or by less than 5 % of its median."""

    name: str
    read: _Read
    unit: float
    allowed: float

    def growth_allowed(self, values: Sequence[float]) -> float:
        return max(self.allowed, 0.05 * statistics.median(values))


_BYTES: Final = 4.0 * MIB  # an interpreter's heap moves by as much without leaking
_DESCRIPTORS: Final = 4.0  # a trainer that comes or goes

# Those of a daemon and its workers begin anew with each life, so they are judged within long lives too.
OF_A_DAEMON: Final = (
    Curve("memory of the daemon, MiB", lambda row: row.daemon_bytes, MIB, _BYTES),
    Curve("descriptors of the daemon", lambda row: row.daemon_descriptors, 1, _DESCRIPTORS),
    Curve("threads of the daemon", lambda row: row.daemon_threads, 1, 1.0),
    Curve("memory of the largest worker, MiB", lambda row: row.worker_bytes, MIB, _BYTES),
    Curve("descriptors of a worker", lambda row: row.worker_descriptors, 1, _DESCRIPTORS),
)
OF_A_TRAINER: Final = (
    Curve("memory of the lasting trainer, MiB", lambda row: row.trainer_bytes, MIB, _BYTES),
    Curve("descriptors of the lasting trainer", lambda row: row.trainer_descriptors, 1, _DESCRIPTORS),
    Curve("threads of the lasting trainer", lambda row: row.trainer_threads, 1, 1.0),
)


@dataclass(frozen=True, slots=True)
class Fit:
    """A curve over a span of time: its median, and how much it grew, in its unit."""

    curve: str
    over: str
    minutes: float
    median: float
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes between all pairs (Theil-Sen): a few wild values do not move it."""
    x, y = np.asarray(times, np.float64), np.asarray(values, np.float64)
    one, other = np.triu_indices(len(x), k=1)
    apart = x[other] != x[one]
    return float(np.median((y[other] - y[one])[apart] / (x[other] - x[one])[apart]))


def fit(curve: Curve, rows: Sequence[Row], over: str) -> Fit | None:
    """None where there are too few rows to say."""
    known = [(row.time_s, float(value)) for row in rows if (value := curve.read(row)) is not None]
    if len(known) < LEAST_ROWS:
        return None
    times, values = zip(*known, strict=True)
    span_s = times[-1] - times[0]
    growth = slope(times, values) * span_s
    unit = curve.unit
    return Fit(
        curve.name,
        over,
        span_s / 60,
        statistics.median(values) / unit,
        growth / unit,
        curve.growth_allowed(values) / unit,
    )


def fits(rows: Sequence[Row]) -> list[Fit]:
    """All curves over all the time, and those of a daemon over each of its long lives."""
    warm = [row for row in rows if row.daemon_age_s >= WARM_S]
    found = [fit(curve, warm, "all") for curve in OF_A_DAEMON + OF_A_TRAINER]
    for life in sorted({row.life for row in warm}):
        own = [row for row in warm if row.life == life]
        if own[-1].daemon_age_s - own[0].daemon_age_s >= LEAST_LIFE_S:
            found += [fit(curve, own, f"daemon {life}") for curve in OF_A_DAEMON]
    return [each for each in found if each is not None]


def overdrawn(rows: Sequence[Row], memory_bytes: int) -> list[str]:
    """The moments at which batches had more memory than the configuration allows."""
    return [
        f"at {row.time_s:.0f} s batches have {max(row.slots_bytes or 0, row.accounted_bytes or 0):,} bytes"
        for row in rows
        if max(row.slots_bytes or 0, row.accounted_bytes or 0) > memory_bytes
    ]
