"""The charts of the comparison: bars against the limit, rates against trainers, workers and samples."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import compare_peers as peers
import numpy as np
from compare_results import DEFAULT_RESULTS, Comparison
from matplotlib.figure import Figure
from report import Series, load_report

Point = tuple[float, float]

GROWTH: Final = DEFAULT_RESULTS.with_name("growth.json")
GROWTH_TITLE: Final = "Rate against the size of the set"
WIDTH: Final = 1000  # pixels
_DPI: Final = 100
_LINES_HEIGHT: Final = 420
_ROW_HEIGHT: Final = 34  # of bars
_HEAD_AND_FOOT: Final = 120
_OURS: Final = "#e25822"
_OTHERS: Final = ("C0", "C2", "C4", "C7", "C8", "C9", "C5")  # of matplotlib's cycle, without those like ours


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with its name; `ours` stands out."""

    name: str
    points: tuple[Point, ...]
    ours: bool


def plain(title: str) -> str:
    """A title of compare_peers without its Markdown."""
    return title.replace("*", "").replace("`", "")


def build_figure(height: float, title: str) -> tuple[Any, Any]:
    """A figure of so many pixels, and its axes."""
    figure = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI, layout="constrained")
    figure.suptitle(title, x=0.02, ha="left", fontsize=13)
    return figure, figure.add_subplot()


def draw_bars(path: Path, title: str, bars: Mapping[str, Sequence[float | None]], groups: Sequence[str]) -> None:
    """Writes a PNG: for each name one bar a group, against the limit, which is 1 and drawn as a line."""
    figure, axes = build_figure(_HEAD_AND_FOOT + _ROW_HEIGHT * len(bars), title)
    rows, thick = np.arange(len(bars)), 0.8 / len(groups)
    for place, group in enumerate(groups):
        # Not measured is not nothing: NaN draws no bar and has no label.
        values = np.array([np.nan if row[place] is None else row[place] for row in bars.values()], dtype=float)
        colours = [_OURS if name.startswith("streamd") else _OTHERS[0] for name in bars]
        drawn = axes.barh(rows + (place + 0.5) * thick - 0.4, values, thick * 0.9, color=colours, alpha=0.55**place)
        axes.bar_label(drawn, ["" if np.isnan(value) else f"{value:.2f}" for value in values], padding=4, fontsize=8)
        axes.barh(0, 0, color="grey", alpha=0.55**place, label=group)
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.set_yticks(rows, list(bars))
    axes.invert_yaxis()
    figure.legend(loc="outside lower right", ncols=len(groups), frameon=False)
    figure.savefig(path)


def draw_lines(path: Path, title: str, across: str, lines: Sequence[Line]) -> None:
    """Writes a PNG of curves, evenly spaced by the numbers across, rates from 0 upwards, the highest named first."""
    figure, axes = build_figure(_LINES_HEIGHT, title)
    marks = sorted({x for line in lines for x, _ in line.points})
    others = iter(_OTHERS * len(lines))
    for line in sorted(lines, key=lambda line: -line.points[-1][1]):
        places, rates = [marks.index(x) for x, _ in line.points], [y for _, y in line.points]
        style = {"color": _OURS, "linewidth": 2.5} if line.ours else {"color": next(others), "linewidth": 1.5}
        axes.plot(places, rates, marker="o", markersize=5, label=line.name, **style)
    axes.set_xticks(range(len(marks)), [f"{mark:,.0f}" for mark in marks])
    axes.set_xlabel(across)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path)


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
