"""The chart of the demo: its scores, and the marks that it draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.cli import demo

TRUTH = np.array([-0.5, 0.0, 0.25, 0.75])
GREEN, ORANGE, PURPLE = (38, 190, 96), (255, 136, 28), (110, 10, 130)
PURPLE_ROAD = np.full((128, 128, 3), PURPLE, dtype=np.uint8)


def draw(path: Path, truth: demo.Angles = TRUTH, examples: int = 0) -> npt.NDArray[np.int16]:
    """The chart's pixels; each example steers right, and the model left."""
    demo.draw_chart(truth, truth[::-1], [(PURPLE_ROAD, 0.9, -0.9)] * examples, "caption", path / "chart.png")
    with Image.open(path / "chart.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (1200, 640))
        return np.asarray(picture.convert("RGB")).astype(np.int16)


def places(pixels: npt.NDArray[np.int16], colour: tuple[int, int, int]) -> npt.NDArray[np.int64]:
    """Where (row, column) a colour is."""
    return np.argwhere(np.abs(pixels - np.array(colour)).max(axis=2) < 12)


def test_perfect_predictions_score_one_and_no_error() -> None:
    assert demo.compute_scores(TRUTH, TRUTH) == demo.PredictionScores(samples=4, r2=1.0, mae=0.0, mean_mae=0.375)


def test_predicting_the_mean_scores_zero_and_the_error_of_the_mean() -> None:
    scores = demo.compute_scores(TRUTH, np.full(4, 0.125))
    assert scores.r2 == pytest.approx(0.0)
    assert scores.mae == scores.mean_mae == 0.375


def test_the_caption_names_every_score() -> None:
    line = demo.format_scores(demo.PredictionScores(samples=512, r2=0.93, mae=0.071, mean_mae=0.334))
    facts = ["R² 0.930", "MAE 0.071", "predicting the mean would give MAE 0.334", "512 samples"]
    assert line.split("   ·   ") == facts


def test_every_prediction_is_a_dot(tmp_path: Path) -> None:
    few, many = draw(tmp_path), draw(tmp_path, np.linspace(-0.5, 0.75, 400))
    blue = [int((pixels[:, :, 2] - pixels[:, :, 0] > 60).sum()) for pixels in (few, many)]
    assert blue[1] > 10 * blue[0] > 0


def test_each_example_shows_an_arrow_for_the_truth_and_one_for_the_prediction(tmp_path: Path) -> None:
    picture = draw(tmp_path, examples=1)
    road = places(picture, PURPLE)
    (top, left), (bottom, right) = road.min(axis=0), road.max(axis=0)
    truth, predicted = (places(picture[top:bottom, left:right], colour) for colour in (GREEN, ORANGE))
    assert len(truth) > len(predicted) > 100
    assert predicted[:, 1].mean() < (right - left) / 2 < truth[:, 1].mean()


@pytest.mark.long
def test_at_most_six_examples_are_drawn_and_none_are_required(tmp_path: Path) -> None:
    none, six, nine = (draw(tmp_path, examples=count) for count in (0, 6, 9))
    np.testing.assert_array_equal(six, nine)
    assert len(places(none, PURPLE)) == 0 < len(places(six, PURPLE))
