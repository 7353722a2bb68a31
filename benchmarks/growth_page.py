"""What growth.py found, as values and as a page.

    python benchmarks/growth_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, line
from report import Machine

MOST_BYTES: Final = 100.0  # a sample, in the manifest and in the memory of any process
MOST_START_S: Final = 3.0  # from the command of a daemon that knows its samples to a trainer's first batch
LEAST_OF_SMALLEST: Final = 0.90  # of the smallest set's rate; what is missing to 1 is the drift of a machine
_MILLION: Final = 1_000_000
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Listing:
    """Making a manifest: seconds, processor seconds, the process's peak, lines of progress, the file."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    told: int
    manifest_bytes: int


@dataclass(frozen=True, slots=True)
class Start:
    """From the daemon's command, its samples being listed, to its word that it serves and to a first batch."""

    ready_s: float
    first_batch_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one process: its own, and those of the manifest's pages that it has mapped, which all share."""

    anonymous: int
    manifest: int


@dataclass(frozen=True, slots=True)
class Take:
    """Some seconds of trainers reading: samples a second of each, processor microseconds.

    Those of the daemon and of all workers together are for each sample of the stream, those of a trainer for each
    sample that it took.
    """

    rates: tuple[float, ...]
    daemon_us: float
    workers_us: float
    trainer_us: float

    @property
    def each(self) -> float:
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one size: a start, then a single trainer. Memory is of the time after that; the worst worker's."""

    start: Start
    take: Take
    daemon: Memory
    worker: Memory
    trainer: Memory


