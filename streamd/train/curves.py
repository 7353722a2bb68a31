"""The curves of a training: the loss and each metric by epoch, in training and validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from streamd.frameworks.extras import load

History = Mapping[str, Sequence[float]]  # of each value, one number an epoch

_VALIDATION: Final = "val_"  # before the names of what Keras measures on validation data
_COLUMNS: Final = 3
_PANEL_INCHES: Final = (4.2, 3.2)
_DOTS_PER_INCH: Final = 120
_SHOWN: Final = {"training": {"color": "#1f6fb4", "marker": "."}, "validation": {"color": "#d9730d", "marker": "."}}


def panels(history: History) -> dict[str, dict[str, Sequence[float]]]:
    """What is drawn together: by metric, the loss first, the curve of `training`, of `validation`, or of both."""
    together: dict[str, dict[str, Sequence[float]]] = {"loss": {}}
    for name, values in history.items():
        kind = "validation" if name.startswith(_VALIDATION) else "training"
        together.setdefault(name.removeprefix(_VALIDATION), {})[kind] = values
    return {metric: curves for metric, curves in together.items() if curves}


def load_figures() -> Any:
    """The module matplotlib.figure, which needs no display. Raises MissingExtraError."""
    return load("matplotlib.figure", "train", "drawing the curves of a training")


def draw(history: History, path: Path) -> None:
    """Writes the curves as a PNG, epochs counted from 1. Raises MissingExtraError, OSError."""
    shown = panels(history)
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    size = (columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1])
    figure = load_figures().Figure(figsize=size, layout="constrained")
    for place, (metric, curves) in enumerate(shown.items(), 1):
        axes = figure.add_subplot(rows, columns, place, title=metric, xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        for kind, values in curves.items():
            axes.plot(range(1, len(values) + 1), values, label=kind, **_SHOWN[kind])
        axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH, format="png")
