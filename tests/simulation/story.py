"""What happened, in order: kept as facts, told as sentences only when somebody asks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from virtual_time import Agenda


class BrokenPromiseError(AssertionError):
    """A promise was not kept."""


@dataclass(slots=True)
class Story:
    """The events of one run, its rules and how often each was checked, and whatever is worth counting."""

    agenda: Agenda
    checked: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    _events: list[tuple[float, str, str, tuple[Any, ...]]] = field(default_factory=list)

    def note(self, who: str, what: str, *facts: Any) -> None:
        """`what` has a pair of braces for each fact."""
        self._events.append((self.agenda.now_s, who, what, facts))

    def require(self, rule: str, holds: object, what: str = "", *facts: Any) -> None:
        """A rule is checked. Raises BrokenPromiseError when it does not hold."""
        self.checked[rule] += 1
        if not holds:
            raise BrokenPromiseError(f"{rule}: {what.format(*facts)}" if what else rule)

    def lines(self) -> Iterator[str]:
        for now_s, who, what, facts in self._events:
            yield f"{now_s:11.6f}  {who:<10} {what.format(*facts)}"

    def digest(self) -> str:
        """The same for the same run."""
        told = hashlib.blake2b(digest_size=16)
        for line in self.lines():
            told.update(line.encode())
        return told.hexdigest()
