"""The chart: its arithmetic, and that what matters is really drawn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from streamd.cli.demo import judge
from streamd.errors import ConfigError

TRUTH = [-0.5, 0.0, 0.25, 0.75]
GREY_ROAD = np.full((128, 128, 3), 90, dtype=np.uint8)


def drawn(path: Path) -> npt.NDArray[np.int16]:
    with Image.open(path) as picture:
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (1200, 640))
        return np.asarray(picture).astype(np.int16)


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


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_are_few_rising_distinct_numbers_around_the_range(low: float, span: float) -> None:
    marks = judge.compute_axis_ticks(low, low + span)
    slack = 1e-6 * (marks[-1] - marks[0])
    assert 2 <= len(marks) <= 8
    assert marks == sorted(marks)
    assert len({f"{mark:g}" for mark in marks}) == len(marks)
    assert marks[0] <= low + slack
    assert marks[-1] >= low + span - slack


def test_ticks_of_steering_angles_are_halves() -> None:
    assert judge.compute_axis_ticks(-0.83, 0.91) == [-1.0, -0.5, 0.0, 0.5, 1.0]


def test_dots_lie_on_the_diagonal_when_predictions_are_right(tmp_path: Path) -> None:
    judge.draw_scatter_chart(TRUTH, TRUTH, tmp_path / "chart.png", title="angle")
    left, _, _, bottom = judge._PLOT
    pixels = drawn(tmp_path / "chart.png")
    dots = np.argwhere(pixels[:, :, 2] - pixels[:, :, 0] > 60)
    assert len(dots) > 40
    assert np.abs((bottom - dots[:, 0]) - (dots[:, 1] - left)).max() < 8


def test_examples_show_both_arrows_on_their_sides(tmp_path: Path) -> None:
    example = (GREY_ROAD, 0.9, -0.9)
    judge.draw_scatter_chart(TRUTH, TRUTH, tmp_path / "chart.png", title="angle", examples=[example])
    picture = drawn(tmp_path / "chart.png")[88:268, 590:770]
    truth, predicted = places(picture, judge._GREEN), places(picture, judge._ORANGE)
    assert len(truth) > 100
    assert len(predicted) > 100
    assert truth[:, 1].mean() > 100
    assert predicted[:, 1].mean() < 80


def test_at_most_six_examples_are_drawn_and_none_is_needed(tmp_path: Path) -> None:
    example = (GREY_ROAD, 0.0, 0.0)
    pictures = []
    for count in (0, 6, 9):
        judge.draw_scatter_chart(TRUTH, TRUTH, tmp_path / "chart.png", title="angle", examples=[example] * count)
        pictures.append(drawn(tmp_path / "chart.png"))
    none, six, nine = pictures
    np.testing.assert_array_equal(six, nine)
    assert (none[60:580, 590:] >= 254).all()
    for left in (590, 780, 970):
        for top in (88, 324):
            assert tuple(six[top + 20, left + 20]) == (90, 90, 90)


def test_many_dots_are_lighter_than_few(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(-1, 1, 5000)
    judge.draw_scatter_chart(truth, truth + rng.normal(0, 0.1, 5000), tmp_path / "many.png", title="angle")
    assert len(places(drawn(tmp_path / "many.png"), _over_white(judge._DOT, 47))) > 100


def test_a_chart_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        judge.draw_scatter_chart(TRUTH, TRUTH, tmp_path / "nowhere" / "chart.png", title="angle")


def _over_white(colour: tuple[int, int, int], opacity: int) -> tuple[int, int, int]:
    red, green, blue = (round(255 + (part - 255) * opacity / 255) for part in colour)
    return red, green, blue
