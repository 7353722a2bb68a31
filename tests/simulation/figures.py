"""What many runs came to: added up, told at a terminal, and written as a page."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scenario import FAULTS, HOSTILE
from simulator import Outcome

_TOLD: Final = 20  # failures that are named; the rest is counted
_ROOT: Final = Path(__file__).parents[2]

_HEAD: Final = """\
# The simulator

A run is a seed: it decides the data, the machine, who trains how, and what goes wrong when. The scheduler and the
trainers' sessions, handoffs, tallies and tokens are the real ones; around them everything is simulated on one clock by
one dice, without threads, sockets or files, so that the same seed gives the same run, on every machine.

    scripts/bench simulate --epochs 1000000            # as many processes as cores
    scripts/bench simulate --seed 7                    # one run, told event by event

A run that broke a promise is named below by its seed, and replayed by `tests/simulation/test_simulation_slice.py` once
what broke it is mended. Of the 24 of the run at commit c30a9d0, the 20 that it names came from mistakes of the
simulator itself, which that test tells.

A run has 1 to 3 epochs of 5 to 50 batches; 1 to 4 trainers, all alike, one of them live perhaps, or ranks of one job
(some of them 4 → 3 → 4 by tokens); memory for three batches up to ample; and one to three faults an epoch. An ordinary
network delays frames, cuts connections and parts; a hostile one also loses, doubles, repeats and overtakes frames
within a connection, and cuts without anybody's hearing of it, which no socket does.

Whatever happens, each loop takes each of its steps once and in order, relative to the checkpoint that it began with;
all ranks together take the epoch; every receipt is ok; what is held, also by a forked child, does not change; memory
stays within its bound, no worker idles, and once the faults are over everybody ends within seconds.

<!-- Written by scripts/bench simulate --report from the figures of one command. -->
"""


@dataclass(slots=True)
class Figures:
    """Sums over runs, and the runs that broke a promise."""

    runs: int = 0
    epochs: int = 0
    batches: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)  # seed, the promise

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.epochs += outcome.epochs
        self.batches += outcome.batches
        self.virtual_s += outcome.virtual_s
        self.counts = Counter(self.counts) + outcome.counts
        self.checked = Counter(self.checked) + outcome.checked
        if outcome.broken:
            self.failures.append((outcome.seed, outcome.broken))

    def merge(self, other: Figures) -> None:
        self.runs += other.runs
        self.epochs += other.epochs
        self.batches += other.batches
        self.virtual_s += other.virtual_s
        self.counts = Counter(self.counts) + Counter(other.counts)
        self.checked = Counter(self.checked) + Counter(other.checked)
        self.failures += other.failures

    # --- telling

    def sums(self) -> str:
        days = f"{self.virtual_s / 86400:,.1f} days of simulated time"
        return f"{self.runs:,} runs, {self.epochs:,} epochs, {self.batches:,} batches, {days}"

    def line(self) -> str:
        """Where it stands."""
        rate = self.epochs / self.wall_s if self.wall_s else 0.0
        return f"{self.epochs:,} epochs, {rate:,.0f} a second, {len(self.failures)} failures"

    def text(self) -> str:
        """All figures, for a terminal."""
        lines = [
            f"{self.sums()}, in {self.wall_s:,.0f} s",
            "",
            "what went wrong:",
            *(f"{number:12,}  {what}" for what, number in self.faults()),
            "",
            "and what came of it:",
            *(f"{number:12,}  {what}" for what, number in self.consequences()),
            "",
            "rules and how often each was checked:",
            *(f"{number:12,}  {what}" for what, number in sorted(self.checked.items())),
            "",
            *(
                f"BROKEN by seed {seed}: {broken}\n    scripts/bench simulate --seed {seed}"
                for seed, broken in self.told()
            ),
            f"{len(self.failures)} runs broke a promise" if self.failures else "every promise was kept",
        ]
        return "\n".join(lines) + "\n"

    def faults(self) -> list[tuple[str, int]]:
        return [(kind, self.counts.get(kind, 0)) for kind in (*FAULTS, *HOSTILE)]

    def consequences(self) -> list[tuple[str, int]]:
        kinds = {*FAULTS, *HOSTILE}
        return sorted((what, number) for what, number in self.counts.items() if what not in kinds)

    def told(self) -> list[tuple[int, str]]:
        return sorted(self.failures)[:_TOLD]


def stopped_early(figures: Figures, wanted_epochs: int, processes: int) -> str:
    """Why there are fewer epochs than were wanted, and how long those would have taken; empty when there are not."""
    if figures.epochs >= wanted_epochs or not figures.epochs:
        return ""
    minutes = figures.wall_s / figures.epochs * wanted_epochs / 60
    return (
        f"The command's time was up before its {wanted_epochs:,} epochs were done. At the rate of this run, they take\n"
        f"{minutes:,.0f} minutes in {processes} processes, or {minutes * processes:,.0f} minutes of one core.\n"
    )


def write_page(path: Path, figures: Figures, wanted_epochs: int, processes: int) -> None:
    """The figures as Markdown."""
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "streamd", "tests") else "")
    date = datetime.now(UTC).date().isoformat()
    kept = f"{len(figures.failures)} runs broke a promise." if figures.failures else "No promise was broken."
    parts = [
        _HEAD,
        f"{date}, commit {commit}: **{figures.sums()}** in {figures.wall_s:,.0f} s. **{kept}**\n",
        *filter(None, [stopped_early(figures, wanted_epochs, processes)]),
        *(f"- seed {seed}: {broken} (`scripts/bench simulate --seed {seed}`)\n" for seed, broken in figures.told()),
        _table("What went wrong", figures.faults()),
        _table("What came of it", figures.consequences()),
        _table("Rule, and how often it was checked", sorted(figures.checked.items())),
    ]
    path.write_text("\n".join(parts), encoding="utf-8")


def _table(title: str, rows: list[tuple[str, int]]) -> str:
    return "\n".join([f"| {title} | |", "|---|---:|", *(f"| {what} | {number:,} |" for what, number in rows), ""])


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S607 - git is looked for as by whoever runs it
