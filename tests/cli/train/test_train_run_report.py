"""The curves of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamd.cli.train import run
from streamd.cli.train.run import draw_curves, group_curves_by_metric

HISTORY = {"mae": [3.0, 2.0], "loss": [1.0, 0.5], "val_loss": [1.5, 1.0], "val_mae": [2.5, 2.0], "val_only": [1.0, 2.0]}


def test_a_metric_is_drawn_with_its_validation_and_the_loss_comes_first() -> None:
    assert list(group_curves_by_metric(HISTORY)) == ["loss", "mae", "only"]
    assert group_curves_by_metric(HISTORY)["loss"] == {"training": [1.0, 0.5], "validation": [1.5, 1.0]}
    assert group_curves_by_metric(HISTORY)["only"] == {"validation": [1.0, 2.0]}


def test_a_history_without_a_loss_has_no_panel_for_it() -> None:
    assert group_curves_by_metric({"mae": [1.0]}) == {"mae": {"training": [1.0]}}


@pytest.mark.train
def test_every_number_is_on_the_picture_by_its_epoch_counted_from_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    figure = run.load_matplotlib_figure().Figure

    def keep(**how: Any) -> Any:
        made.append(figure(**how))
        return made[-1]

    monkeypatch.setattr(run.load_matplotlib_figure(), "Figure", keep)
    draw_curves(HISTORY, tmp_path / "model.curves.png")
    assert (tmp_path / "model.curves.png").read_bytes().startswith(b"\x89PNG")
    lines = {
        (axes.get_title(), line.get_label()): line.get_xydata().tolist() for axes in made[0].axes for line in axes.lines
    }
    assert lines["loss", "validation"] == [[1, 1.5], [2, 1.0]]
    assert {title for title, _ in lines} == {"loss", "mae", "only"}
    assert len(lines) == len(HISTORY)
