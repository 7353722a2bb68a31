"""The curves of a soak as one picture: a panel a subject, minutes across."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from soak_rows import Row

MIB: Final = 1 << 20
COLUMNS: Final = 2
_RESTART: Final = "#f5c8be"
_COLOURS: Final = ("#2c6cbc", "#ff881c", "#26a056")

_Read = Callable[[Row], "float | None"]
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one unit, with their names."""

    title: str
    curves: tuple[tuple[str, _Read], ...]


def _in_mib(value: int | None) -> float | None:
    return None if value is None else value / MIB


PANELS: Final = (
    Panel("memory of the daemon, MiB", (("daemon", lambda row: _in_mib(row.daemon_bytes)),)),
    Panel("memory of the largest worker, MiB", (("worker", lambda row: _in_mib(row.worker_bytes)),)),
    Panel(
        "memory of batches, MiB",
        (
            ("as the kernel counts", lambda row: _in_mib(row.slots_bytes)),
            ("as the daemon counts", lambda row: _in_mib(row.accounted_bytes)),
        ),
    ),
    Panel("memory of the lasting trainer, MiB", (("trainer", lambda row: _in_mib(row.trainer_bytes)),)),
    Panel(
        "descriptors",
        (
            ("daemon", lambda row: row.daemon_descriptors),
            ("worker", lambda row: row.worker_descriptors),
            ("lasting trainer", lambda row: row.trainer_descriptors),
        ),
    ),
    Panel(
        "threads",
        (("daemon", lambda row: row.daemon_threads), ("lasting trainer", lambda row: row.trainer_threads)),
    ),
    Panel("batches a second, all trainers", (("batches", lambda row: row.batches_per_s),)),
    Panel("faults so far", (("faults", lambda row: row.faults),)),
)


def points(curve: _Read, rows: Sequence[Row]) -> list[Points]:
    """Minutes and values, in pieces: a new daemon begins a new one, as does a value that is not known."""
    pieces: list[Points] = [[]]
    life = rows[0].life if rows else 0
    for row in rows:
        value = curve(row)
        if (row.life != life or value is None) and pieces[-1]:
            pieces.append([])
        life = row.life
        if value is not None:
            pieces[-1].append((row.time_s / 60, float(value)))
    return [piece for piece in pieces if piece]


def draw(rows: Sequence[Row], restarts: Sequence[float], path: Path) -> None:
    """Writes a PNG. `restarts`: minutes at which a daemon began, drawn as upright lines."""
    figure = Figure(figsize=(15, 2.5 * len(PANELS) / COLUMNS), dpi=100, layout="constrained")
    for axes, panel in zip(figure.subplots(len(PANELS) // COLUMNS, COLUMNS).flat, PANELS, strict=True):
        for minute in restarts:
            axes.axvline(minute, color=_RESTART, linewidth=1)
        for (name, read), colour in zip(panel.curves, _COLOURS, strict=False):
            for piece in points(read, rows):
                axes.plot(*zip(*piece, strict=True), color=colour, linewidth=1.5)
            axes.plot([], [], color=colour, label=name)  # one name for all pieces
        axes.set_title(panel.title, loc="left", fontsize=11)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.grid(alpha=0.3)
        if len(panel.curves) > 1:
            axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(panel.curves))
    figure.savefig(path)
