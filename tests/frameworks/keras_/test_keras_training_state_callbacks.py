"""What other callbacks have learned, kept and given back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd.frameworks.keras import load_keras
from streamd.frameworks.plain_data import DataPacker

pytestmark = pytest.mark.train


class Own:
    """A user's callback."""

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit
        self.seen = 0
        self.names: dict[str, int] = {}
        self.socket: object = None
        self.decide = lambda: limit


def kept(callbacks: list[Any], said: list[str]) -> Any:
    from streamd.frameworks.keras.training_state import OtherCallbacks  # noqa: PLC0415 - imports Keras

    return OtherCallbacks(callbacks, said.append)


def moved(from_: Any, to: Any) -> list[Any]:
    """Takes a state and puts it back elsewhere, through JSON."""
    packer = DataPacker(load_keras().ops)
    state = json.loads(json.dumps(from_.pack_callback_states(packer)))
    to.restore_callback_states(state, packer.arrays)
    return list(state)


def test_what_changed_comes_back_and_what_the_program_says_stays() -> None:
    said: list[str] = []
    before, after = Own(), Own(limit=7)
    old, new = kept([before], said), kept([after], said)
    before.seen, before.names["a"] = 5, 1
    moved(old, new)
    assert (after.seen, after.names, after.limit) == (5, {"a": 1}, 7)
    assert said == []


def test_what_cannot_be_kept_is_told_of_once_by_name() -> None:
    said: list[str] = []
    own = Own()
    old = kept([own], said)
    own.seen, own.socket = 1, object()
    for _ in range(2):
        old.pack_callback_states(DataPacker(load_keras().ops))
    assert said == [
        "Own.socket is of type object and cannot be kept: after a restart this callback begins anew with it"
    ]


def test_callbacks_of_a_kind_are_told_apart_by_their_order_and_others_are_left_alone() -> None:
    first, second, third = Own(), Own(), Own()
    old = kept([first, second], [])
    first.seen, second.seen = 1, 2
    again, other = Own(), load_keras().callbacks.TerminateOnNaN()
    moved(old, kept([other, again, third], []))
    assert (again.seen, third.seen) == (1, 2)


def test_a_plateau_that_was_reached_knows_its_direction_again() -> None:
    plateau = load_keras().callbacks.ReduceLROnPlateau
    before, after = (plateau(monitor="loss", min_delta=0.5) for _ in range(2))
    old, new = kept([before], []), kept([after], [])
    before._set_monitor_op()
    before.best, before.wait = 0.25, 4
    moved(old, new)
    assert after.monitor_op is before.monitor_op
    assert (after.best, after.wait, after.min_delta) == (0.25, 4, -0.5)


def test_keras_own_business_is_not_told_of() -> None:
    said: list[str] = []
    log = load_keras().callbacks.CSVLogger("unused.csv")
    old = kept([log, load_keras().callbacks.ProgbarLogger()], said)
    log.writer = object()
    assert old.pack_callback_states(DataPacker(load_keras().ops)) == [["keras.src.callbacks.csv_logger.CSVLogger", {}]]
    assert said == []
