"""What the other callbacks of a `fit` have learned since it began: best values, patience used up, histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import keras

from streamd.frameworks.plain_data import Array, Look, Packer, UnkeptError, unpack

_KERAS_OWN: Final = frozenset({"_model", "params"})  # set in every callback by Keras


class OtherCallbacks:
    """The callbacks beside the one that saves, as they are when all of them have heard that the training begins.

    What changes from there on is their state; what does not is how they were made, and stays as the program says. The
    progress bar has none. What cannot be kept is told of once, unless it is Keras's own business, such as an open file.
    """

    def __init__(self, callbacks: Sequence[Any], say: Callable[[str], None]) -> None:
        self._callbacks = [each for each in callbacks if not isinstance(each, keras.callbacks.ProgbarLogger)]
        self._begun = [_looks(each) for each in self._callbacks]
        self._say = say
        self._told: set[str] = set()

    def take(self, packer: Packer) -> list[list[Any]]:
        """For each callback its kind and what has changed in it, by attribute."""
        both = zip(self._callbacks, self._begun, strict=True)
        return [[_kind(each), self._changes(each, begun, packer)] for each, begun in both]

    def put_back(self, saved: Sequence[Sequence[Any]], arrays: Sequence[Array]) -> None:
        """Gives each callback the state of its like: the first of a kind to the first, and so on."""
        states = {(kind, number): state for kind, number, state in _numbered(saved)}
        for kind, number, callback in _numbered([(_kind(each), each) for each in self._callbacks]):
            for name, packed in states.get((kind, number), {}).items():
                setattr(callback, name, unpack(packed, arrays, keras.ops))

    def _changes(self, callback: Any, begun: dict[str, Look], packer: Packer) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name, look in _looks(callback).items():
            if name in begun and begun[name].same(look):
                continue
            try:
                changes[name] = packer.pack(vars(callback)[name])
            except UnkeptError as error:
                self._tell(callback, name, str(error))
        return changes

    def _tell(self, callback: Any, name: str, kind: str) -> None:
        what = f"{type(callback).__name__}.{name}"
        if what not in self._told and not type(callback).__module__.startswith("keras."):
            self._told.add(what)
            self._say(f"{what} is of type {kind} and cannot be kept: after a restart this callback begins anew with it")


def _looks(callback: Any) -> dict[str, Look]:
    return {name: Look.at(value, keras.ops) for name, value in vars(callback).items() if name not in _KERAS_OWN}


def _kind(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _numbered(kinds: Sequence[Sequence[Any]]) -> list[tuple[str, int, Any]]:
    """(kind, how many of the kind came before, what belongs to it)."""
    seen: Counter[str] = Counter()
    numbered = []
    for kind, what in kinds:
        numbered.append((kind, seen[kind], what))
        seen[kind] += 1
    return numbered
