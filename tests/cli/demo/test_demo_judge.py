"""The chart: its arithmetic, and that what matters is really drawn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.cli.demo import judge
from streamd.errors import ConfigError

TRUTH = [-0.5, 0.0, 0.25, 0.75]
GREEN, ORANGE, PURPLE = (38, 190, 96), (255, 136, 28), (110, 10, 130)
PURPLE_ROAD = np.full((128, 128, 3), PURPLE, dtype=np.uint8)


def drawn(path: Path) -> npt.NDArray[np.int16]:
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("PNG", (1200, 640))
        return np.asarray(picture.convert("RGB")).astype(np.int16)


def places(pixels: npt.NDArray[np.int16], colour: tuple[int, int, int]) -> npt.NDArray[np.int64]:
    """Where (row, column) a colour is."""
    return np.argwhere(np.abs(pixels - np.array(colour)).max(axis=2) < 12)


def test_perfect_predictions_score_one_and_no_error() -> None:
    assert judge.compute_scores(TRUTH, TRUTH) == judge.PredictionScores(samples=4, r2=1.0, mae=0.0, mean_mae=0.375)


def test_predicting_the_mean_scores_zero_and_the_error_of_the_mean() -> None:
    scores = judge.compute_scores(TRUTH, [0.125] * 4)
    assert scores.r2 == pytest.approx(0.0)
    assert scores.mae == scores.mean_mae == 0.375


def test_a_column_of_predictions_counts_like_a_row() -> None:
    assert judge.compute_scores(TRUTH, np.array(TRUTH)[:, None]).r2 == 1.0


def test_equal_truths_leave_r2_undefined_and_the_caption_says_so() -> None:
    scores = judge.compute_scores([0.5, 0.5], [0.4, 0.6])
    assert math.isnan(scores.r2)
    assert "undefined" in judge.format_scores(scores)


def test_the_caption_names_every_score() -> None:
    line = judge.format_scores(judge.PredictionScores(samples=512, r2=0.93, mae=0.071, mean_mae=0.334))
    assert "R² 0.930" in line
    assert "MAE 0.071" in line
    assert "predicting the mean would give MAE 0.334" in line
    assert "512 samples" in line


@pytest.mark.parametrize("predicted", [[0.1], []])
def test_predictions_that_do_not_pair_up_are_refused(predicted: list[float]) -> None:
    with pytest.raises(ConfigError, match=f"{len(predicted)} for 4"):
        judge.compute_scores(TRUTH, predicted)


def test_no_numbers_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 for 0"):
        judge.compute_scores([], [])


def test_a_diverged_model_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match="2 of 4 numbers in predicted are not finite"):
        judge.compute_scores(TRUTH, [0.0, math.nan, math.inf, 0.0])


def test_every_prediction_is_a_dot_and_the_scores_stand_below(tmp_path: Path) -> None:
    few, many = tmp_path / "few.png", tmp_path / "many.png"
    judge.draw_scatter_chart(TRUTH, TRUTH, few, title="angle")
    spread = np.linspace(-0.5, 0.75, 400)
    judge.draw_scatter_chart(spread, spread[::-1], many, title="angle")
    blue = [int((drawn(path)[:, :, 2] - drawn(path)[:, :, 0] > 60).sum()) for path in (few, many)]
    assert blue[1] > 10 * blue[0] > 0


def test_examples_show_both_arrows_on_their_sides(tmp_path: Path) -> None:
    judge.draw_scatter_chart(TRUTH, TRUTH, tmp_path / "chart.png", title="angle", examples=[(PURPLE_ROAD, 0.9, -0.9)])
    picture = drawn(tmp_path / "chart.png")
    road = places(picture, PURPLE)
    (top, left), (bottom, right) = road.min(axis=0), road.max(axis=0)
    truth, predicted = (places(picture[top:bottom, left:right], colour) for colour in (GREEN, ORANGE))
    middle = (right - left) / 2
    assert len(truth) > len(predicted) > 100
    assert predicted[:, 1].mean() < middle < truth[:, 1].mean()
    # It leaves straight up and bends: its lower half is nearer to the middle than a straight arrow's.
    lower = truth[truth[:, 0] > truth[:, 0].mean()]
    assert (lower[:, 1].mean() - middle) < (truth[:, 1].mean() - middle) / 2


def test_at_most_six_examples_are_drawn_and_none_is_needed(tmp_path: Path) -> None:
    pictures = []
    for count in (0, 6, 9):
        examples = [(PURPLE_ROAD, 0.0, 0.0)] * count
        judge.draw_scatter_chart(TRUTH, TRUTH, tmp_path / "chart.png", title="angle", examples=examples)
        pictures.append(drawn(tmp_path / "chart.png"))
    none, six, nine = pictures
    np.testing.assert_array_equal(six, nine)
    assert len(places(none, PURPLE)) == 0 < len(places(six, PURPLE))


def test_a_chart_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        judge.draw_scatter_chart(TRUTH, TRUTH, tmp_path / "nowhere" / "chart.png", title="angle")
