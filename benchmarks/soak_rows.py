"""What the soak writes down every ten seconds, and the table it is kept in."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final

import processes

CountOrNone = int | None  # None where a process died while it was looked at


@dataclass(frozen=True, slots=True)
class Row:
    """One moment. `daemon_age_s` is since this daemon, number `life`, began to serve.

    `accounted_bytes` is batch memory as the daemon counts it, `slots_bytes` as the kernel does. `worker_*` are of the
    worker that has most. `trainer_*` are of the one trainer that lives from beginning to end; `trainers_bytes` and
    `batches`, `epochs` are of all. `batches_per_s` is since the row before.
    """

    time_s: float
    life: int
    daemon_age_s: float
    daemon_bytes: CountOrNone
    daemon_descriptors: CountOrNone
    daemon_threads: CountOrNone
    slots_bytes: CountOrNone
    accounted_bytes: CountOrNone
    workers: int
    worker_bytes: CountOrNone
    worker_descriptors: CountOrNone
    trainers: int
    trainer_bytes: CountOrNone
    trainer_descriptors: CountOrNone
    trainer_threads: CountOrNone
    trainers_bytes: CountOrNone
    batches_per_s: float
    batches: int
    epochs: int
    faults: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What trainers took: batches, of which `again` after a resumption; whole epochs; lives of their processes."""

    batches: int = 0
    again: int = 0
    epochs: int = 0
    lives: int = 0

    def __add__(self, other: Totals) -> Totals:
        both = zip(astuple(self), astuple(other), strict=True)
        return Totals(*(one + another for one, another in both))


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has: bytes of memory of its own, descriptors, threads; None when it has ended."""

    memory: CountOrNone = None
    descriptors: CountOrNone = None
    threads: CountOrNone = None


def use_of(pid: int) -> Use:
    """As the kernel says now."""
    try:
        return Use(processes.anonymous_bytes(pid), processes.descriptors(pid), processes.threads(pid))
    except (FileNotFoundError, ProcessLookupError, ValueError):  # ValueError: a zombie has no memory to tell of
        return Use()


def slots_bytes(pid: int) -> int | None:
    """Batch memory that a daemon really has; None when it has ended."""
    try:
        return processes.memfd_bytes([pid])
    except (FileNotFoundError, ProcessLookupError):
        return None


def most(values: Iterable[int | None]) -> int | None:
    """The largest that is known."""
    return max((value for value in values if value is not None), default=None)


_NAMES: Final = [field.name for field in fields(Row)]
_FLOATS: Final = frozenset({"time_s", "daemon_age_s", "batches_per_s"})


class Table:
    """A CSV file that grows by a row at a time, so that a soak that is cut short leaves what it saw."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(_NAMES)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        cells = [f"{cell:.1f}" if isinstance(cell, float) else cell for cell in astuple(row)]
        with self._path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)


def read(path: Path) -> list[Row]:
    """The rows of a table that was written."""
    with path.open(newline="") as file:
        return [Row(**{name: _value(name, cell) for name, cell in line.items()}) for line in csv.DictReader(file)]  # type: ignore[arg-type]  # each cell is of its field's type


def _value(name: str, cell: str) -> float | int | None:
    if name in _FLOATS:
        return float(cell)
    return int(cell) if cell else None
