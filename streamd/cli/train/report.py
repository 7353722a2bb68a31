"""The curves of a training: the loss and each metric by epoch, in training and validation.

What `streamd-train` says at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from streamd.core.receipt import Receipt
from streamd.frameworks.lazy_import import import_library

TrainingHistory = Mapping[str, Sequence[float]]  # of each value, one number an epoch

_VALIDATION_PREFIX: Final = "val_"  # before the names of what Keras measures on validation data
_COLUMNS: Final = 3
_PANEL_INCHES: Final = (4.2, 3.2)
_DOTS_PER_INCH: Final = 120
_CURVE_STYLES: Final = {
    "training": {"color": "#1f6fb4", "marker": "."},
    "validation": {"color": "#d9730d", "marker": "."},
}


def group_curves(history: TrainingHistory) -> dict[str, dict[str, Sequence[float]]]:
    """What is drawn together: by metric, the loss first, the curve of `training`, of `validation`, or of both."""
    together: dict[str, dict[str, Sequence[float]]] = {"loss": {}}
    for name, values in history.items():
        kind = "validation" if name.startswith(_VALIDATION_PREFIX) else "training"
        together.setdefault(name.removeprefix(_VALIDATION_PREFIX), {})[kind] = values
    return {metric: curves for metric, curves in together.items() if curves}


def load_matplotlib_figure() -> Any:
    """The module matplotlib.figure, which needs no display. Raises MissingExtraError."""
    return import_library("matplotlib.figure", "train", "drawing the curves of a training")


def draw_curves(history: TrainingHistory, path: Path) -> None:
    """Writes the curves as a PNG, epochs counted from 1. Raises MissingExtraError, OSError."""
    shown = group_curves(history)
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    size = (columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1])
    figure = load_matplotlib_figure().Figure(figsize=size, layout="constrained")
    for place, (metric, curves) in enumerate(shown.items(), 1):
        axes = figure.add_subplot(rows, columns, place, title=metric, xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        for kind, values in curves.items():
            axes.plot(range(1, len(values) + 1), values, label=kind, **_CURVE_STYLES[kind])
        axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH, format="png")


def format_receipt(receipt: Receipt) -> str:
    """One epoch in one line, such as `epoch 3: 125 steps, 4000 samples, missed 0, repeated 0, bad 0: ok`."""
    facts = [
        f"{receipt.steps} steps",
        f"{receipt.samples} samples",
        f"missed {receipt.missed}",
        f"repeated {receipt.repeated}",
        f"bad {receipt.bad}",
    ]
    if receipt.dropped:
        facts.append(f"dropped {receipt.dropped}")
    if receipt.changed:
        facts.append("pixels changed since the token was made")
    if not receipt.complete:
        facts.append("stopped early")
    return f"epoch {receipt.epoch}: {', '.join(facts)}: {_format_receipt_result(receipt)}"


def _format_receipt_result(receipt: Receipt) -> str:
    if receipt.ok:
        return "ok"
    adds_up = receipt.missed == receipt.repeated == 0
    return "NOT OK, the order differs from the daemon's" if adds_up else "NOT OK"


def format_speed(samples: int, elapsed_s: float, waited_s: float) -> str:
    """The rate of training and the share of it spent waiting for batches."""
    rate, share = (samples / elapsed_s, waited_s / elapsed_s) if elapsed_s > 0 else (0.0, 0.0)
    return f"{samples} samples in {elapsed_s:.1f} s: {rate:,.0f} samples/s, {share:.0%} of the time waiting for batches"


def format_results(history: Mapping[str, Sequence[float]]) -> str:
    """What the last epoch came to, such as `after 10 epochs: loss 0.1034, val_loss 0.2203 (lowest 0.1951 after 7)`.

    `history` has a number an epoch for the loss and each metric.
    """
    ends = [f"{name} {values[-1]:.4g}{_format_lowest(name, values)}" for name, values in history.items()]
    epochs = max(map(len, history.values()), default=0)
    return f"after {epochs} epoch{'' if epochs == 1 else 's'}: {', '.join(ends)}"


def _format_lowest(name: str, values: Sequence[float]) -> str:
    """Where the loss of the validation was lower than at the end: from there on a model learns its samples by heart."""
    lowest = min(values)
    if name != "val_loss" or lowest == values[-1]:
        return ""
    return f" (lowest {lowest:.4g} after {values.index(lowest) + 1})"
