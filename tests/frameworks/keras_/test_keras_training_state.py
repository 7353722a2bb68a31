"""All that a model is made of, taken and put back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamd.errors import ConfigError
from streamd.frameworks.keras import load_keras
from streamd.frameworks.plain_data import DataPacker

pytestmark = pytest.mark.train

X, Y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
EXAMPLE = (X, Y)


def make_model(width: int = 2, optimizer: Any = "adam", metrics: tuple[str, ...] = ("mae",)) -> Any:
    """Unbuilt, as models without an Input are before their first step."""
    layers = load_keras().layers
    model = load_keras().Sequential([layers.Dense(width), layers.Dropout(0.5), layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=list(metrics))
    return model


def trained(**changes: Any) -> Any:
    model = make_model(**changes)
    model.fit(X, Y, epochs=2, verbose=0)
    return model


def all_values(model: Any) -> list[Any]:
    return [each.numpy() for each in (*model.variables, *model.optimizer.variables, *model.metrics_variables)]


def taken(model: Any) -> tuple[dict[str, Any], list[Any]]:
    from streamd.frameworks.keras.training_state import pack_variables  # noqa: PLC0415 - imports Keras

    packer = DataPacker(load_keras().ops)
    return pack_variables(model, packer), packer.arrays


def put_back(model: Any, state: dict[str, Any], arrays: list[Any]) -> None:
    from streamd.frameworks.keras.training_state import create_model_variables, restore_variables  # noqa: PLC0415 - as above

    create_model_variables(model, EXAMPLE)
    restore_variables(model, state, arrays, "run/step-0000004")


def assert_equal(model: Any, other: Any) -> None:
    for value, original in zip(all_values(model), all_values(other), strict=True):
        np.testing.assert_array_equal(value, original)


@pytest.fixture(scope="module")
def state() -> tuple[dict[str, Any], list[Any]]:
    """Of a model that was trained for two steps."""
    return taken(trained())


def test_a_model_that_was_never_called_gets_every_variable_and_goes_on_alike() -> None:
    model, fresh = trained(), make_model()
    put_back(fresh, *taken(model))
    assert len(all_values(fresh)) == 4 + 1 + 2 + 2 * 4 + 2 * 2  # weights, seed, iterations and rate, moments, metrics
    assert_equal(fresh, model)
    before = taken(model)
    for each in (model, fresh):
        put_back(each, *before)  # on torch, both draw from the same generator
        each.fit(X, Y, epochs=2, verbose=0)
    assert_equal(fresh, model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 5}, r"another model; build it as it was, .*kernel is float32 \[3, 2\] where .* \[3, 5\] now"),
        ({"optimizer": "sgd"}, "another optimizer's state; compile with that of then, .*: it is of Adam, not of SGD"),
        ({"metrics": ()}, "other metrics; compile with those of then, .*: it has 4 variables where there are 2 now"),
    ],
)
def test_another_model_is_refused_and_left_as_it_is(state: Any, changes: dict[str, Any], message: str) -> None:
    other = make_model(**changes)
    with pytest.raises(ConfigError, match=f"run/step-0000004 holds {message}"):
        put_back(other, *state)
    assert int(other.optimizer.iterations) == 0


def test_an_optimizer_made_otherwise_is_refused(state: Any) -> None:
    optimizer = load_keras().optimizers.Adam(amsgrad=True)
    with pytest.raises(ConfigError, match=r"it has 10 variables where there are 14 now"):
        put_back(make_model(optimizer=optimizer), *state)


@pytest.mark.parametrize("error", [None, NotImplementedError, AttributeError])
def test_a_schedule_of_ones_own_is_described_alike_in_each_process(error: type[Exception] | None) -> None:
    from streamd.frameworks.keras.training_state import describe_learning_rate  # noqa: PLC0415 - imports Keras

    keras = load_keras()

    class Halving(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc, name-defined]  # Keras has no types
        def __call__(self, step: Any) -> Any:
            return 0.5**step

        def get_config(self) -> dict[str, Any]:
            if error:
                raise error
            return {"of": object()}

    said = "Halving" if error else "Halving of {'of': <object object>}"
    assert describe_learning_rate(keras.optimizers.SGD(Halving())) == said
