"""Who is told of a fork, on which side of it."""

from __future__ import annotations

import pytest
from support.forked_child import in_a_forked_child

from streamd.client.leases import observe_forks


class Watcher:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def before_fork(self) -> None:
        self.told.append("begins")

    def after_fork_in_parent(self) -> None:
        self.told.append("ends")

    def after_fork_in_child(self) -> None:
        self.told.append("forked")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_is_told_before_it_and_after_it_on_either_side() -> None:
    watcher = Watcher()
    observe_forks(watcher)

    def look() -> None:
        assert watcher.told == ["begins", "forked"]

    assert in_a_forked_child(look) == 0
    assert watcher.told == ["begins", "ends"]
