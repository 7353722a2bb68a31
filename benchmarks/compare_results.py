"""What a comparison found, as values: rounds of cells, what was verified, and the figures that pages quote.

Ratios are taken within a round, and their median over the rounds is what counts. On a page a mark names the figure,
and the number behind it is what the measurement says:

    ... `<!-- figure compare:s.one_of_limit -->0.93` of the limit ...

`compare` is results/compare.json, `s.one_of_limit` a key of its "figures". `python benchmarks/compare.py
--write-figures` writes all of them anew, and a test holds them.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final, NamedTuple

import compare_peers as peers
import msgspec
from report import RESULTS, Machine, format_json

ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT_RESULTS: Final = RESULTS / "compare.json"
MARK: Final = re.compile(r"(?P<mark><!-- figure (?P<file>[a-z_]+):(?P<key>[\w.]+) -->)(?P<number>-?[\d,]*\.?\d*)")


class Taken(msgspec.Struct, frozen=True):
    """One cell of one round: samples a second of each trainer, without and with a copy; its first batch's seconds."""

    touch: tuple[float, ...]
    copy: tuple[float, ...] = ()
    first_batch_s: tuple[float, ...] = ()

    @property
    def each(self) -> float:
        return statistics.median(self.touch)

    @property
    def together(self) -> float:
        return sum(self.touch)


class Verified(msgspec.Struct, frozen=True):
    """How an epoch's samples compare with the set. `typical` and `worst` are grey levels, see peers/contest.py."""

    samples: int
    of: int
    ids: bool
    missed: int
    repeated: int
    typical: float
    worst: float


class Settings(msgspec.Struct, frozen=True):
    """What a loader says of itself, see peers/contest.py."""

    library: str
    chosen: str
    source: str
    inexact: str = ""


class Terms(msgspec.Struct, frozen=True):
    """How was measured. `cores` are those that everything ran on."""

    cores: int
    processor: str
    seconds: float
    settle_s: float
    warm_s: float


Round = dict[str, Taken]  # by the cell's key


class Comparison(msgspec.Struct):
    """All that one run of compare.py found. `failures` says, by cell or `set/peer`, why there is no figure."""

    machine: Machine
    terms: Terms
    rounds: list[Round] = []
    settings: dict[str, Settings] = {}
    verified: dict[str, Verified] = {}
    failures: dict[str, str] = {}

    def median(self, of: Callable[[Round], float | None]) -> float | None:
        """Over the rounds that have the figure; None when none has."""
        found = [value for each in self.rounds if (value := of(each)) is not None]
        return statistics.median(found) if found else None

    def list_keys(self) -> list[str]:
        return list(dict.fromkeys(key for each in self.rounds for key in each))

    def list_trainers(self, of: str, peer: str) -> list[int]:
        """With how many at once a loader was measured on a set, workers as many as cores."""
        keys = (key.split("/") for key in self.list_keys())
        return sorted(int(rest[0]) for on, name, *rest in keys if (on, name, len(rest)) == (of, peer, 1))

    def each(self, key: str) -> float | None:
        return self._median_of(key, lambda taken: taken.each)

    def together(self, key: str) -> float | None:
        return self._median_of(key, lambda taken: taken.together)

    def copied(self, key: str) -> float | None:
        return self._median_of(key, lambda taken: statistics.median(taken.copy) if taken.copy else None)

    def first_batch_s(self, key: str) -> float | None:
        return self._median_of(key, lambda taken: max(taken.first_batch_s, default=None))

    def _median_of(self, key: str, figure: Callable[[Taken], float | None]) -> float | None:
        return self.median(lambda cells: figure(cells[key]) if key in cells else None)

    def ratio(self, key: str, other: str) -> float | None:
        return self.median(lambda cells: _quotient(cells, key, other))

    def of_best(self, key: str, of: str, trainers: int) -> float | None:
        """streamd's rate over that of each round's fastest other loader."""
        return self.median(lambda cells: _of_best(cells, key, of, trainers))


def _quotient(cells: Round, key: str, other: str) -> float | None:
    return cells[key].each / cells[other].each if key in cells and other in cells else None


def rivals(keys: Container[str], of: str, trainers: int) -> list[str]:
    """The cells of all other loaders on a set, with their default workers."""
    others = (f"{of}/{peer.name}/{trainers}" for peer in peers.PEERS if not peer.is_streamd)
    return [key for key in others if key in keys]


def _of_best(cells: Round, key: str, of: str, trainers: int) -> float | None:
    best = max((cells[other].each for other in rivals(cells, of, trainers)), default=None)
    return cells[key].each / best if best is not None and key in cells else None


class Target(NamedTuple):
    """One figure that was to be reached. `most` turns it round: it may not be more."""

    name: str
    what: str
    wanted: float
    most: bool = False


