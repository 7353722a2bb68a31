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

from streamd.client import connect
from streamd.errors import ConfigError, MissingExtraError, StreamdError
from streamd.frameworks.keras import load_keras

try:
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch
except ImportError as error:
    raise MissingExtraError("matplotlib", "train", "streamd demo") from error

Pixels = npt.NDArray[np.uint8]
Example = tuple[Pixels, float, float]  # image uint8 (H, W, 3), truth, prediction; angles in [-1, 1], positive right

_LEARNED_BELOW: Final = 0.7  # of the mean's error: what counts as having learned

EXAMPLES: Final = 6  # two rows of three
_INCHES: Final = (12.0, 6.4)  # 1200 x 640 pixels
_TRUTH_COLOUR: Final = "#26be60"
_PREDICTED_COLOUR: Final = "#ff881c"
_ARROW_LENGTH: Final = 0.45  # of the picture's height


def judge_model(endpoint: str, model_path: Path, chart: Path) -> str:
    """Draws the chart; returns its caption. Raises StreamdError when the model does not clearly beat the mean."""
    model = load_keras().models.load_model(model_path)
    truth, predicted, images = [], [], []
    with connect(endpoint) as client, client.subscribe("validation", epochs=1) as stream:
        for batch in stream:
            truth.append(batch.labels["angle"])
            predicted.append(np.asarray(model.predict_on_batch(batch.copy().images)).reshape(-1))
            images.append(batch.images[0].copy())
    all_truth, all_predicted = np.concatenate(truth), np.concatenate(predicted)
    starts = np.cumsum([0, *(each.size for each in truth[:-1])])
    examples = [(image, all_truth[row], all_predicted[row]) for image, row in zip(images, starts, strict=True)]
    title = "Steering angle: predictions against truth"
    draw_scatter_chart(all_truth, all_predicted, chart, title=title, examples=examples)
    scores = compute_scores(all_truth, all_predicted)
    if scores.mae > _LEARNED_BELOW * scores.mean_mae:
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


# --- scores


@dataclass(frozen=True, slots=True)
class PredictionScores:
    """How good predictions are; errors in the unit of the truth. `r2` is NaN where all truths are equal."""

    samples: int
    r2: float
    mae: float
    mean_mae: float  # of predicting the mean of the truth every time


def compute_scores(truth: npt.ArrayLike, predicted: npt.ArrayLike) -> PredictionScores:
    """Scores of `predicted` against `truth`, which must be equally many finite numbers, else ConfigError is raised."""
    wanted, given = _check_all_finite("truth", truth), _check_all_finite("predicted", predicted)
    if wanted.size != given.size or wanted.size == 0:
        raise ConfigError(f"a prediction is needed for each truth: there are {given.size} for {wanted.size}")
    spread = float(np.sum((wanted - wanted.mean()) ** 2))
    return PredictionScores(
        samples=wanted.size,
        r2=1 - float(np.sum((wanted - given) ** 2)) / spread if spread > 0 else math.nan,
        mae=float(np.abs(wanted - given).mean()),
        mean_mae=float(np.abs(wanted - wanted.mean()).mean()),
    )


def format_scores(scores: PredictionScores) -> str:
    """One line for people, such as `R² 0.93 · MAE 0.071 · predicting the mean would give MAE 0.334 · 512 samples`."""
    r2 = "undefined (all truths are equal)" if math.isnan(scores.r2) else f"{scores.r2:.3f}"
    return (
        f"R² {r2}   ·   MAE {scores.mae:.3f}   ·   predicting the mean would give MAE {scores.mean_mae:.3f}"
        f"   ·   {scores.samples} samples"
    )


def _check_all_finite(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64).ravel()
    strange = int(np.count_nonzero(~np.isfinite(numbers)))
    if strange:
        raise ConfigError(f"{strange} of {numbers.size} numbers in {name} are not finite: did the training diverge?")
    return numbers


# --- the chart


def draw_scatter_chart(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, path: Path, *, title: str, examples: Sequence[Example] = ()
) -> None:
    """Writes a PNG of 1200 x 640 to `path`: predictions against truth, their scores, and up to six `examples`.

    Raises ConfigError for numbers that cannot be scored or a path that cannot be written.
    """
    wanted, given = _check_all_finite("truth", truth), _check_all_finite("predicted", predicted)
    figure = Figure(figsize=_INCHES, dpi=100)
    figure.suptitle(title, x=0.03, ha="left", fontsize=18)
    figure.text(0.03, 0.04, format_scores(compute_scores(wanted, given)), fontsize=11)
    grid = figure.add_gridspec(2, 5, left=0.06, right=0.98, bottom=0.17, top=0.87)
    _draw_plot(figure.add_subplot(grid[:, :2]), wanted, given)
    for place, example in enumerate(examples[:EXAMPLES]):
        _draw_steering_example(figure.add_subplot(grid[place // 3, 2 + place % 3]), example)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"the chart cannot be written to {path}: {error}") from error


def _draw_plot(axes: Any, truth: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]) -> None:
    ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
    axes.plot(ends, ends, color="grey", linewidth=1)
    # Many dots are lighter than few, so that their density shows.
    axes.scatter(truth, predicted, s=14, alpha=min(0.75, max(0.15, math.sqrt(300 / truth.size))), linewidths=0)
    axes.set(xlabel="truth", ylabel="predicted", aspect="equal")
    axes.grid(alpha=0.3)


def _draw_steering_example(axes: Any, example: Example) -> None:
    """A picture with both angles as arrows; the prediction is on top and thinner, so that two that agree both show."""
    pixels, truth, predicted = example
    axes.imshow(pixels)
    axes.set_axis_off()
    for angle, colour, width in ((truth, _TRUTH_COLOUR, 5), (predicted, _PREDICTED_COLOUR, 2)):
        axes.add_patch(_build_steering_arrow(pixels.shape, angle, colour, width))
    axes.set_title(f"truth {truth:+.2f}", fontsize=9, color=_TRUTH_COLOUR, loc="left")
    axes.set_title(f"predicted {predicted:+.2f}", fontsize=9, color=_PREDICTED_COLOUR, loc="right")


def _build_steering_arrow(shape: tuple[int, ...], angle: float, colour: str, width: float) -> FancyArrowPatch:
    """An arc that leaves the foot of the picture straight up and bends by up to 80 degrees."""
    height, wide = shape[:2]
    bend = math.radians(80) * max(-1.0, min(1.0, angle))
    foot = (wide / 2, 0.93 * height)
    # The chord of an arc that turns by `bend` points half as far aside.
    tip = (
        foot[0] + _ARROW_LENGTH * height * math.sin(bend / 2),
        foot[1] - _ARROW_LENGTH * height * math.cos(bend / 2),
    )
    curve = f"arc3,rad={-math.tan(bend / 2) / 2:.6f}"
    return FancyArrowPatch(
        foot, tip, connectionstyle=curve, arrowstyle="-|>", mutation_scale=8 + width, color=colour, linewidth=width
    )


if __name__ == "__main__":
    main()
