"""What a soak found: a row every ten seconds, whether its curves are flat, and the page and the picture of it."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
import processes
from matplotlib.figure import Figure
from report import Machine, Table, fill

MIB: Final = 1 << 20
WARM_S: Final = 30.0  # of a daemon's life that do not count: its trainers are coming back
LEAST_LIFE_S: Final = 300.0  # of a daemon, for a judgement on that life alone
LEAST_ROWS: Final = 12  # fewer say nothing of a slope
_BYTES: Final = 4.0 * MIB  # an interpreter's heap moves by as much without leaking
_DESCRIPTORS: Final = 4.0  # a trainer that comes or goes
COLUMNS: Final = 2
_RESTART: Final = "#f5c8be"
_COLOURS: Final = ("#2c6cbc", "#ff881c", "#26a056")

CountOrNone = int | None  # None where a process died while it was looked at
Points = list[tuple[float, float]]


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


class RowTable:
    """A CSV file that grows by a row at a time, so that a soak that is cut short leaves what it saw."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([field.name for field in fields(Row)])

    def add(self, row: Row) -> None:
        self.rows.append(row)
        cells = [f"{cell:.1f}" if isinstance(cell, float) else cell for cell in astuple(row)]
        with self._path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)


@dataclass(frozen=True, slots=True)
class Curve:
    """A field of the rows. It is flat if it grows by less than `allowed`, or by less than 5 % of its median."""

    name: str
    field: str
    unit: float
    allowed: float

    def growth_allowed(self, values: Sequence[float]) -> float:
        return max(self.allowed, 0.05 * statistics.median(values))


