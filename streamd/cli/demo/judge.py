"""Judges the demo's model by one validation epoch: `python -m streamd.cli.demo.judge ENDPOINT MODEL CHART`.

What it has learnt is one picture: predictions against truth, and six roads with both steering angles. It is drawn with
Pillow at twice the size and then reduced, which smooths every edge. Coordinates below are those of the finished
picture, in pixels; `_ChartCanvas` is the only place that knows of the factor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamd.client import connect
from streamd.errors import ConfigError, MissingExtraError, StreamdError
from streamd.frameworks.keras import load_keras

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    raise MissingExtraError("Pillow", "serve", "streamd demo") from error

Pixels = npt.NDArray[np.uint8]
Example = tuple[Pixels, float, float]  # image uint8 (H, W, 3), truth, prediction; angles in [-1, 1], positive right
Point = tuple[float, float]
Colour = tuple[int, int, int] | tuple[int, int, int, int]

_LEARNED_BELOW: Final = 0.7  # of the mean's error: what counts as having learned

WIDTH: Final = 1200
HEIGHT: Final = 640
EXAMPLES: Final = 6  # two rows of three
OVERSAMPLING: Final = 2

_INK: Final = (34, 40, 49)
_GREY: Final = (112, 120, 131)
_GRID: Final = (228, 231, 235)
_PAPER: Final = (255, 255, 255)
_GREEN: Final = (38, 190, 96)
_ORANGE: Final = (255, 136, 28)
_DOT: Final = (44, 108, 188)

_PLOT: Final = (84.0, 88.0, 524.0, 528.0)  # left, top, right, bottom
_LEGEND_Y: Final = 566.0
_CAPTION_Y: Final = 608.0
_STRIP_LEFT: Final = 590.0
_STRIP_TOP: Final = 88.0
_PICTURE: Final = 180
_PICTURE_STEP: Final = (190.0, 236.0)  # across, down


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
    scores = compute_scores(truth, predicted)
    canvas = _ChartCanvas()
    canvas.draw_text((_PLOT[0], 44), title, 26, _INK, anchor="lm")
    _draw_plot(canvas, _check_all_finite("truth", truth), _check_all_finite("predicted", predicted))
    _draw_caption(canvas, format_scores(scores))
    if examples:
        _draw_legend(canvas)
    for place, example in enumerate(examples[:EXAMPLES]):
        _draw_steering_example(canvas, place, example)
    try:
        canvas.reduce_to_size().save(path, format="PNG")
    except OSError as error:
        raise ConfigError(f"the chart cannot be written to {path}: {error}") from error


def compute_axis_ticks(low: float, high: float) -> list[float]:
    """Round numbers, two to eight, the first no more than `low` and the last no less than `high`."""
    span = max(high - low, 1e-3 * max(abs(low), abs(high)), 1e-6)  # narrower, and their labels would be the same
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)  # noqa: PLR2004 - more numbers than that touch
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


class _ChartCanvas:
    """A sheet of paper in finished pixels."""

    def __init__(self) -> None:
        self._image = Image.new("RGB", (WIDTH * OVERSAMPLING, HEIGHT * OVERSAMPLING), _PAPER)
        self._pen = ImageDraw.Draw(self._image, "RGBA")  # so that a colour with a fourth number is see-through

    def reduce_to_size(self) -> Image.Image:
        return self._image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)

    def draw_line(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        self._pen.line(_scale_to_oversampled(points), fill=colour, width=round(width * OVERSAMPLING), joint="curve")

    def draw_polygon(self, points: Sequence[Point], colour: Colour) -> None:
        self._pen.polygon(_scale_to_oversampled(points), fill=colour)

    def draw_dot(self, at: Point, radius: float, colour: Colour) -> None:
        x, y = at
        self._pen.ellipse(_scale_to_oversampled([(x - radius, y - radius), (x + radius, y + radius)]), fill=colour)

    def draw_text(
        self,
        at: Point,
        text: str,
        size: float,
        colour: Colour,
        *,
        anchor: Literal["lm", "mm", "rm", "mt"],
    ) -> float:
        """Returns how wide the text is."""
        font = ImageFont.load_default(size=size * OVERSAMPLING)
        self._pen.text(_scale_to_oversampled([at])[0], text, font=font, fill=colour, anchor=anchor)
        return font.getlength(text) / OVERSAMPLING

    def draw_text_upwards(self, at: Point, text: str, size: float, colour: Colour) -> None:
        """Writes along the vertical, its middle at `at`."""
        font = ImageFont.load_default(size=size * OVERSAMPLING)
        left, top, right, bottom = (math.ceil(edge) for edge in font.getbbox(text))
        mask = Image.new("L", (right + left, bottom + top))
        ImageDraw.Draw(mask).text((0, 0), text, font=font, fill=255)
        upright = mask.rotate(90, expand=True)
        (x, y) = _scale_to_oversampled([at])[0]
        self._image.paste(colour, (round(x - upright.width / 2), round(y - upright.height / 2)), upright)

    def draw_picture(self, at: Point, pixels: Pixels, size: int) -> None:
        side = size * OVERSAMPLING
        (x, y) = _scale_to_oversampled([at])[0]
        shown = Image.fromarray(pixels).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        corners = Image.new("L", (side, side))
        ImageDraw.Draw(corners).rounded_rectangle((0, 0, side - 1, side - 1), radius=6 * OVERSAMPLING, fill=255)
        self._image.paste(shown, (round(x), round(y)), corners)


def _scale_to_oversampled(points: Sequence[Point]) -> list[Point]:
    return [(x * OVERSAMPLING, y * OVERSAMPLING) for x, y in points]


def _draw_plot(canvas: _ChartCanvas, truth: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]) -> None:
    left, top, right, bottom = _PLOT
    marks = compute_axis_ticks(float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max())))
    low, span = marks[0], marks[-1] - marks[0]

    def compute_x(value: float) -> float:
        return left + (value - low) / span * (right - left)

    def compute_y(value: float) -> float:
        return bottom - (value - low) / span * (bottom - top)

    for mark in marks:
        canvas.draw_line([(compute_x(mark), top), (compute_x(mark), bottom)], _GRID, 1)
        canvas.draw_line([(left, compute_y(mark)), (right, compute_y(mark))], _GRID, 1)
        canvas.draw_text((compute_x(mark), bottom + 9), f"{mark:g}", 13, _GREY, anchor="mt")
        canvas.draw_text((left - 9, compute_y(mark)), f"{mark:g}", 13, _GREY, anchor="rm")
    canvas.draw_line([(left, bottom), (right, top)], _GREY, 1.5)
    opacity = round(min(190.0, max(40.0, 190 * math.sqrt(300 / truth.size))))  # many dots: let their density show
    for wanted, given in zip(truth.tolist(), predicted.tolist(), strict=True):
        canvas.draw_dot((compute_x(wanted), compute_y(given)), 3, (*_DOT, opacity))
    canvas.draw_line([(left, top), (left, bottom), (right, bottom)], _INK, 1.5)
    canvas.draw_text(((left + right) / 2, bottom + 38), "truth", 15, _INK, anchor="mm")
    canvas.draw_text_upwards((left - 54, (top + bottom) / 2), "predicted", 15, _INK)


def _draw_caption(canvas: _ChartCanvas, text: str) -> None:
    before, square, after = text.partition("²")
    x = _PLOT[0] + canvas.draw_text((_PLOT[0], _CAPTION_Y), before, 16, _INK, anchor="lm")
    if square:  # the font that comes with Pillow has no such letter
        x += canvas.draw_text((x, _CAPTION_Y - 6), "2", 10, _INK, anchor="lm")
        canvas.draw_text((x, _CAPTION_Y), after, 16, _INK, anchor="lm")


def _draw_legend(canvas: _ChartCanvas) -> None:
    left = _STRIP_LEFT
    for colour, text in ((_GREEN, "truth"), (_ORANGE, "predicted")):
        canvas.draw_line([(left, _LEGEND_Y), (left + 26, _LEGEND_Y)], colour, 5)
        left += 34 + canvas.draw_text((left + 34, _LEGEND_Y), text, 15, _INK, anchor="lm") + 26


def _draw_steering_example(canvas: _ChartCanvas, place: int, example: Example) -> None:
    pixels, truth, predicted = example
    left = _STRIP_LEFT + place % 3 * _PICTURE_STEP[0]
    top = _STRIP_TOP + place // 3 * _PICTURE_STEP[1]
    canvas.draw_picture((left, top), pixels, _PICTURE)
    foot = (left + _PICTURE / 2, top + _PICTURE - 12)
    _draw_steering_arrow(canvas, foot, truth, _GREEN, width=8)
    # On top and thinner, so that two that agree both show.
    _draw_steering_arrow(canvas, foot, predicted, _ORANGE, width=4)
    canvas.draw_text((left + 2, top + _PICTURE + 16), f"{truth:+.2f}", 15, _GREEN, anchor="lm")
    canvas.draw_text((left + _PICTURE - 2, top + _PICTURE + 16), f"{predicted:+.2f}", 15, _ORANGE, anchor="rm")


def _draw_steering_arrow(canvas: _ChartCanvas, foot: Point, angle: float, colour: Colour, *, width: float) -> None:
    """An arc that leaves `foot` straight up and bends by up to 80 degrees."""
    path = _compute_arc_points(foot, math.radians(80) * max(-1.0, min(1.0, angle)), length=84)
    (x0, y0), (x1, y1) = path[-2:]
    along = math.atan2(y1 - y0, x1 - x0)
    head = [
        (x1 + width * reach * math.cos(along + turn), y1 + width * reach * math.sin(along + turn))
        for reach, turn in ((2.2, 0.0), (1.5, 2.1), (1.5, -2.1))
    ]
    canvas.draw_line(path, colour, width)
    canvas.draw_dot(foot, width / 2, colour)
    canvas.draw_polygon(head, colour)


def _compute_arc_points(foot: Point, bend: float, length: float) -> list[Point]:
    """Points of an arc of `length` pixels that turns by `bend` radians to the right on its way up."""
    steps = 24
    points = [foot]
    for step in range(steps):
        heading = bend * (step + 0.5) / steps
        x, y = points[-1]
        points.append((x + length / steps * math.sin(heading), y - length / steps * math.cos(heading)))
    return points


if __name__ == "__main__":
    main()
