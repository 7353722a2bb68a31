"""The options of `streamd-train`, checked before Keras is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.stream_fake import ANGLE, KIND, make_spec

from streamd.cli.train.options import TrainingOptions, check_streams_match, choose_label, get_curves_path
from streamd.core.spec import ImageSpec, LabelSpec
from streamd.errors import ConfigError


def test_several_labels_require_a_choice() -> None:
    with pytest.raises(ConfigError, match="has the labels angle, kind: choose one with --label"):
        choose_label(make_spec(ANGLE, KIND), None)
    assert choose_label(make_spec(ANGLE, KIND), "kind") is KIND


def test_no_label_or_a_wrong_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to learn"):
        choose_label(make_spec(), None)
    with pytest.raises(ConfigError, match="did you mean 'angle'"):
        choose_label(make_spec(ANGLE), "angel")


def test_a_validation_that_differs_is_refused() -> None:
    train_spec = make_spec(KIND)
    with pytest.raises(ConfigError, match="give both streams the same  image:"):
        check_streams_match(train_spec, replace(train_spec, images={"image": ImageSpec(9, 9, 3)}), KIND)
    with pytest.raises(ConfigError, match="differ in type or classes"):
        check_streams_match(train_spec, make_spec(replace(KIND, classes=("car", "cat"))), KIND)
    with pytest.raises(ConfigError, match="no label 'kind'"):
        check_streams_match(train_spec, make_spec(ANGLE), KIND)


def test_a_text_label_cannot_be_learned() -> None:
    text = LabelSpec("caption", "string", text_bytes=9)
    assert choose_label(make_spec(text, KIND), None) is KIND
    with pytest.raises(ConfigError, match="has no labels but text"):
        choose_label(make_spec(text), None)
    with pytest.raises(ConfigError, match="'caption' is text, which cannot be learned: serve it as type category"):
        choose_label(make_spec(text), "caption")


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
