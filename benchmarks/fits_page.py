"""What fits.py found, as values and as a page.

    python benchmarks/fits_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, median_head, median_row
from report import Machine

REACHED: Final = 0.8  # of what the slower of probe and a fit on free data takes


@dataclass(frozen=True, slots=True)
class Fit:
    """One backend in one round, in samples a second."""

    backend: str
    round: int
    constant: float  # on one batch that is there
    stream: float


@dataclass(frozen=True, slots=True)
class Fits:
    """All that one run of fits.py found; `probes` has an entry a round."""

    machine: Machine
    probes: tuple[float, ...]
    fits: tuple[Fit, ...]

    def of(self, backend: str) -> list[Fit]:
        return [fit for fit in self.fits if fit.backend == backend]

    def ratios(self, backend: str) -> list[float]:
        """Of what `fit` could take, an entry a round."""
        return [fit.stream / min(self.probes[fit.round], fit.constant) for fit in self.of(backend)]

    def holds(self, backend: str) -> bool:
        """Whether `fit` takes enough of it."""
        return statistics.median(self.ratios(backend)) >= REACHED


def render(found: Fits) -> str:
    """The page: the probe, then three rows a backend."""
    where = found.machine
    backends = list(dict.fromkeys(fit.backend for fit in found.fits))
    missed = [name for name in backends if not found.holds(name)]
    lines = [
        "# `fit` on a stream",
        "",
        f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Rounds are interleaved:",
        "compare along a column. Written by `python benchmarks/fits.py`.",
        "",
        "`Model.fit` of a nearly empty model, batches of 32 x 128x128x3, from decoded images, samples/s. *Constant* is",
        "the same `fit` on one batch that lies ready for the backend; *of it* is the stream's rate as a part of the",
        "lower one of *constant* and `streamd probe`.",
        "",
        *median_head(len(found.probes)),
        median_row("`streamd probe`", found.probes, ",.0f"),
    ]
    for name in backends:
        fits = found.of(name)
        lines += [
            median_row(f"{name}: constant", [fit.constant for fit in fits], ",.0f"),
            median_row(f"{name}: stream", [fit.stream for fit in fits], ",.0f"),
            median_row(f"{name}: of it", found.ratios(name), ".2f"),
        ]
    verdict = f"missed by {', '.join(missed)}" if missed else "held"
    return "\n".join([*lines, "", f"It is to be {REACHED} at least: **{verdict}**.", ""])


PAGE: Final = Page(Fits, render, by="fits.py", results=RESULTS / "fits.json")


if __name__ == "__main__":
    PAGE.rewrite()
