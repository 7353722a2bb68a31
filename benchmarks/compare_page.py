"""The comparison as a page: what was to be reached, the charts, the tables, each loader's settings, how to read it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import compare_peers as peers
import numpy as np
from compare_results import TARGETS, Comparison, Target, figures
from matplotlib.figure import Figure
from report import RESULTS, Series, Table, format_row, load_report

from streamd.core.text import format_count

_NONE: Final = "-"

_READING: Final = """\
## How to read it

- Rates are samples a second of each trainer, medians over rounds. Every round takes every cell once, each round in
  another order, and every ratio is one within a round: what else a machine does falls on all alike. Compare within
  this page, never with another run.
- **One consumer for all**, `benchmarks/peers/contest.py`: batches of 32 x 128x128x3 uint8, of which it reads one byte
  of each 4,096, as much as a framework that maps or uploads the memory itself; "with a copy" makes one copy into
  memory of its own instead.
- Several trainers begin together, and are counted from {settle_s:g} s after that, for {seconds:g} s. What is shared was
  started before them.
- **The limit** is a frozen file that imports no loader: as many processes as cores read and decode with libjpeg-turbo
  and do nothing else, and for decoded data one core copies batches.
- **Verified**: each loader's first epoch was taken once before, sample by sample: every id once, and every image's
  mean colour that of the sample which the id names, within a few grey levels, since ways to decode and resize differ.
