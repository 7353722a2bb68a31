"""What a soak found, as a page and as a picture of its curves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from report import Machine
from soak_chart import draw
from soak_rows import Row, Totals
from soak_verdict import LEAST_LIFE_S, WARM_S, Fit


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


def _fit_row(fit: Fit) -> str:
    verdict = "flat" if fit.flat else "**GROWS**"
    return (
        f"| {fit.curve} | {fit.over} | {fit.minutes:.0f} | {fit.median:.1f} | {fit.growth:+.2f} | {fit.allowed:.1f} |"
        f" {verdict} |"
    )


def _flatness(fits: Sequence[Fit]) -> list[str]:
    if not fits:
        return ["Too short to say whether anything grows."]
    return [
        "Growth is the median of the slopes between all pairs of rows (Theil-Sen), times the span. A curve is flat",
        "when it grows by no more than is allowed: 4 MiB, 4 descriptors, 1 thread, or 5 % of its median. The first",
        f"{WARM_S:g} s of each daemon do not count. One that served for more than {LEAST_LIFE_S / 60:g} minutes is",
        "judged by itself, too.",
        "",
        "| curve | over | minutes | median | growth | allowed | |",
        "|---|---|--:|--:|--:|--:|---|",
        *(_fit_row(each) for each in fits),
    ]


def render(outcome: Outcome) -> str:
    """The page."""
    where, totals, met = outcome.machine, outcome.totals, outcome.outstanding
    found = outcome.problems or ("none",)
    return "\n".join(
        [
            f"# A soak of {outcome.minutes:g} minutes",
            "",
            f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Written by",
            f"`scripts/bench soak --minutes {outcome.minutes:g} --seed {outcome.seed}`.",
            "",
            f"{totals.batches:,} batches in {totals.epochs:,} epochs to {totals.lives:,} processes of trainers, of",
            f"which {totals.again:,} again, after a trainer had been killed. The oracle has judged every one: samples,",
            f"labels, pixels, order, receipts. All was **{'as promised' if outcome.ok else 'NOT AS PROMISED'}**.",
            "",
            "## What was wrong",
            "",
            *(f"- {each}" for each in found),
            "",
            "## What was done",
            "",
            "| fault | times |",
            "|---|--:|",
            *(f"| {name} | {count} |" for name, count in sorted(outcome.faults.items())),
            "",
            f"When a daemon was killed, trainers had {', '.join(map(str, met)) or 'no'} batches on loan or on",
            "their way.",
            "",
            "## What grew",
            "",
            *_flatness(outcome.fits),
            "",
            "![curves](soak.png)",
            "",
        ]
    )


def restarts(rows: Sequence[Row]) -> list[float]:
    """Minutes at which a new daemon was first seen."""
    return [row.time_s / 60 for before, row in itertools.pairwise(rows) if row.life != before.life]


def save(outcome: Outcome, rows: Sequence[Row], folder: Path) -> None:
    """Writes soak.md and soak.png; soak.csv is there already."""
    (folder / "soak.md").write_text(render(outcome))
    draw(rows, restarts(rows), folder / "soak.png")
