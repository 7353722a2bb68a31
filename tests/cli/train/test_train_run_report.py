"""The lines at the end of a training, and its curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamd.cli.train import run
from streamd.cli.train.run import draw_curves, format_receipt, format_results, format_speed, group_curves_by_metric
from streamd.core.receipt import Receipt

HISTORY = {"mae": [3.0, 2.0], "loss": [1.0, 0.5], "val_loss": [1.5, 1.0], "val_mae": [2.5, 2.0], "val_only": [1.0, 2.0]}


def test_a_metric_is_drawn_with_its_validation_and_the_loss_comes_first() -> None:
    assert list(group_curves_by_metric(HISTORY)) == ["loss", "mae", "only"]
    assert group_curves_by_metric(HISTORY)["loss"] == {"training": [1.0, 0.5], "validation": [1.5, 1.0]}
    assert group_curves_by_metric(HISTORY)["only"] == {"validation": [1.0, 2.0]}


def test_a_history_without_a_loss_has_no_panel_for_it() -> None:
    assert group_curves_by_metric({"mae": [1.0]}) == {"mae": {"training": [1.0]}}


@pytest.mark.train
def test_the_curves_show_every_number_at_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


GOOD = Receipt("train", 3, 125, 4000, 0, 0, 0, 0, changed=False, complete=True, ok=True, digest="")


@pytest.mark.parametrize(
    ("receipt", "account"),
    [
        (GOOD, "missed 0, repeated 0, bad 0: ok"),
        (
            replace(GOOD, bad=2, dropped=5, changed=True, complete=False),
            "missed 0, repeated 0, bad 2, dropped 5, pixels changed since the token was made, stopped early: ok",
        ),
        (replace(GOOD, missed=1, ok=False), "missed 1, repeated 0, bad 0: NOT OK"),
        (replace(GOOD, ok=False), "missed 0, repeated 0, bad 0: NOT OK, the order differs from the daemon's"),
    ],
    ids=["a good epoch", "everything unusual", "a missed batch", "equal counts with unequal digests"],
)
def test_an_epoch_is_reported_in_one_line(receipt: Receipt, account: str) -> None:
    assert format_receipt(receipt) == f"epoch 3: 125 steps, 4,000 samples, {account}"


def test_the_speed_includes_the_wait_fraction() -> None:
    text = "3,000 samples in 2.0 s: 1,500 samples/s, 25% of the time waiting for batches"
    assert format_speed(3000, 2.0, 0.5) == text
    assert "0 samples/s" in format_speed(0, 0.0, 0.0)


def test_the_summary_of_the_last_epoch_includes_the_lowest_validation_loss() -> None:
    history = {"loss": [3.0, 0.123456, 0.2], "val_loss": [0.5, 0.4, 0.45], "val_mae": [1.0, 0.5, 2.0]}
    assert format_results(history) == "after 3 epochs: loss 0.2, val_loss 0.45 (lowest 0.4 after 2), val_mae 2"
    assert format_results({"val_loss": [1.0]}) == "after 1 epoch: val_loss 1"
