"""The charts of the comparison, drawn with Pillow: bars against the limit, rates against trainers, workers, samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import compare_peers as peers
from compare_results import DEFAULT_RESULTS, Comparison
from PIL import Image, ImageDraw, ImageFont
from report import Series, load_report

from streamd.cli.demo.judge import compute_axis_ticks

Point = tuple[float, float]
Colour = tuple[int, int, int]

GROWTH: Final = DEFAULT_RESULTS.with_name("growth.json")
GROWTH_TITLE: Final = "Rate against the size of the set"
WIDTH: Final = 1000
LINES_HEIGHT: Final = 420
ROW_HEIGHT: Final = 34
OVERSAMPLING: Final = 2  # drawn larger and reduced, which smooths the lines

_PAPER: Final = (255, 255, 255)
_INK: Final = (34, 40, 49)
_GREY: Final = (112, 120, 131)
_GRID: Final = (228, 231, 235)
_OURS: Final = (226, 88, 34)
_OTHERS: Final = ((44, 108, 188), (38, 160, 86), (140, 86, 176), (96, 125, 139), (176, 137, 40), (0, 150, 160))
_LEFT: Final = 90.0
_TOP: Final = 64.0
_NAMES: Final = 280.0  # room for names beside the lines' ends
_BAR_NAMES: Final = 370.0  # and before bars
_FOOT: Final = 56.0
_NAME_STEP: Final = 19.0  # names closer than this would lie on each other


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with its name; `ours` stands out."""

    name: str
    points: tuple[Point, ...]
    ours: bool


def plain(title: str) -> str:
    """A title of compare_peers without its Markdown."""
    return title.replace("*", "").replace("`", "")


