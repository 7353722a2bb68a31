"""What an attack knows and keeps from round to round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wire import Intruder, find_descriptor_path, find_reachable_endpoint


@dataclass(slots=True)
class Target:
    """The daemon's public endpoint; `kept` is whatever the attack holds open, and `count` its own."""

    public: str
    share: float = 0
    kept: list[Any] = field(default_factory=list)
    count: int = 0
    _descriptor_path: str = ""

    @property
    def endpoint(self) -> str:
        """The endpoint that serves this attacker."""
        return find_reachable_endpoint(self.public)

    @property
    def descriptor_path(self) -> str:
        """The path of the descriptor socket of that endpoint."""
        if not self._descriptor_path:
            self._descriptor_path = find_descriptor_path(self.public)
        return self._descriptor_path

    def intrude(self) -> Intruder:
        """Connects once more, and keeps the connection."""
        intruder = Intruder(self.endpoint)
        self.kept.append(intruder)
        return intruder.connect()

    def drop_kept(self) -> None:
        """Closes all that it keeps."""
        for each in self.kept:
            each.close()
        self.kept.clear()


Attack = Callable[[Target], Mapping[str, int] | None]  # one round; returns what it counts
