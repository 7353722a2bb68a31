"""Random generators that go on where they were."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamd.frameworks.keras import generators
from streamd.frameworks.plain_data import Packer, unpack


def draw() -> list[float]:
    return [random.random(), random.gauss(), *np.random.rand(2), np.random.randn()]  # noqa: NPY002, S311 - what is kept


def through_packing(states: dict[str, Any]) -> Any:
    packer = Packer(None)
    return unpack(packer.pack(states), packer.arrays, None)


def test_what_is_drawn_next_is_drawn_again() -> None:
    states = through_packing(generators.take())
    drawn = draw()
    assert draw() != drawn
    generators.put_back(states)
    assert draw() == drawn


def test_torch_takes_part_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [np.array([1, 2], np.uint8)]
    torch = SimpleNamespace(
        get_rng_state=lambda: SimpleNamespace(numpy=lambda: held[-1]), from_numpy=list, set_rng_state=held.append
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    states = through_packing(generators.take())
    generators.put_back(states)
    assert held[-1] == [1, 2]
    monkeypatch.delitem(sys.modules, "torch")
    generators.put_back(states)
    assert len(held) == 2
