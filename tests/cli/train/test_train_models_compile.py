"""Which loss, optimizer and precision a model learns with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.cli.train.models import choose_builder, choose_optimizer, compile_model
from streamd.core.spec import LabelSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras import fit_data, load_keras

TAGS = LabelSpec("tags", "tags", width=3, classes=("a", "b", "c"), counts=(1, 2, 3))


class Compiled:
    """Stands where a model does, and keeps what it is compiled with."""

    def __init__(self) -> None:
        self.how: tuple[Any, ...] = ()

    def compile(self, optimizer: Any, loss: Any, *, weighted_metrics: list[str]) -> None:
        self.how = (optimizer, loss.name, weighted_metrics)


@pytest.mark.train
@pytest.mark.parametrize(
    ("label", "loss", "metric"),
    [
        (KIND, "sparse_categorical_crossentropy", "accuracy"),
        (TAGS, "binary_crossentropy", "binary_accuracy"),
        (ANGLE, "mean_squared_error", "mae"),
        (replace(ANGLE, width=4), "mean_squared_error", "mae"),
        (LabelSpec("age", "int"), "mean_squared_error", "mae"),
    ],
)
def test_the_label_tells_the_loss_and_the_metric_heeds_weights(label: LabelSpec, loss: str, metric: str) -> None:
    model = Compiled()
    compile_model(model, label, "sgd")
    assert model.how == ("sgd", loss, [metric])


@pytest.mark.train
@pytest.mark.parametrize("label", [KIND, TAGS, ANGLE, replace(ANGLE, width=4)])
def test_the_built_in_network_learns_a_label_of_any_shape_from_weighted_samples(label: LabelSpec) -> None:
    model = choose_builder(label, None)(make_spec(label))
    compile_model(model, label)
    images = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    values = np.ones((4, label.width) if label.width else 4, dtype=label.dtype)
    loss, metric = model.train_on_batch(images, values, sample_weight=np.array([1, 1, 1, 0], np.float32))
    assert np.isfinite([loss, metric]).all()


@pytest.mark.train
@pytest.mark.parametrize("changes", [{"bad_policy": "mask"}, {"remainder": "pad"}])
@pytest.mark.parametrize("label", [KIND, ANGLE])
def test_the_loss_of_a_batch_is_the_mean_of_the_rows_that_have_a_weight(
    label: LabelSpec, changes: dict[str, Any]
) -> None:
    stream = FakeStream(make_spec(label, samples=4, batches=1, **changes), weightless=frozenset({1, 2}))
    model = choose_builder(label, None)(stream.spec)
    compile_model(model, label)
    found = model.evaluate(fit_data(stream), verbose=0)[0]
    ((images, values, weights),) = fit_data(stream)
    kept = np.asarray(weights) > 0
    wanted = model.test_on_batch(np.asarray(images)[kept], np.asarray(values)[kept])[0]
    assert kept.sum() == 2
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.train
def test_an_optimizer_is_found_by_its_name_in_any_case_and_takes_the_rate() -> None:
    optimizers = load_keras().optimizers
    assert type(choose_optimizer(None, None)) is optimizers.Adam
    assert type(choose_optimizer("AdamW", None)) is optimizers.AdamW
    assert float(choose_optimizer("sgd", 0.25).learning_rate) == 0.25


@pytest.mark.train
def test_an_unknown_optimizer_is_refused_with_the_near_name_and_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no optimizer 'addam'; did you mean 'adam'.*; it has .*adam, .*sgd"):
        choose_optimizer("addam", 0.1)
    with pytest.raises(ConfigError, match="no optimizer 'LossScaleOptimizer'"):
        choose_optimizer("LossScaleOptimizer", None)
