"""What a comparison found, as values: rounds of cells, what was verified, and the figures that pages quote.

Ratios are taken within a round, and their median over the rounds is what counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import compare_peers as peers
import msgspec
from report import Machine

DEFAULT_RESULTS: Final = Path(__file__).resolve().parent / "results" / "compare.json"


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

    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for each in self.rounds for key in each))

    def each(self, key: str) -> float | None:
        return self.median(lambda cells: cells[key].each if key in cells else None)

    def together(self, key: str) -> float | None:
        return self.median(lambda cells: cells[key].together if key in cells else None)

    def copied(self, key: str) -> float | None:
        return self.median(
            lambda cells: statistics.median(cells[key].copy) if key in cells and cells[key].copy else None
        )

    def first_batch_s(self, key: str) -> float | None:
        return self.median(
            lambda cells: max(cells[key].first_batch_s) if key in cells and cells[key].first_batch_s else None
        )

    def ratio(self, key: str, other: str) -> float | None:
        return self.median(lambda cells: _quotient(cells, key, other))

    def of_best(self, key: str, of: str, trainers: int) -> float | None:
        """streamd's rate over that of each round's fastest other loader."""
        return self.median(lambda cells: _of_best(cells, key, of, trainers))


def _quotient(cells: Round, key: str, other: str) -> float | None:
    return cells[key].each / cells[other].each if key in cells and other in cells else None


def rivals(keys: Iterable[str], of: str, trainers: int) -> list[str]:
    """The cells of all other loaders on a set, with their default workers."""
    streamds = {peer.name for peer in peers.PEERS if peer.is_streamd} | {peers.LIMIT}
    return [
        key
        for key in keys
        for found in [key.split("/")]
        if found[0] == of and found[2:] == [str(trainers)] and found[1] not in streamds
    ]


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
    for key in found.keys():  # noqa: SIM118 - a method of its own, not a dict's
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
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    unfinished.rename(results)
