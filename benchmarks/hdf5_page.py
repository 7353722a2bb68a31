"""What hdf5.py found, as values and as a page.

    python benchmarks/hdf5_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, median_head, median_row
from report import Machine

LEAST: Final = 3.0  # times the generator, on the file as scripts write it


@dataclass(frozen=True, slots=True)
class File:
    """One file: how it was written, and samples a second of both, an entry a round."""

    name: str
    samples: int
    chunk: int  # images of a chunk, as PyTables chose
    generator: tuple[float, ...]
    streamd: tuple[float, ...]

    @property
    def times(self) -> tuple[float, ...]:
        """Streamd's rate by the generator's, in each round."""
        return tuple(ours / theirs for ours, theirs in zip(self.streamd, self.generator, strict=True))


@dataclass(frozen=True, slots=True)
class Hdf5:
    """All that one run of hdf5.py found; the first of the `files` is the one as scripts write it."""

    machine: Machine
    pytables: str
    files: tuple[File, ...]

    def holds(self) -> bool:
        return statistics.median(self.files[0].times) >= LEAST


def render(found: Hdf5) -> str:
    """The page: a table a file."""
    where = found.machine
    lines = [
        "# HDF5: the files of PyTables scripts",
        "",
        f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}, {found.pytables}.",
        "Rounds are interleaved: compare along a column. Written by `python benchmarks/hdf5.py`.",
        "",
        "Images of 128x128x3, appended one at a time to an EArray of uint8 without further settings. One trainer",
        "takes batches of 32, samples/s: from the generator of such scripts, which reads 100 batches at a time,",
        "shuffles them and cuts them up, and from streamd with its defaults, on the same file.",
        "",
    ]
    for file in found.files:
        lines += [
            f"{file.name}: {file.samples:,} images, of which PyTables puts {file.chunk} into a chunk:",
            "",
            *median_head(len(file.generator)),
            median_row("the generator", file.generator, ",.0f"),
            median_row("streamd", file.streamd, ",.0f"),
            median_row("times", file.times, ".2f"),
            "",
        ]
    verdict = "held" if found.holds() else "missed"
    lines += [f"It is to be {LEAST:g} times the generator on the first file: **{verdict}**.", ""]
    return "\n".join(lines)


PAGE: Final = Page(Hdf5, render, by="hdf5.py", results=RESULTS / "hdf5.json")


if __name__ == "__main__":
    PAGE.rewrite()
