"""The moments around a fork, for everything of this process that a child must not share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol


class Forking(Protocol):
    """What is told of forks."""

    def fork_begins(self) -> None: ...

    def fork_ends(self) -> None: ...

    def forked(self) -> None: ...


_known: Final[set[weakref.ref[Forking]]] = set()


def watch_forks(one: Forking) -> None:
    """From now on it is told of each fork: before, in the thread that forks, and after, in the parent or the child."""
    _known.add(weakref.ref(one, _known.discard))


def _each(meet: Callable[[Forking], None]) -> None:
    for reference in list(_known):  # a copy: made without a pause, while others come and go
        one = reference()
        if one is not None:
            meet(one)


if hasattr(os, "register_at_fork"):  # Windows, where the client works over TCP, has no fork
    os.register_at_fork(
        before=partial(_each, lambda one: one.fork_begins()),
        after_in_parent=partial(_each, lambda one: one.fork_ends()),
        after_in_child=partial(_each, lambda one: one.forked()),
    )
