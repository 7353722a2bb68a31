"""The options of `streamd-train`, checked before Keras is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.cli.train.run import TrainingOptions, get_curves_path
from streamd.errors import ConfigError


def test_a_job_that_cannot_be_saved_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ending in \.keras, not model\.h5"):
        TrainingOptions("train", 1, Path("model.h5"))
    with pytest.raises(ConfigError, match="there is no folder"):
        TrainingOptions("train", 1, tmp_path / "none" / "model.keras")
    with pytest.raises(ConfigError, match="epochs must be at least 1, not 0"):
        TrainingOptions("train", 0, tmp_path / "model.keras")


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_that_is_not_a_number_above_0_is_refused(tmp_path: Path, rate: float) -> None:
    with pytest.raises(ConfigError, match=r"the learning rate must be a number above 0, such as 0\.001, not"):
        TrainingOptions("train", 1, tmp_path / "model.keras", learning_rate=rate)


def test_the_curves_are_saved_beside_the_model() -> None:
    assert get_curves_path(Path("a/my.model.keras")) == Path("a/my.model.curves.png")
