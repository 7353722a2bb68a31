"""Which batches somebody must take, by counting instead of by the arithmetic that is under test."""

from __future__ import annotations

from collections.abc import Iterator

from streamd.core.spec import UnevenPolicy

Place = tuple[int, int]  # epoch, index


def steps_of(batches: int, epochs: int, start: Place, world: int, uneven: UnevenPolicy) -> Iterator[Place]:
    """(epoch, base) of every step from `start` on."""
    epoch, base = start
    while epoch < epochs:
        while base + (1 if uneven == "pad" else world) <= batches:
            yield epoch, base
            base += world
        epoch, base = epoch + 1, 0