@dataclass(frozen=True, slots=True)
class Size:
    """A table of so many rows, naming the same files over and over."""

    samples: int
    listing: Listing
    turns: tuple[Turn, ...]

    def median(self, figure: Callable[[Turn], float]) -> float:
        return statistics.median(figure(turn) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Company:
    """So many trainers at once, a take a round."""

    trainers: int
    takes: tuple[Take, ...]

    def median(self, figure: Callable[[Take], float]) -> float:
        return statistics.median(figure(take) for take in self.takes)


@dataclass(frozen=True, slots=True)
class Growth:
    """All that one run of growth.py found; sizes and companies from the smallest on."""

    machine: Machine
    files: int
    sizes: tuple[Size, ...]
    companies: tuple[Company, ...]

    def bytes_a_sample(self, size: Size, own: Callable[[Turn], Memory]) -> float:
        """What a process has grown by since the smallest size, for each further sample."""
        smallest = self.sizes[0]
        more = size.median(lambda turn: own(turn).anonymous) - smallest.median(lambda turn: own(turn).anonymous)
        return more / max(1, size.samples - smallest.samples)

    def of_smallest(self, size: Size) -> float:
        """The rate against the smallest size's, by the median of the rounds' ratios."""
        pairs = zip(size.turns, self.sizes[0].turns, strict=True)
        return statistics.median(turn.take.each / first.take.each for turn, first in pairs)

    def misses(self) -> list[str]:
        """What was promised and does not hold."""
        return [miss for size in self.sizes[1:] for miss in self._misses_of(size)]

    def _misses_of(self, size: Size) -> list[str]:
        most = max(size.listing.manifest_bytes / size.samples, *(self.bytes_a_sample(size, own) for own in _OWNS))
        start_s, rate = size.median(lambda turn: turn.start.first_batch_s), self.of_smallest(size)
        found = []
        if most >= MOST_BYTES:
            found.append(f"{size.samples:,} samples take {most:.0f} bytes each, {MOST_BYTES:.0f} are allowed")
        if size.samples <= _MILLION and start_s >= MOST_START_S:
            found.append(f"{size.samples:,} samples start in {start_s:.2f} s, {MOST_START_S:g} are allowed")
        if rate < LEAST_OF_SMALLEST:
            found.append(f"{size.samples:,} samples run at {rate:.2f} of the smallest rate")
        return found


_OWNS: Final[tuple[Callable[[Turn], Memory], ...]] = (
    lambda turn: turn.daemon,
    lambda turn: turn.worker,
    lambda turn: turn.trainer,
)


def _space_row(found: Growth, size: Size) -> str:
    first = size is found.sizes[0]
    own = ["" if first else f"{max(0.0, found.bytes_a_sample(size, each)):.1f}" for each in _OWNS]
    cells = [
        f"{size.samples:,}",
        f"{size.listing.manifest_bytes / size.samples:.1f}",
        *own,
        f"{size.median(lambda turn: turn.worker.manifest) / size.samples:.1f}",
    ]
    return line(cells)


def _listing_row(size: Size) -> str:
    listing = size.listing
    cells = [
        f"{size.samples:,}",
        f"{listing.seconds:.1f}",
        f"{listing.cpu_s:.1f}",
        f"{listing.peak_bytes / _MIB:,.0f}",
        str(listing.told),
    ]
    return line(cells)


def _start_row(size: Size) -> str:
    firsts = [turn.start.first_batch_s for turn in size.turns]
    ready_s = size.median(lambda turn: turn.start.ready_s)
    return line([f"{size.samples:,}", f"{ready_s:.2f}", f"**{statistics.median(firsts):.2f}**", f"{max(firsts):.2f}"])


def _rate_row(found: Growth, size: Size) -> str:
    cells = [
        f"{size.samples:,}",
        f"{size.median(lambda turn: turn.take.each):,.0f}",
        f"**{found.of_smallest(size):.2f}**",
        f"{size.median(lambda turn: turn.take.daemon_us):.1f}",
        f"{size.median(lambda turn: turn.take.workers_us):.1f}",
        f"{size.median(lambda turn: turn.take.trainer_us):.1f}",
    ]
    return line(cells)


def _company_row(company: Company, one: Company) -> str:
    pairs = zip(company.takes, one.takes, strict=True)
    cells = [
        str(company.trainers),
        f"{company.median(lambda take: take.each):,.0f}",
        f"**{statistics.median(take.each / alone.each for take, alone in pairs):.2f}**",
        f"{company.median(lambda take: sum(take.rates)):,.0f}",
        f"{company.median(lambda take: take.daemon_us):.1f}",
        f"{company.median(lambda take: take.workers_us):.1f}",
        f"{company.median(lambda take: take.trainer_us):.1f}",
    ]
    return line(cells)


def _table(heads: Sequence[str], rows: Sequence[str]) -> list[str]:
    return [line(heads), f"|{'--:|' * len(heads)}", *rows, ""]


_CPU: Final = ("daemon, µs", "workers, µs", "trainer, µs")


def _space(found: Growth) -> list[str]:
    heads = ("samples", "manifest", "daemon", "worker", "trainer", "pages mapped")
    return [
        "## Bytes a sample",
        "",
        "In the manifest, and in the memory that each process has of its own beyond what it has with the smallest",
        f"set; below {MOST_BYTES:.0f}. The pages of the manifest that a worker has mapped are the system's own copy of",
        "the file, one for all, and go when memory is short.",
        "",
        *_table(heads, [_space_row(found, size) for size in found.sizes]),
    ]


def _starts(found: Growth) -> list[str]:
    heads = ("samples", "s", "processor s", "peak, MiB", "lines of progress")
    return [
        "## Listing",
        "",
        *_table(heads, [*map(_listing_row, found.sizes)]),
        "## Start",
        "",
        "Seconds from the command of a daemon that knows its samples to its word that it serves, and to the first",
        f"batch of a trainer that has waited for it; below {MOST_START_S:g} for a million.",
        "",
        *_table(("samples", "serves", "first batch", "worst"), [*map(_start_row, found.sizes)]),
    ]


def _rates(found: Growth) -> list[str]:
    of_sizes = ("samples", "samples/s", "of the smallest", *_CPU)
    of_trainers = ("trainers", "samples/s each", "of one", "all together", *_CPU)
    return [
        "## Rate against the size of the set",
        "",
        "One trainer, samples/s, and processor time a sample.",
        "",
        *_table(of_sizes, [_rate_row(found, size) for size in found.sizes]),
        "## Rate against trainers",
        "",
        f"All at once, {found.sizes[0].samples:,} samples. Processor time of daemon and workers is for each sample of",
        "the stream, that of a trainer for each sample that it took.",
        "",
        *_table(of_trainers, [_company_row(company, found.companies[0]) for company in found.companies]),
    ]


def render(found: Growth) -> str:
    """The page: what a sample costs on disk and in memory, starts, rates."""
    where, misses = found.machine, found.misses()
    return "\n".join(
        [
            "# Growth: larger sets, more trainers",
            "",
            f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Tables of so many rows",
            f"that name the same {found.files:,} JPEGs of 128x128 over and over; batches of 32. Written by",
            f"`python benchmarks/growth.py`. {len(found.sizes[0].turns)} interleaved rounds, medians.",
            "",
            *_space(found),
            *_starts(found),
            *_rates(found),
            f"As promised: **NO**: {'; '.join(misses)}." if misses else "As promised: **yes**.",
            "",
        ]
    )


PAGE: Final = Page(Growth, render, by="growth.py", results=RESULTS / "growth.json")


if __name__ == "__main__":
    PAGE.rewrite()
