"""Saving and restoring a training: model variables, other callbacks, and random generators."""

from __future__ import annotations

import json
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamd.errors import ConfigError
from streamd.frameworks.keras import load_keras
from streamd.frameworks.keras.resume import DataPacker, unpack_value

pytestmark = pytest.mark.train

X, Y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
EXAMPLE = (X, Y)


def module() -> ModuleType:
    load_keras()
    from streamd.frameworks.keras import resume  # noqa: PLC0415 - imports Keras

    return resume


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
    packer = DataPacker(load_keras().ops)
    return module().pack_variables(model, packer), packer.arrays


def put_back(model: Any, state: dict[str, Any], arrays: list[Any]) -> None:
    model._symbolic_build(data_batch=EXAMPLE)
    module().restore_variables(model, state, arrays, "run/step-0000004")


def assert_equal(model: Any, other: Any) -> None:
    for value, original in zip(all_values(model), all_values(other), strict=True):
        np.testing.assert_array_equal(value, original)


@pytest.fixture(scope="module")
def state() -> tuple[dict[str, Any], list[Any]]:
    """Of a model that was trained for two steps."""
    return taken(trained())


def test_an_unbuilt_model_gets_every_variable_and_trains_the_same() -> None:
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
        (
            {"width": 5},
            (
                r"the state of another model; build the model as it was, .*kernel was float32 \[3, 2\], "
                r"but .* \[3, 5\] now"
            ),
        ),
        (
            {"optimizer": "sgd"},
            (
                "the state of another optimizer; compile with the optimizer of that run, .*: it was saved from Adam, "
                "but the model has SGD"
            ),
        ),
        (
            {"metrics": ()},
            "other metrics; compile with the metrics of that run, .*: it has 4 variables, but there are 2 now",
        ),
    ],
)
def test_another_model_is_refused_and_not_changed(state: Any, changes: dict[str, Any], message: str) -> None:
    other = make_model(**changes)
    with pytest.raises(ConfigError, match=f"run/step-0000004 holds {message}"):
        put_back(other, *state)
    assert int(other.optimizer.iterations) == 0


def test_an_optimizer_with_other_settings_is_refused(state: Any) -> None:
    optimizer = load_keras().optimizers.Adam(amsgrad=True)
    with pytest.raises(ConfigError, match=r"it has 10 variables, but there are 14 now"):
        put_back(make_model(optimizer=optimizer), *state)


@pytest.mark.parametrize("error", [None, NotImplementedError, AttributeError])
def test_a_users_own_schedule_is_described_the_same_in_each_process(error: type[Exception] | None) -> None:
    keras = load_keras()

    class Halving(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc, name-defined]  # Keras has no types
        def __call__(self, step: Any) -> Any:
            return 0.5**step

        def get_config(self) -> dict[str, Any]:
            if error:
                raise error
            return {"of": object()}

    said = "Halving" if error else "Halving of {'of': <object object>}"
    assert module().describe_learning_rate(keras.optimizers.SGD(Halving())) == said


# --- other callbacks


class Own:
    """A user's callback."""

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit
        self.seen = 0
        self.names: dict[str, int] = {}
        self.socket: object = None
        self.decide = lambda: limit


def kept(callbacks: list[Any], said: list[str]) -> Any:
    return module().OtherCallbacks(callbacks, said.append)


def moved(from_: Any, to: Any) -> list[Any]:
    """Takes a state and puts it back elsewhere, through JSON."""
    packer = DataPacker(load_keras().ops)
    state = json.loads(json.dumps(from_.pack_callback_states(packer)))
    to.restore_callback_states(state, packer.arrays)
    return list(state)


def test_changed_callback_attributes_are_restored_and_others_keep_the_programs_values() -> None:
    said: list[str] = []
    before, after = Own(), Own(limit=7)
    old, new = kept([before], said), kept([after], said)
    before.seen, before.names["a"] = 5, 1
    moved(old, new)
    assert (after.seen, after.names, after.limit) == (5, {"a": 1}, 7)
    assert said == []


def test_a_callback_attribute_that_cannot_be_kept_is_named_once() -> None:
    said: list[str] = []
    own = Own()
    old = kept([own], said)
    own.seen, own.socket = 1, object()
    for _ in range(2):
        old.pack_callback_states(DataPacker(load_keras().ops))
    assert said == [
        "Own.socket is of type object and cannot be kept: after a restart this callback starts without its saved value"
    ]


def test_callbacks_of_one_class_are_matched_by_their_order() -> None:
    first, second, third = Own(), Own(), Own()
    old = kept([first, second], [])
    first.seen, second.seen = 1, 2
    again, other = Own(), load_keras().callbacks.TerminateOnNaN()
    moved(old, kept([other, again, third], []))
    assert (again.seen, third.seen) == (1, 2)


def test_a_restored_reduce_lr_callback_keeps_its_direction() -> None:
    plateau = load_keras().callbacks.ReduceLROnPlateau
    before, after = (plateau(monitor="loss", min_delta=0.5) for _ in range(2))
    old, new = kept([before], []), kept([after], [])
    before._set_monitor_op()
    before.best, before.wait = 0.25, 4
    moved(old, new)
    assert after.monitor_op is before.monitor_op
    assert (after.best, after.wait, after.min_delta) == (0.25, 4, -0.5)


def test_changed_attributes_of_keras_callbacks_are_not_reported() -> None:
    said: list[str] = []
    log = load_keras().callbacks.CSVLogger("unused.csv")
    old = kept([log, load_keras().callbacks.ProgbarLogger()], said)
    log.writer = object()
    assert old.pack_callback_states(DataPacker(load_keras().ops)) == [["keras.src.callbacks.csv_logger.CSVLogger", {}]]
    assert said == []


# --- random generators


def draw() -> list[float]:
    return [random.random(), random.gauss(), *np.random.rand(2), np.random.randn()]  # noqa: NPY002, S311 - what is kept


def through_packing(states: dict[str, Any]) -> Any:
    packer = DataPacker(None)
    return unpack_value(packer.pack_value(states), packer.arrays, None)


def test_restored_generators_draw_the_same_numbers() -> None:
    states = through_packing(module().collect_generator_states())
    drawn = draw()
    assert draw() != drawn
    module().restore_generator_states(states)
    assert draw() == drawn


def test_the_torch_generator_is_kept_where_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [np.array([1, 2], np.uint8)]
    torch = SimpleNamespace(
        get_rng_state=lambda: SimpleNamespace(numpy=lambda: held[-1]), from_numpy=list, set_rng_state=held.append
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    states = through_packing(module().collect_generator_states())
    module().restore_generator_states(states)
    assert held[-1] == [1, 2]
    monkeypatch.delitem(sys.modules, "torch")
    module().restore_generator_states(states)
    assert len(held) == 2
