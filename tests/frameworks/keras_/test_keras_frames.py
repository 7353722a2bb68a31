"""What is read from the frames of a running `fit`, and not after it has ended."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from streamd.frameworks.keras import load_keras

pytestmark = pytest.mark.train

X = np.zeros((12, 1), np.float32)


def fit(callback: Any, *more: Any, **how: Any) -> None:
    keras = load_keras()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, X, batch_size=1, verbose=0, callbacks=[callback, *more], **how)


def callback(**turns: Any) -> Any:
    return load_keras().callbacks.LambdaCallback(**turns)


def test_a_fit_runs_until_it_returns_or_fails() -> None:
    from streamd.frameworks.keras.calls import is_callback_in_running_fit  # noqa: PLC0415 - imports Keras, which takes long

    seen: list[bool] = []
    mine, other = callback(), callback()
    fit(mine, callback(on_epoch_end=lambda *_: seen.append(is_callback_in_running_fit(weakref.ref(mine)))))
    fit(callback(on_epoch_end=lambda *_: seen.append(is_callback_in_running_fit(weakref.ref(other)))))
    assert seen == [True, False]
    assert not is_callback_in_running_fit(weakref.ref(mine))
    with pytest.raises(ZeroDivisionError) as failed:
        fit(mine, callback(on_epoch_end=lambda *_: 1 / 0))
    assert failed.traceback
    assert not is_callback_in_running_fit(weakref.ref(mine))


def test_a_collected_callback_is_in_no_running_fit() -> None:
    from streamd.frameworks.keras.calls import is_callback_in_running_fit  # noqa: PLC0415 - as above

    gone = callback()
    reference = weakref.ref(gone)
    del gone
    gc.collect()
    assert not is_callback_in_running_fit(reference)


@pytest.mark.parametrize("how", [{}, {"steps_per_epoch": 12}])
def test_the_next_epoch_and_its_progress_bar_have_the_steps_that_were_set(how: dict[str, int]) -> None:
    from streamd.frameworks.keras.calls import set_keras_epoch_steps  # noqa: PLC0415 - as above

    bar, seen = load_keras().callbacks.ProgbarLogger(), list[tuple[int, int]]()
    lengths = iter([3, 12])

    def end(*_: Any) -> None:
        seen.append((bar.seen, bar.target))
        set_keras_epoch_steps(next(lengths, 12))

    fit(
        bar, callback(on_train_begin=lambda *_: set_keras_epoch_steps(next(lengths)), on_epoch_end=end), epochs=3, **how
    )
    assert seen == [(3, 3), (12, 12), (12, 12)]