TARGETS: Final = (
    Target("s.one_of_limit", "128x128, one trainer, of the limit", 0.90),
    Target("s.one_of_best", "128x128, one trainer, times the best other loader", 1.8),
    Target("l.one_of_limit", "500x375, one trainer, of the limit", 0.85),
    Target("l.one_of_best", "500x375, one trainer, times the best other loader", 1.5),
    Target("s.four_of_one", "four trainers, each, of one", 0.85),
    Target("s.four_of_best", "four trainers, each, times the best other loader's each", 5.0),
    Target("s.four_of_tensor_socket", "four trainers, each, times TensorSocket's each", 4.0),
    Target("s.four_of_tf_service", "four trainers, each, times tf.data service's each", 4.0),
    Target("decoded.one_of_memmap", "decoded, one trainer, of a memmap in the trainer", 0.75),
    Target("decoded.four_of_memmap", "decoded, four trainers together, of one memmap in the trainer", 1.6),
    Target("s.first_batch_s", "128x128, first batch after subscribing, seconds", 1.0, most=True),
)


def figures(found: Comparison) -> dict[str, float]:
    """What pages quote, by name: the rates of every cell, the targets' ratios. What was not measured is not there."""
    named: dict[str, float | None] = {}
    for key in found.list_keys():
        name = key.replace("/", ".")
        named |= {
            f"{name}.each": found.each(key),
            f"{name}.together": found.together(key),
            f"{name}.copied": found.copied(key),
            f"{name}.first_batch_s": found.first_batch_s(key),
        }
    for of in ("s", "l"):
        named[f"{of}.one_of_limit"] = found.ratio(f"{of}/streamd/1", f"{of}/limit/1")
        named[f"{of}.one_of_best"] = found.of_best(f"{of}/streamd/1", of, 1)
    named["s.four_of_one"] = found.ratio("s/streamd/4", "s/streamd/1")
    named["s.four_of_best"] = found.of_best("s/streamd/4", "s", 4)
    for peer in ("tensor_socket", "tf_service"):
        named[f"s.four_of_{peer}"] = found.ratio("s/streamd/4", f"s/{peer}/4")
    named["decoded.one_of_memmap"] = found.ratio("decoded/streamd/1", "decoded/memmap/1")
    named["decoded.four_of_memmap"] = found.median(_four_of_memmap)
    named["s.first_batch_s"] = found.first_batch_s("s/streamd/1")
    return {name: value for name, value in named.items() if value is not None}


def _four_of_memmap(cells: Round) -> float | None:
    four, one = cells.get("decoded/streamd/4"), cells.get("decoded/memmap/1")
    return four.together / one.each if four and one else None


def load(results: Path) -> Comparison:
    """Reads what `save` wrote; the figures in the file are for other readers and are computed anew."""
    return msgspec.json.decode(results.read_bytes(), type=Comparison)


def save(found: Comparison, results: Path) -> None:
    """Writes `results`, whole or not at all."""
    results.parent.mkdir(parents=True, exist_ok=True)
    document = {**msgspec.to_builtins(found), "figures": figures(found)}
    unfinished = results.with_name(f"{results.name}.unfinished")
    unfinished.write_text(format_json(document) + "\n")
    unfinished.rename(results)


# --- the figures that pages quote


def list_pages() -> list[Path]:
    """The pages that may quote."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def format_figure(value: float) -> str:
    """As pages write it: three digits or more."""
    if abs(value) >= 100:  # noqa: PLR2004 - three digits stand before the point
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004 - two digits do


def load_figure(name: str, key: str, results: Path = RESULTS) -> float:
    """A figure of results/NAME.json. Raises LookupError, naming it, where there is none."""
    path = results / f"{name}.json"
    if not path.exists():
        raise LookupError(f"{name}:{key}: there is no {path.name}")
    named: dict[str, float] = msgspec.json.decode(path.read_bytes()).get("figures", {})
    if key not in named:
        raise LookupError(f"{name}:{key}: {path.name} has no such figure")
    return named[key]


def rewrite_figures(text: str, results: Path = RESULTS) -> str:
    """The page with every marked figure as measured. Raises LookupError for one that was not."""

    def write(found: re.Match[str]) -> str:
        rest = found["number"][len(found["number"].rstrip(",.")) :]  # a comma or full stop of the sentence
        return found["mark"] + format_figure(load_figure(found["file"], found["key"], results)) + rest

    return MARK.sub(write, text)


def write_figures() -> None:
    for page in list_pages():
        text = page.read_text(encoding="utf-8")
        anew = rewrite_figures(text)
        if anew != text:
            page.write_text(anew, encoding="utf-8")
            print(page.relative_to(ROOT))
