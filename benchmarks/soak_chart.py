"""The curves of a soak as one picture, drawn with Pillow: a panel a subject, minutes across."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont
from soak_rows import Row

from streamd.cli.demo.judge import compute_axis_ticks

MIB: Final = 1 << 20
WIDTH: Final = 1500
PANEL_HEIGHT: Final = 250
COLUMNS: Final = 2
OVERSAMPLING: Final = 2  # drawn larger and reduced, which smooths the lines

_PAPER: Final = (255, 255, 255)
_INK: Final = (34, 40, 49)
_GREY: Final = (112, 120, 131)
_GRID: Final = (228, 231, 235)
_RESTART: Final = (245, 200, 190)
_COLOURS: Final = ((44, 108, 188), (255, 136, 28), (38, 160, 86))
_MARGIN: Final = (64, 44, 20, 34)  # left, top, right, bottom, of a panel

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


class _Frame:
    """One panel's place on the sheet, and its scales."""

    def __init__(self, pen: ImageDraw.ImageDraw, number: int, minutes: float, values: Sequence[float]) -> None:
        self._pen = pen
        width = WIDTH // COLUMNS
        left, top = number % COLUMNS * width, number // COLUMNS * PANEL_HEIGHT
        self.box = (left + _MARGIN[0], top + _MARGIN[1], left + width - _MARGIN[2], top + PANEL_HEIGHT - _MARGIN[3])
        self.across, self.up = compute_axis_ticks(0.0, max(minutes, 0.1)), compute_axis_ticks(0.0, max([*values, 1.0]))

    def place(self, minute: float, value: float) -> tuple[float, float]:
        left, top, right, bottom = self.box
        x = left + (right - left) * minute / self.across[-1]
        return x * OVERSAMPLING, (bottom - (bottom - top) * value / self.up[-1]) * OVERSAMPLING

    def line(self, ends: Sequence[tuple[float, float]], colour: tuple[int, int, int], width: float) -> None:
        """Through minutes and values."""
        places = [self.place(*end) for end in ends]
        self._pen.line(places * (1 + (len(places) == 1)), fill=colour, width=round(width * OVERSAMPLING))

    def write(self, x: float, y: float, text: str, colour: tuple[int, int, int], anchor: str, size: int = 13) -> None:
        """At pixels of the finished sheet."""
        font = ImageFont.load_default(size=size * OVERSAMPLING)
        self._pen.text((x * OVERSAMPLING, y * OVERSAMPLING), text, font=font, fill=colour, anchor=anchor)

    def draw_scales(self, title: str) -> None:
        left, top, _, bottom = self.box
        for value in self.up:
            self.line([(0, value), (self.across[-1], value)], _GRID, 1)
            self.write(left - 8, self.place(0, value)[1] / OVERSAMPLING, f"{value:g}", _GREY, "rm")
        for minute in self.across:
            self.write(self.place(minute, 0)[0] / OVERSAMPLING, bottom + 8, f"{minute:g}", _GREY, "mt")
        self.write(left, top - 22, title, _INK, "lm", size=16)

    def draw_names(self, names: Sequence[str]) -> None:
        right, top = self.box[2], self.box[1]
        for name, colour in reversed(list(zip(names, _COLOURS, strict=False))):
            self.write(right, top - 22, name, colour, "rm")
            right -= 8 * len(name) + 12


def draw(rows: Sequence[Row], restarts: Sequence[float], path: Path) -> None:
    """Writes a PNG. `restarts`: minutes at which a daemon began, drawn as upright lines."""
    height = -(-len(PANELS) // COLUMNS) * PANEL_HEIGHT
    sheet = Image.new("RGB", (WIDTH * OVERSAMPLING, height * OVERSAMPLING), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, panel in enumerate(PANELS):
        curves = [points(read, rows) for _, read in panel.curves]
        values = [value for pieces in curves for piece in pieces for _, value in piece]
        frame = _Frame(pen, number, max((row.time_s / 60 for row in rows), default=0.0), values)
        for minute in restarts:
            frame.line([(minute, 0), (minute, frame.up[-1])], _RESTART, 1)
        frame.draw_scales(panel.title)
        for pieces, colour in zip(curves, _COLOURS, strict=False):
            for piece in pieces:
                frame.line(piece, colour, 1.5)
        if len(panel.curves) > 1:
            frame.draw_names([name for name, _ in panel.curves])
    sheet.resize((WIDTH, height), Image.Resampling.LANCZOS).save(path, format="PNG")