class Sheet:
    """Paper in finished pixels."""

    def __init__(self, height: float, title: str) -> None:
        self._size = (WIDTH, round(height))
        self._image = Image.new("RGB", (WIDTH * OVERSAMPLING, round(height) * OVERSAMPLING), _PAPER)
        self._pen = ImageDraw.Draw(self._image)
        self.write((24, 28), title, _INK, "lm", 19)

    def line(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        self._pen.line([_scaled(point) for point in points], colour, round(width * OVERSAMPLING), joint="curve")

    def box(self, left_top: Point, right_bottom: Point, colour: Colour) -> None:
        self._pen.rectangle((*_scaled(left_top), *_scaled(right_bottom)), fill=colour)

    def dot(self, at: Point, colour: Colour) -> None:
        (x, y), radius = _scaled(at), 4 * OVERSAMPLING
        self._pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def write(self, at: Point, text: str, colour: Colour, anchor: str, size: int = 14) -> None:
        font = ImageFont.load_default(size=size * OVERSAMPLING)
        self._pen.text(_scaled(at), text, font=font, fill=colour, anchor=anchor)

    def save(self, path: Path) -> None:
        self._image.resize(self._size, Image.Resampling.LANCZOS).quantize(128).save(path, format="PNG", optimize=True)


def _scaled(point: Point) -> Point:
    return point[0] * OVERSAMPLING, point[1] * OVERSAMPLING


def draw_bars(path: Path, title: str, bars: Mapping[str, Sequence[float | None]], groups: Sequence[str]) -> None:
    """Writes a PNG: for each name one bar a group, against the limit, which is 1 and drawn as a line."""
    height = _TOP + ROW_HEIGHT * len(bars) + _FOOT
    marks = compute_axis_ticks(0.0, max(1.0, *(value or 0.0 for values in bars.values() for value in values)))
    sheet, left, unit = Sheet(height, title), _BAR_NAMES, (WIDTH - 70 - _BAR_NAMES) / marks[-1]
    foot = height - _FOOT + 8
    for mark in marks:
        x = left + unit * mark
        sheet.line([(x, _TOP), (x, foot)], _GREY if mark == 1.0 else _GRID, 1)
        sheet.write((x, foot + 8), f"{mark:g}", _GREY, "mt")
    for number, (name, values) in enumerate(bars.items()):
        y = _TOP + ROW_HEIGHT * number
        ours = name.startswith("streamd")
        sheet.write((left - 12, y + ROW_HEIGHT / 2), name, _INK, "rm")
        thick = (ROW_HEIGHT - 8) / len(groups)
        for place, value in enumerate(values):
            if value is None:  # not measured, which is not nothing
                continue
            top, end = y + 4 + thick * place, left + unit * value
            sheet.box((left, top), (end, top + thick - 1.5), _shade(_OURS if ours else _OTHERS[0], place))
            sheet.write((end + 6, top + thick / 2), f"{value:.2f}", _GREY, "lm", 11)
    for place, group in enumerate(groups):
        x = left + 230 * place
        sheet.box((x, foot + 32), (x + 12, foot + 42), _shade(_GREY, place))
        sheet.write((x + 18, foot + 37), group, _GREY, "lm", 13)
    sheet.save(path)


def _shade(colour: Colour, place: int) -> Colour:
    """The colour itself for the first of a group, a lighter one for the next."""
    red, green, blue = (round(255 - (255 - level) * 0.55**place) for level in colour)
    return red, green, blue


def draw_lines(path: Path, title: str, across: str, lines: Sequence[Line]) -> None:
    """Writes a PNG of curves, evenly spaced by the numbers across, the rates from 0 upwards, a name at each end."""
    marks = sorted({x for line in lines for x, _ in line.points})
    up = compute_axis_ticks(0.0, max(y for line in lines for _, y in line.points))
    sheet, right, foot = Sheet(LINES_HEIGHT, title), WIDTH - _NAMES, LINES_HEIGHT - _FOOT

    def place(point: Point) -> Point:
        x = _LEFT + (right - _LEFT) * (marks.index(point[0]) + 0.5) / len(marks)
        return x, foot - (foot - _TOP) * point[1] / up[-1]

    for value in up:
        y = place((marks[0], value))[1]
        sheet.line([(_LEFT, y), (right, y)], _GRID, 1)
        sheet.write((_LEFT - 10, y), f"{value:,.0f}", _GREY, "rm")
    for mark in marks:
        sheet.write((place((mark, 0))[0], foot + 10), f"{mark:,.0f}", _GREY, "mt")
    sheet.write(((_LEFT + right) / 2, foot + 32), across, _GREY, "mt")
    _draw_curves(sheet, lines, place, right)
    sheet.save(path)


def _draw_curves(sheet: Sheet, lines: Sequence[Line], place: Callable[[Point], Point], right: float) -> None:
    """Curves, the highest name first, each name as near to its curve's end as the one above leaves room for."""
    free_y = _TOP - _NAME_STEP
    others = iter(_OTHERS * len(lines))
    for line in sorted(lines, key=lambda line: -line.points[-1][1]):
        colour = _OURS if line.ours else next(others)
        places = [place(point) for point in line.points]
        if len(places) > 1:
            sheet.line(places, colour, 3 if line.ours else 2)
        for at in places:
            sheet.dot(at, colour)
        free_y = max(free_y + _NAME_STEP, places[-1][1])
        sheet.write((right + 14, free_y), line.name, colour, "lm")


def limit_bars(found: Comparison) -> dict[str, list[float | None]]:
    """Of the limit, on both sets of JPEGs, the fastest first."""
    rows: dict[str, list[float | None]] = {}
    for peer in peers.PEERS:
        ratios = [found.ratio(f"{of}/{peer.name}/1", f"{of}/limit/1") for of in peers.FILES]
        if any(ratios):
            rows[plain(peer.title)] = ratios
    return dict(sorted(rows.items(), key=lambda row: -max(ratio or 0.0 for ratio in row[1])))


def trainer_lines(found: Comparison) -> list[Line]:
    """All trainers together against their number, on 128x128."""
    lines = []
    for peer in peers.PEERS:
        keys = [(key, key.split("/")) for key in found.keys()]  # noqa: SIM118 - a method of its own, not a dict's
        counts = sorted(int(parts[2]) for _, parts in keys if parts[:2] == ["s", peer.name] and len(parts) == 3)  # noqa: PLR2004 - without workers=
        points = [(float(count), found.together(f"s/{peer.name}/{count}") or 0.0) for count in counts]
        if len(points) > 1:
            lines.append(Line(plain(peer.title), tuple(points), peer.is_streamd))
    return lines


def worker_lines(found: Comparison) -> list[Line]:
    """One trainer's rate against workers, on 128x128."""
    titles = {peer.name: plain(peer.title) for peer in peers.PEERS} | {peers.LIMIT: "the limit"}
    lines = []
    for name in peers.SWEPT:
        keys = {workers: f"s/{name}/1/workers={workers}" for workers in peers.SWEEP}
        points = tuple((float(workers), rate) for workers, key in keys.items() if (rate := found.each(key)))
        if points:
            lines.append(Line(titles[name], points, name == "streamd"))
    return lines


def size_lines(growth: Path) -> list[Line]:
    """One trainer's rate against the size of the set, as growth.py has measured it."""
    if not growth.exists():
        return []
    points = []
    for samples, rate, *_ in load_report(growth).find_table(GROWTH_TITLE).rows:
        if isinstance(samples, str) and isinstance(rate, Series):
            points.append((float(samples.replace(",", "")), statistics.median(rate.values)))
    return [Line("streamd", tuple(points), ours=True)]


def draw_all(found: Comparison, folder: Path) -> list[tuple[str, str]]:
    """Writes the charts there are figures for; returns their names and what they show."""
    drawn: list[tuple[str, str]] = []
    bars = limit_bars(found)
    if bars:
        title = "One trainer: samples a second, as a part of bare read-and-decode"
        draw_bars(folder / "benchmarks-limit.png", title, bars, ["JPEGs of 128x128", "JPEGs of 500x375"])
        drawn.append(("benchmarks-limit.png", "against the limit"))
    for name, across, title, lines in (
        ("trainers", "trainers at once", "All trainers together, 128x128: samples a second", trainer_lines(found)),
        ("workers", "workers", "One trainer, 128x128: samples a second", worker_lines(found)),
        ("samples", "samples in the set", "One trainer, 128x128: samples a second", size_lines(GROWTH)),
    ):
        if lines:
            draw_lines(folder / f"benchmarks-{name}.png", title, across, lines)
            drawn.append((f"benchmarks-{name}.png", f"against {across}"))
    return drawn
