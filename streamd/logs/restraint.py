"""When an event that repeats itself is held back: a pure decision, time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.limits import LOG_SPAN_EVENTS, LOG_SPAN_S


@dataclass(frozen=True, slots=True)
class Held:
    """So many of an event were held back."""

    event: str
    count: int


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether an event is said. `until_s`: when its span ends, for the first that is held back."""

    is_said: bool
    until_s: float | None = None


@dataclass(slots=True)
class _Span:
    began_s: float
    said: int = 0
    held: int = 0


class Restraint:
    """Lets `most` events of one name through within `span_s` seconds from the first, and counts the rest."""

    def __init__(self, most: int = LOG_SPAN_EVENTS, span_s: float = LOG_SPAN_S) -> None:
        self._most = most
        self._span_s = span_s
        self._spans: dict[str, _Span] = {}  # events' names are few, and none comes from outside

    def rule(self, event: str, now_s: float) -> Ruling:
        """Decides on one event; what `over` has for the same time comes first."""
        span = self._spans.setdefault(event, _Span(now_s))
        if span.said < self._most:
            span.said += 1
            return Ruling(is_said=True)
        span.held += 1
        return Ruling(is_said=False, until_s=span.began_s + self._span_s if span.held == 1 else None)

    def over(self, now_s: float) -> list[Held]:
        """What was held back in spans that have ended, each told once."""
        return self._taken([event for event, span in self._spans.items() if now_s >= span.began_s + self._span_s])

    def rest(self) -> list[Held]:
        """What was held back and not told yet, whenever it was."""
        return self._taken(list(self._spans))

    def _taken(self, events: list[str]) -> list[Held]:
        taken = [Held(event, self._spans.pop(event).held) for event in events]
        return [each for each in taken if each.count]
