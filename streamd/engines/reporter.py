"""Who hears from an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamd.engines.production import Production


@dataclass(frozen=True, slots=True)
class Reporter:
    """Where the engine tells what became of batches, and that a worker died.

    `away`: the data of a stream are not there, for that reason, and these batches come to nothing; `back`: they are
    there again. Where nobody waits for that, the batches fail.
    """

    produced: Callable[[Sequence[Production]], None]
    failed: Callable[[Production, str], None]
    died: Callable[[], None] = lambda: None
    away: Callable[[str, str, Sequence[Production]], None] | None = None
    back: Callable[[str], None] = lambda _: None
