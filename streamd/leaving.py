"""The batch now leaving, for whoever wants to look at it. While nobody does, it costs nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from streamd.client.batch import Batch, open_batch
from streamd.layout import Layout, layout
from streamd.limits import SHOWN_ROWS
from streamd.messages import BatchReady
from streamd.served import ServedStream
from streamd.slots import SlotStore


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A batch as it went to a trainer, copied; of its images the first SHOWN_ROWS, the others are black."""

    stream: ServedStream
    batch: Batch


class Leaving:
    """Lets those who wait see the next batch of a stream. Lives on the event loop's thread."""

    def __init__(self, slots: SlotStore) -> None:
        self._slots = slots
        self._awaited: dict[str, list[asyncio.Future[Glimpse]]] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for a batch, of whichever stream."""
        return bool(self._awaited)

    async def next(self, stream: str) -> Glimpse:
        """The next batch of a stream that leaves, however long that takes."""
        glimpse: asyncio.Future[Glimpse] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(stream, []).append(glimpse)
        try:
            return await glimpse
        finally:
            self._forget(stream, glimpse)

    def _forget(self, stream: str, glimpse: asyncio.Future[Glimpse]) -> None:
        waiting = self._awaited.get(stream, [])
        if glimpse in waiting:
            waiting.remove(glimpse)
            if not waiting:
                del self._awaited[stream]

    def close(self) -> None:
        """Nobody need wait any longer: each is cancelled."""
        for glimpse in [each for waiting in self._awaited.values() for each in waiting]:
            glimpse.cancel()

    def goes(self, stream: ServedStream, ready: BatchReady) -> None:
        """A batch leaves; its slot is lent, so that nobody writes there meanwhile."""
        waiting = [each for each in self._awaited.pop(stream.spec.name, []) if not each.done()]
        if waiting:
            shown = self._copy(stream, ready)
            for glimpse in waiting:
                glimpse.set_result(shown)

    def _copy(self, stream: ServedStream, ready: BatchReady) -> Glimpse:
        spec = stream.spec
        lies = layout(spec, ready.rows)
        memory = np.zeros(lies.nbytes, np.uint8).data  # of which only what is written takes memory
        for start, stop in _shown(lies, ready.rows):
            self._slots.read(ready.slot, memory[start:stop], start)
        batch = open_batch(memory, lies, ready, spec, token=str, on_return=lambda: None)
        return Glimpse(stream, batch)


def _shown(lies: Layout, rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """From where to where in a slot: the first images; everything behind the images."""
    first = lies.images.offset
    return (first, first + lies.images.nbytes * min(rows, SHOWN_ROWS) // rows), (lies.sample_ids.offset, lies.nbytes)