# Those of a daemon and its workers begin anew with each life, so they are judged within long lives too.
OF_A_DAEMON: Final = (
    Curve("memory of the daemon, MiB", "daemon_bytes", MIB, _BYTES),
    Curve("descriptors of the daemon", "daemon_descriptors", 1, _DESCRIPTORS),
    Curve("threads of the daemon", "daemon_threads", 1, 1.0),
    Curve("memory of the largest worker, MiB", "worker_bytes", MIB, _BYTES),
    Curve("descriptors of a worker", "worker_descriptors", 1, _DESCRIPTORS),
)
OF_A_TRAINER: Final = (
    Curve("memory of the lasting trainer, MiB", "trainer_bytes", MIB, _BYTES),
    Curve("descriptors of the lasting trainer", "trainer_descriptors", 1, _DESCRIPTORS),
    Curve("threads of the lasting trainer", "trainer_threads", 1, 1.0),
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
    known = [(row.time_s, float(value)) for row in rows if (value := getattr(row, curve.field)) is not None]
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


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one unit, with their names: fields of a row, which are divided by `unit`."""

    title: str
    curves: Mapping[str, str]
    unit: int = 1

    def points(self, field: str, rows: Sequence[Row]) -> list[Points]:
        """Minutes and values, in pieces: a new daemon begins a new one, as does a value that is not known."""
        pieces: list[Points] = [[]]
        life = rows[0].life if rows else 0
        for row in rows:
            value = getattr(row, field)
            if (row.life != life or value is None) and pieces[-1]:
                pieces.append([])
            life = row.life
            if value is not None:
                pieces[-1].append((row.time_s / 60, value / self.unit))
        return [piece for piece in pieces if piece]


PANELS: Final = (
    Panel("memory of the daemon, MiB", {"daemon": "daemon_bytes"}, MIB),
    Panel("memory of the largest worker, MiB", {"worker": "worker_bytes"}, MIB),
    Panel(
        "memory of batches, MiB",
        {"as the kernel counts": "slots_bytes", "as the daemon counts": "accounted_bytes"},
        MIB,
    ),
    Panel("memory of the lasting trainer, MiB", {"trainer": "trainer_bytes"}, MIB),
    Panel(
        "descriptors",
        {"daemon": "daemon_descriptors", "worker": "worker_descriptors", "lasting trainer": "trainer_descriptors"},
    ),
    Panel("threads", {"daemon": "daemon_threads", "lasting trainer": "trainer_threads"}),
    Panel("batches a second, all trainers", {"batches": "batches_per_s"}),
    Panel("faults so far", {"faults": "faults"}),
)


def draw(rows: Sequence[Row], restarts: Sequence[float], path: Path) -> None:
    """Writes a PNG. `restarts`: minutes at which a daemon began, drawn as upright lines."""
    figure = Figure(figsize=(15, 2.5 * len(PANELS) / COLUMNS), dpi=100, layout="constrained")
    for axes, panel in zip(figure.subplots(len(PANELS) // COLUMNS, COLUMNS).flat, PANELS, strict=True):
        for minute in restarts:
            axes.axvline(minute, color=_RESTART, linewidth=1)
        for (name, field), colour in zip(panel.curves.items(), _COLOURS, strict=False):
            for piece in panel.points(field, rows):
                axes.plot(*zip(*piece, strict=True), color=colour, linewidth=1.5)
            axes.plot([], [], color=colour, label=name)  # one name for all pieces
        axes.set_title(panel.title, loc="left", fontsize=11)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.grid(alpha=0.3)
        if len(panel.curves) > 1:
            axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(panel.curves))
    figure.savefig(path)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that one soak found. `outstanding`: batches lent or on their way when a daemon was killed."""

    machine: Machine
    minutes: float
    seed: int
    faults: Mapping[str, int]
    totals: Totals
    outstanding: tuple[int, ...]
    fits: tuple[Fit, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems and all(each.flat for each in self.fits)


def _build_fit_row(fit: Fit) -> tuple[str, ...]:
    figures = (f"{fit.minutes:.0f}", f"{fit.median:.1f}", f"{fit.growth:+.2f}", f"{fit.allowed:.1f}")
    return (fit.curve, fit.over, *figures, "flat" if fit.flat else "**GROWS**")


def _flatness(fits: Sequence[Fit]) -> list[str]:
    if not fits:
        return ["Too short to say whether anything grows."]
    text = (
        "Growth is the median of the slopes between all pairs of rows (Theil-Sen), times the span. A curve is flat "
        "when it grows by no more than is allowed: 4 MiB, 4 descriptors, 1 thread, or 5 % of its median. The first "
        f"{WARM_S:g} s of each daemon do not count. One that served for more than {LEAST_LIFE_S / 60:g} minutes is "
        "judged by itself, too."
    )
    heads = ("curve", "over", "minutes", "median", "growth", "allowed", "")
    return [fill(text), Table(heads, tuple(map(_build_fit_row, fits))).render()]


def render(outcome: Outcome) -> str:
    """The page."""
    where, totals = outcome.machine, outcome.totals
    met = ", ".join(map(str, outcome.outstanding)) or "no"
    faults = tuple((name, str(count)) for name, count in sorted(outcome.faults.items()))
    blocks = [
        f"# A soak of {outcome.minutes:g} minutes",
        fill(
            f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Written by "
            f"`scripts/bench soak --minutes {outcome.minutes:g} --seed {outcome.seed}`."
        ),
        fill(
            f"{totals.batches:,} batches in {totals.epochs:,} epochs to {totals.lives:,} processes of trainers, of "
            f"which {totals.again:,} again, after a trainer had been killed. The oracle has judged every one: samples, "
            f"labels, pixels, order, receipts. All was **{'as promised' if outcome.ok else 'NOT AS PROMISED'}**."
        ),
        "## What was wrong",
        "\n".join(f"- {each}" for each in outcome.problems or ("none",)),
        "## What was done",
        Table(("fault", "times"), faults).render(),
        fill(f"When a daemon was killed, trainers had {met} batches on loan or on their way."),
        "## What grew",
        *_flatness(outcome.fits),
        "![curves](soak.png)",
    ]
    return "\n\n".join(blocks) + "\n"


def restarts(rows: Sequence[Row]) -> list[float]:
    """Minutes at which a new daemon was first seen."""
    return [row.time_s / 60 for before, row in itertools.pairwise(rows) if row.life != before.life]


def save(outcome: Outcome, rows: Sequence[Row], folder: Path) -> None:
    """Writes soak.md and soak.png; soak.csv is there already."""
    (folder / "soak.md").write_text(render(outcome))
    draw(rows, restarts(rows), folder / "soak.png")
