"""docs/evidence/mutants.md: which check finds which fault, after how many runs and seconds: `scripts/docs mutants`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from hunt import CHECKS, Find
from line_faults import FAULTS, Fault
from mutate import ROOT, WHOLE, copied, hunted, places_of

PAGE: Final = ROOT / "docs/evidence/mutants.md"
_MOST_CHARS: Final = 100
_HEAD: Final = """\
# Faults that the checks find

A check that cannot fail proves nothing. So each of these one-line faults is put into a copy of the package, and the
checks of the core look for what is wrong, knowing nothing of the line: the simulator (whole daemons and trainers in
virtual time), random runs of the window, and two state machines of Hypothesis, of the window and of a client's session.
In all but the last the window's own ledger (`streamd/scheduler/invariants.py`) speaks up; what it says begins with
its rule.

A cell has the runs until the first find and the processor time they took, start-up left out; "none" where
{runs} runs found nothing.
In the unchanged package no check found anything in as many.

<!-- Written by scripts/docs mutants from tests/mutants, which `scripts/test --all` runs. -->

| Fault | In | {checks} | What the first of them says |
|---|---|{rules}---|
"""


def look(fault: Fault | None) -> list[Find]:
    with tempfile.TemporaryDirectory() as place:
        return hunted(copied(Path(place), fault), replace(WHOLE, first=False))


def page(faults: Sequence[Fault], finds: Sequence[Sequence[Find]]) -> str:
    runs = ", ".join(f"{getattr(WHOLE, check)} ({check})" for check in CHECKS)
    head = _HEAD.format(runs=runs, checks=" | ".join(CHECKS), rules="---|" * len(CHECKS))
    return head + "".join(f"{_row(*pair)}\n" for pair in zip(faults, finds, strict=True))


def _row(fault: Fault, finds: Sequence[Find]) -> str:
    cells = [f"{find.runs} in {find.spent_s:.1f} s" if find.what else "none" for find in finds]
    first = next((find.what for find in finds if find.what), "")
    return f"| {fault.name} | `{fault.file}` | {' | '.join(cells)} | {_short(first)} |"


def _short(what: str) -> str:
    text = what.removeprefix("BrokenRuleError: ").replace("|", r"\|").replace("`", "'")
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS].rstrip()} …"


def main() -> None:
    moved = [fault.name for fault in FAULTS if len(places_of(fault)) != 1]
    if moved:
        sys.exit(f"their lines do not stand once in the source any more: {moved}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each only waits for a process of its own
        control, *finds = pool.map(look, [None, *FAULTS])
    unfound = [fault.name for fault, found in zip(FAULTS, finds, strict=True) if not any(find.what for find in found)]
    if unfound or any(find.what for find in control):
        sys.exit(f"not found: {unfound}; found where nothing is: {[find for find in control if find.what]}")
    PAGE.write_text(page(FAULTS, finds), encoding="utf-8")


if __name__ == "__main__":
    main()