- "First batch" runs from a loader's own beginning, its imports done, to its first batch.
- All files lie in the page cache. Each loader was given as many workers as there are cores.
"""


def render(found: Comparison, charts: Sequence[tuple[str, str]]) -> str:
    """The whole page. `charts` are files beside it, with what they show."""
    parts = [
        _head(found),
        _targets(found),
        *(f"![{what}]({name})\n" for name, what in charts),
        _files_table(found),
        _together_table(found, "s", "## Several trainers at once, 128x128"),
        _decoded_table(found),
        _together_table(found, "decoded", "## Several trainers at once, decoded"),
        _settings_table(found),
        _failures(found),
        _READING.format(settle_s=found.terms.settle_s, seconds=found.terms.seconds),
    ]
    return "\n".join(part for part in parts if part)


def _head(found: Comparison) -> str:
    where, terms = found.machine, found.terms
    return (
        "# Beside other loaders\n\n"
        "Written by `python benchmarks/compare.py`, from `benchmarks/results/compare.json`; do not edit.\n"
        f"{where.date}, commit {where.commit}, {terms.cores} cores of {terms.processor}, Python {where.python}, "
        f"{format_count(len(found.rounds), 'round')}.\n\n"
        + "\n".join(f"- `{name}`: {what}" for name, what in peers.SETS.items())
        + "\n"
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return Table(tuple(titles), tuple(map(tuple, rows))).render() + "\n"


def rate(value: float | None) -> str:
    """A rate with three figures, which is more than a shared machine repeats."""
    if value is None:
        return _NONE
    digits = len(str(int(value)))
    return f"{round(value, 3 - digits):,.{max(0, 3 - digits)}f}"


def ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def _reached(target: Target, value: float) -> str:
    met = value <= target.wanted if target.most else value >= target.wanted
    if met:
        return "yes"
    return f"no, by {abs(value / target.wanted - 1):.0%}"


def _targets(found: Comparison) -> str:
    known = figures(found)
    rows = [
        (
            target.what,
            f"{'≤' if target.most else '≥'} {target.wanted:.2f}",
            ratio(known.get(target.name)),
            _reached(target, known[target.name]) if target.name in known else "not measured",
        )
        for target in TARGETS
    ]
    return "## What was to be reached\n\n" + table(("", "wanted", "measured", "reached"), rows)


def _measured(found: Comparison, of: str, trainers: int = 1) -> list[peers.Peer]:
    """The loaders that have a figure, the fastest first."""
    rates = {peer.name: found.each(f"{of}/{peer.name}/{trainers}") or 0.0 for peer in peers.PEERS}
    return sorted((peer for peer in peers.PEERS if rates[peer.name]), key=lambda peer: -rates[peer.name])


def _alone(found: Comparison, of: str, name: str, base: str) -> list[str]:
    key = f"{of}/{name}/1"
    return [rate(found.each(key)), ratio(found.ratio(key, base)), rate(found.copied(key))]


def _files_table(found: Comparison) -> str:
    both = {peer.name: peer for of in peers.FILES for peer in _measured(found, of)}
    if not both:
        return ""
    more = ("of limit", "with a copy")
    titles = ("one trainer", "128x128", *more, "500x375", *more, "first batch, s")
    limits = [cell for of in peers.FILES for cell in (rate(found.each(f"{of}/limit/1")), "1.00", _NONE)]
    rows = [
        (
            peer.title,
            *(cell for of in peers.FILES for cell in _alone(found, of, peer.name, f"{of}/limit/1")),
            ratio(found.first_batch_s(f"s/{peer.name}/1")),
        )
        for peer in both.values()
    ]
    return "## From JPEGs, one trainer\n\n" + table(titles, [(peers.LIMITS["s"], *limits, _NONE), *rows])


def _decoded_table(found: Comparison) -> str:
    measured = _measured(found, "decoded")
    if not measured:
        return ""
    rows = [(peer.title, *_alone(found, "decoded", peer.name, "decoded/memmap/1")) for peer in measured]
    limit = (peers.LIMITS["decoded"], *_alone(found, "decoded", peers.LIMIT, "decoded/memmap/1"))
    return "## From decoded data, one trainer\n\n" + table(
        ("one trainer", "samples/s", "of a memmap", "with a copy"), [limit, *rows]
    )


def _together_table(found: Comparison, of: str, title: str) -> str:
    """Each / together, by number of trainers; with one, the two are the same."""
    trainers = {peer.name: found.list_trainers(of, peer.name) for peer in peers.PEERS}
    counts = sorted({count for several in trainers.values() for count in several})
    if not counts or counts[-1] == 1:
        return ""

    def shown(name: str, count: int) -> str:
        key = f"{of}/{name}/{count}"
        each, together = found.each(key), found.together(key)
        return rate(each) if count == 1 or each is None else f"{rate(each)} / {rate(together)}"

    rows = [
        (peer.title, *(shown(peer.name, count) for count in counts))
        for peer in peers.PEERS
        if max(trainers[peer.name], default=0) > 1
    ]
    return f"{title}\n\nSamples a second, each / all together.\n\n" + table(("trainers", *map(str, counts)), rows)


def _settings_table(found: Comparison) -> str:
    rows = []
    for peer in peers.PEERS:
        keys = [key for key in found.settings if key.partition("/")[2] == peer.name]
        for said in dict.fromkeys(found.settings[key] for key in keys):
            where = [key for key in keys if found.settings[key] == said]
            rows.append(
                (peer.title, said.library, said.chosen, said.source, "; ".join(_seen(found, key) for key in where))
            )
    if not rows:
        return ""
    titles = "| loader | library | settings | after | verified |\n|---|---|---|---|---|\n"
    return "## Each loader's settings\n\n" + titles + "\n".join(map(format_row, rows)) + "\n"


def _seen(found: Comparison, key: str) -> str:
    """How one loader's epoch of one set compared."""
    seen, inexact = found.verified[key], found.settings[key].inexact
    how = "ids" if seen.ids else "colours alone"
    exact = f"{seen.samples:,} once each" if not seen.missed and not seen.repeated else inexact or "NOT THE SAME"
    return f"{key.partition('/')[0]}: {exact}, by {how}, colours within {seen.worst:.1f}"


def _failures(found: Comparison) -> str:
    if not found.failures:
        return ""
    lines = "\n".join(f"- `{key}`: {what}" for key, what in sorted(found.failures.items()))
    return f"## What could not be measured\n\n{lines}\n"


Point = tuple[float, float]

GROWTH: Final = RESULTS / "growth.json"
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
        counts = found.list_trainers("s", peer.name)
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
