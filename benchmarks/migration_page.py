"""docs/migration.md: what users of other loaders write, streamd beside it, and what was measured.

    python benchmarks/migration_page.py

writes the page anew, from examples/migration/ and the figures of the last run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pages import Page
from report import RESULTS, Machine, line

ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLES: Final = ROOT / "examples" / "migration"
_PART: Final = "\n---\n"  # between what stands before the snippets and what stands behind them


@dataclass(frozen=True, slots=True)
class Scheme:
    """A loader that people come from: a folder of examples/migration, and what its snippets need.

    `kind` is that of its labels, or torch. `scale` is how many times larger streamd's pixels are than theirs.
    """

    name: str
    kind: str = "category"
    scale: float = 1.0

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.name

    def text(self, file: str) -> str:
        return (self.folder / file).read_text().rstrip("\n")


SCHEMES: Final = (
    Scheme("generator"),
    Scheme("in_memory"),
    Scheme("pytables"),
    Scheme("queue_loader"),
    Scheme("generator_enqueuer"),
    Scheme("dataframe", kind="angle", scale=255),
    Scheme("tf_data_list"),
    Scheme("pool"),
    Scheme("pyxis"),
    Scheme("image_data_generator", scale=255),
    Scheme("image_dataset_from_directory"),
    Scheme("torch_dataloader", kind="torch"),
    Scheme("torch_imagefolder", kind="torch"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a snippet: samples a second in its second epoch, seconds to its first step, with what it loads."""

    rate: float
    first_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Both snippets of a scheme, an entry a round."""

    theirs: tuple[Run, ...]
    ours: tuple[Run, ...]

    def median(self, figure: Callable[[Run], float], *, ours: bool) -> float:
        return statistics.median(figure(each) for each in (self.ours if ours else self.theirs))

    @property
    def times(self) -> float:
        """How many times faster: the median of each round's ratio."""
        return statistics.median(mine.rate / other.rate for mine, other in zip(self.ours, self.theirs, strict=True))


@dataclass(frozen=True, slots=True)
class Migration:
    """All that one run of migration.py found. A scheme that no run has measured yet has no pair."""

    machine: Machine
    images: int
    pairs: dict[str, Pair]


def render(found: Migration) -> str:
    """The page."""
    where = found.machine
    rounds = len(next(iter(found.pairs.values())).ours)
    lines = [
        "# Coming from another loader",
        "",
        "One section a scheme: what people write, streamd beside it, what was measured, and what does not map.",
        "Each snippet stands in examples/migration/ and is run by a test. `model` is your compiled Keras model,",
        "`step` what you do with a batch; `streamd serve --config config.yaml` runs beside them, once, for all",
        "trainers. A subscription without `epochs=` never ends, so only `fit` says how many epochs there are.",
        "",
        f"Measured on {where.date} at commit {where.commit} on {where.cores} cores, Python {where.python}, by",
        f"`scripts/docs migration`: {found.images:,} JPEGs of 128x128 from memory, batches of 32, two epochs of a",
        "model that does next to nothing, so that loading is all that counts; medians of the second epoch over",
        f"{rounds} rounds in turn. With streamd a second trainer decodes nothing again; elsewhere it begins anew.",
        "",
        *_overview(found),
        *(line for scheme in SCHEMES for line in _section(scheme, found.pairs.get(scheme.name))),
    ]
    return "\n".join(lines)


def _overview(found: Migration) -> list[str]:
    rows = [_row(scheme, found.pairs[scheme.name]) for scheme in SCHEMES if scheme.name in found.pairs]
    return ["| samples a second | theirs | streamd | times |", "|---|--:|--:|--:|", *rows, ""]


def _row(scheme: Scheme, pair: Pair) -> str:
    title = _title(scheme)
    rates = (f"{pair.median(_rate, ours=ours):,.0f}" for ours in (False, True))
    return line([f"[{title}](#{_anchor(title)})", *rates, f"**{pair.times:.1f}**"])


def _rate(run: Run) -> float:
    return run.rate


def _first(run: Run) -> float:
    return run.first_s


def _title(scheme: Scheme) -> str:
    return scheme.text("notes.md").partition("\n")[0].removeprefix("# ")


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _describe_measurement(pair: Pair) -> str:
    return (
        f"**Measured**: {pair.median(_rate, ours=False):,.0f} samples a second, the first step after "
        f"{pair.median(_first, ours=False):.1f} s; with streamd {pair.median(_rate, ours=True):,.0f}, after "
        f"{pair.median(_first, ours=True):.1f} s. That is {pair.times:.1f} times the rate."
    )


def _section(scheme: Scheme, pair: Pair | None) -> list[str]:
    before, after = scheme.text("notes.md").split(_PART)
    _, _, told = before.partition("\n")
    measured = [] if pair is None else [_describe_measurement(pair), ""]
    return [
        f"## {_title(scheme)}", "", told.strip(), "",
        "```python", scheme.text("theirs.py"), "```", "",
        "With streamd, config.yaml:", "",
        "```yaml", scheme.text("config.yaml"), "```", "",
        "and the trainer:", "",
        "```python", scheme.text("ours.py"), "```", "",
        *measured, after.strip(), "",
    ]  # fmt: skip


PAGE: Final = Page(
    Migration, render, by="migration.py", results=RESULTS / "migration.json", elsewhere=ROOT / "docs" / "migration.md"
)


if __name__ == "__main__":
    PAGE.rewrite()
