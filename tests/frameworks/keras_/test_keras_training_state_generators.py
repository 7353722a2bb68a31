"""Random generators that go on where they were."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamd.frameworks.keras import load_keras
from streamd.frameworks.plain_data import DataPacker, unpack_value

pytestmark = pytest.mark.train


def take() -> dict[str, Any]:
    load_keras()
    from streamd.frameworks.keras.training_state import collect_generator_states  # noqa: PLC0415 - imports Keras

    return collect_generator_states()


def restore(states: dict[str, Any]) -> None:
    from streamd.frameworks.keras.training_state import restore_generator_states  # noqa: PLC0415 - as above

    restore_generator_states(states)


def draw() -> list[float]:
    return [random.random(), random.gauss(), *np.random.rand(2), np.random.randn()]  # noqa: NPY002, S311 - what is kept


def through_packing(states: dict[str, Any]) -> Any:
    packer = DataPacker(None)
    return unpack_value(packer.pack_value(states), packer.arrays, None)


def test_what_is_drawn_next_is_drawn_again() -> None:
    states = through_packing(take())
    drawn = draw()
    assert draw() != drawn
    restore(states)
    assert draw() == drawn


def test_torch_takes_part_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [np.array([1, 2], np.uint8)]
    torch = SimpleNamespace(
        get_rng_state=lambda: SimpleNamespace(numpy=lambda: held[-1]), from_numpy=list, set_rng_state=held.append
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    states = through_packing(take())
    restore(states)
    assert held[-1] == [1, 2]
    monkeypatch.delitem(sys.modules, "torch")
    restore(states)
    assert len(held) == 2
