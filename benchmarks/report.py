"""The page of a benchmark: text, tables of measured series, and bounds that hold or are missed.

    python benchmarks/report.py results/NAME.json

writes the page of those figures anew, beside them. The JSON file has every measured value, a round an entry; the page
shows their medians.
"""

from __future__ import annotations

import statistics
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import msgspec

RESULTS: Final = Path(__file__).resolve().parent / "results"
LINE_WIDTH: Final = 118

# What a table shows of a series: one column each, but for "each", which takes a column a round.
Statistic = Literal["median", "each", "worst", "lower quarter", "upper quarter", "nine tenths"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and on what the figures were taken."""

    commit: str
    date: str
    cores: int
    python: str


@dataclass(frozen=True, slots=True)
class Series:
    """One figure, measured once a round. `form` is the format of a value, `shown` the columns that it fills."""

    values: tuple[float, ...]
    form: str = ",.0f"
    shown: tuple[Statistic, ...] = ("median",)

    def format_cells(self) -> Iterator[str]:
        """The cells of the columns, a median in bold where it stands beside others."""
        for statistic in self.shown:
            if statistic == "each":
                yield from (format(value, self.form) for value in self.values)
                continue
            cell = format(self._compute(statistic), self.form)
            yield f"**{cell}**" if statistic == "median" and len(self.shown) > 1 else cell

    def _compute(self, statistic: Statistic) -> float:
        ordered = sorted(self.values)
        quarter = len(ordered) // 4
        tenth = len(ordered) * 9 // 10
        places = {"worst": -1, "lower quarter": quarter, "upper quarter": -1 - quarter, "nine tenths": tenth}
        return statistics.median(ordered) if statistic == "median" else ordered[places[statistic]]


Row = tuple[str | Series, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page; a cell is text, or a series, which fills a column for each statistic shown."""

    heads: tuple[str, ...]
    rows: tuple[Row, ...]

    def render(self) -> str:
        """The table as Markdown, its first column to the left, figures to the right."""
        lines = [format_row(self.heads), f"|---|{'--:|' * (len(self.heads) - 1)}"]
        for row in self.rows:
            cells = [cell for part in row for cell in ([part] if isinstance(part, str) else part.format_cells())]
            lines.append(format_row(cells))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Bound:
    """What was promised of a figure: at least or at most `limit`, by its median."""

    what: str
    value: float
    side: Literal["at least", "at most"]
    limit: float
    form: str = ".2f"

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.side == "at least" else self.value <= self.limit

    def render(self) -> str:
        """The promise, what was measured, and whether it holds."""
        verdict = "held" if self.holds else "missed"
        promise = f"{self.side} {self.limit:{self.form}} is promised"
        return f"{self.what}: {self.value:{self.form}}, {promise}: **{verdict}**."


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: its heading, if any, its text, its table, and what was promised of the figures."""

    text: str
    table: Table | None = None
    title: str = ""
    bounds: tuple[Bound, ...] = ()

    def render(self) -> Iterator[str]:
        """Its blocks, which blank lines separate."""
        if self.title:
            yield f"## {self.title}"
        if self.text:
            yield fill(self.text)
        if self.table is not None:
            yield self.table.render()
        if self.bounds:
            yield "\n".join(f"- {bound.render()}" for bound in self.bounds)


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run of a benchmark found, which `command` repeats."""

    title: str
    command: str
    machine: Machine
    text: str
    sections: tuple[Section, ...]

    @property
    def holds(self) -> bool:
        return all(bound.holds for section in self.sections for bound in section.bounds)

    def find_table(self, title: str) -> Table:
        """The table below a heading. Raises LookupError when there is none."""
        for section in self.sections:
            if section.title == title and section.table is not None:
                return section.table
        raise LookupError(f"{self.title}: there is no table below {title!r}")

    def render(self) -> str:
        """The page, as Markdown."""
        where = self.machine
        source = f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}."
        head = fill(f"{source} Written by `{self.command}`. {self.text}")
        blocks = [f"# {self.title}", head, *(block for section in self.sections for block in section.render())]
        return "\n\n".join(blocks) + "\n"

    def save(self, results: Path) -> Path:
        """Writes the figures as JSON, and the page beside them, whose path it returns."""
        results.parent.mkdir(parents=True, exist_ok=True)
        sections = b",\n".join(map(msgspec.json.encode, self.sections))  # a line each, so that a difference is short
        head = msgspec.json.encode(replace(self, sections=()))
        results.write_bytes(head.replace(b'"sections":[]', b'"sections":[\n' + sections + b"\n]") + b"\n")
        return write_page(self, results)


def load_report(results: Path) -> Report:
    """Reads what `Report.save` wrote."""
    return msgspec.json.decode(results.read_bytes(), type=Report)


def write_page(report: Report, results: Path) -> Path:
    """Writes the page beside the figures."""
    page = results.with_suffix(".md")
    page.write_text(report.render())
    return page


def finish(report: Report, results: Path) -> NoReturn:
    """Ends a benchmark: saves and prints its report; exit status 1 when a bound is missed."""
    report.save(results)
    print(report.render())
    sys.exit(0 if report.holds else 1)


def tabulate_rounds(rows: Sequence[tuple[str, Sequence[float], str]]) -> Table:
    """A table of (name, value a round, format): the median, then each round."""
    rounds = max(len(values) for _, values, _ in rows)
    heads = ("", "median", *(f"round {number}" for number in range(1, rounds + 1)))
    return Table(heads, tuple((name, Series(tuple(values), form, ("median", "each"))) for name, values, form in rows))


def fill(text: str) -> str:
    """A paragraph in lines of the page's width."""
    return textwrap.fill(text, LINE_WIDTH, break_long_words=False, break_on_hyphens=False)


def format_json(value: Any) -> str:
    """JSON of built-in values: what holds objects has a line an entry, all else is one line; a difference is short."""
    if not _holds_objects(value):
        return msgspec.json.encode(value).decode()
    if isinstance(value, dict):
        entries = (f"{format_json(name)}: {format_json(part)}" for name, part in value.items())
        return "{\n" + ",\n".join(entries) + "\n}"
    return "[\n" + ",\n".join(map(format_json, value)) + "\n]"


def _holds_objects(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(part, dict) or _holds_objects(part) for part in parts)


def format_row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    for name in sys.argv[1:] or sys.exit("usage: python benchmarks/report.py RESULTS.json ..."):
        print(write_page(load_report(Path(name)), Path(name)))


if __name__ == "__main__":
    main()
