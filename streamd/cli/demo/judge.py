"""Judges the demo's model by one validation epoch: `python -m streamd.cli.demo.judge ENDPOINT MODEL CHART`.

One picture shows what it has learned: predictions against truth, and six roads with both steering angles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from streamd.client import connect
from streamd.errors import StreamdError
from streamd.frameworks.keras import load_keras

Angles = npt.NDArray[np.float64]  # (n,) in [-1, 1], positive to the right
Example = tuple[npt.NDArray[np.uint8], float, float]  # image uint8 (H, W, 3), truth, prediction

EXAMPLES: Final = 6  # two rows of three
_LEARNED_BELOW: Final = 0.7  # of the mean's error: what counts as having learned
_INCHES: Final = (12.0, 6.4)  # 1200 x 640 pixels
_TRUTH_COLOUR: Final = "#26be60"
_PREDICTED_COLOUR: Final = "#ff881c"
_ARROW_LENGTH: Final = 0.45  # of the picture's height


def judge_model(endpoint: str, model_path: Path, chart: Path) -> str:
    """Draws the chart, and returns its caption.

    Raises StreamdError when the model does not clearly beat the mean.
    """
    model = load_keras().models.load_model(model_path)
    truths, predictions, examples = [], [], list[Example]()
    with connect(endpoint) as client, client.subscribe("validation", epochs=1) as stream:
        for batch in stream:
            truths.append(batch.labels["angle"])
            predictions.append(np.asarray(model.predict_on_batch(batch.copy().images)).reshape(-1))
            examples.append((batch.images[0].copy(), float(truths[-1][0]), float(predictions[-1][0])))
    truth, predicted = (np.concatenate(each, dtype=np.float64) for each in (truths, predictions))
    scores = compute_scores(truth, predicted)
    draw_chart(truth, predicted, examples, format_scores(scores), chart)
    if not scores.mae <= _LEARNED_BELOW * scores.mean_mae:  # also for NaN
        raise StreamdError(f"the model did not learn: {format_scores(scores)}")
    return format_scores(scores)


def main() -> None:
    endpoint, model, chart = sys.argv[1:]
    try:
        text = judge_model(endpoint, Path(model), Path(chart))
    except StreamdError as error:
        sys.stderr.write(f"streamd demo: {error}\n")
        raise SystemExit(error.exit_status) from None
    sys.stdout.write(f"{text}\n")


@dataclass(frozen=True, slots=True)
class PredictionScores:
    """How good predictions are; errors in the unit of the truth."""

    samples: int
    r2: float
    mae: float
    mean_mae: float  # of predicting the mean of the truth every time


def compute_scores(truth: Angles, predicted: Angles) -> PredictionScores:
    """Scores predictions (n,) against the truth (n,), whose values must not all be equal."""
    from_mean = truth - truth.mean()
    return PredictionScores(
        samples=truth.size,
        r2=1 - float(np.sum((truth - predicted) ** 2) / np.sum(from_mean**2)),
        mae=float(np.abs(truth - predicted).mean()),
        mean_mae=float(np.abs(from_mean).mean()),
    )


def format_scores(scores: PredictionScores) -> str:
    """Formats a line such as `R² 0.930 · MAE 0.071 · predicting the mean would give MAE 0.334 · 512 samples`."""
    return (
        f"R² {scores.r2:.3f}   ·   MAE {scores.mae:.3f}   ·   predicting the mean would give MAE {scores.mean_mae:.3f}"
        f"   ·   {scores.samples} samples"
    )


def draw_chart(truth: Angles, predicted: Angles, examples: Sequence[Example], caption: str, path: Path) -> None:
    """Writes a PNG of 1200 x 640 pixels: predictions against truth, a caption, and up to six of the `examples`."""
    figure = Figure(figsize=_INCHES, dpi=100)
    figure.suptitle("Steering angle: predictions against truth", x=0.03, ha="left", fontsize=18)
    figure.text(0.03, 0.04, caption, fontsize=11)
    grid = figure.add_gridspec(2, 5, left=0.06, right=0.98, bottom=0.17, top=0.87)
    axes: Any = figure.add_subplot(grid[:, :2], xlabel="truth", ylabel="predicted", aspect="equal")
    axes.axline((0, 0), slope=1, color="grey", linewidth=1)
    # The more dots there are, the more transparent each one is, so that dense places show.
    axes.scatter(truth, predicted, s=14, alpha=min(0.75, max(0.15, math.sqrt(300 / truth.size))), linewidths=0)
    axes.grid(alpha=0.3)
    for place, example in enumerate(examples[:EXAMPLES]):
        _draw_example(figure.add_subplot(grid[place // 3, 2 + place % 3]), *example)
    figure.savefig(path, format="png")


def _draw_example(axes: Any, pixels: npt.NDArray[np.uint8], truth: float, predicted: float) -> None:
    """Draws a picture with both angles as arrows, the prediction on top and thinner, so that equal ones both show."""
    height, width = pixels.shape[:2]
    foot = (width / 2, 0.93 * height)
    axes.imshow(pixels)
    axes.set_axis_off()
    for name, angle, colour, line_width, side in (
        ("truth", truth, _TRUTH_COLOUR, 5, "left"),
        ("predicted", predicted, _PREDICTED_COLOUR, 2, "right"),
    ):
        turn = math.radians(80) * angle
        reach = _ARROW_LENGTH * height
        tip = (foot[0] + reach * math.sin(turn), foot[1] - reach * math.cos(turn))
        axes.annotate("", tip, foot, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": line_width})
        axes.set_title(f"{name} {angle:+.2f}", fontsize=9, color=colour, loc=side)


if __name__ == "__main__":
    main()
