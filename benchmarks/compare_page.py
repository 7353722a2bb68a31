"""The comparison as a page: what was to be reached, the tables, each loader's settings, how to read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import compare_peers as peers
from compare_results import TARGETS, Comparison, Target, figures

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
    """Markdown; the first column to the left, the rest to the right."""
    lines = [f"| {' | '.join(titles)} |", f"|---|{'--:|' * (len(titles) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


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


def _first(found: Comparison, name: str) -> str:
    return ratio(found.first_batch_s(f"s/{name}/1"))


def _files_table(found: Comparison) -> str:
    both = {peer.name: peer for of in peers.FILES for peer in _measured(found, of)}
    if not both:
        return ""
    titles = (
        "one trainer",
        "128x128",
        "of limit",
        "with a copy",
        "500x375",
        "of limit",
        "with a copy",
        "first batch, s",
    )
    limits = [cell for of in peers.FILES for cell in (rate(found.each(f"{of}/limit/1")), "1.00", _NONE)]
    rows = [
        (
            peer.title,
            *(cell for of in peers.FILES for cell in _alone(found, of, peer.name, f"{of}/limit/1")),
            _first(found, peer.name),
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
    keys = [key.split("/") for key in found.keys()]  # noqa: SIM118 - a method of its own, not a dict's
    cells = [
        (name, int(rest[0])) for part, name, *rest in keys if part == of and len(rest) == 1 and name != peers.LIMIT
    ]
    counts = sorted({count for _, count in cells})
    names = {name for name, count in cells if count > 1}
    if not names:
        return ""

    def shown(name: str, count: int) -> str:
        key = f"{of}/{name}/{count}"
        each, together = found.each(key), found.together(key)
        return rate(each) if count == 1 or each is None else f"{rate(each)} / {rate(together)}"

    rows = [(peer.title, *(shown(peer.name, count) for count in counts)) for peer in peers.PEERS if peer.name in names]
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
    return "## Each loader's settings\n\n" + titles + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


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
