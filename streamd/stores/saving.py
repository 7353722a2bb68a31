"""Has what caches were given published a moment later, by a thread: together, and while decoding goes on."""

from __future__ import annotations

import asyncio

from streamd.limits import CACHE_PUBLISH_S
from streamd.stores.cache import DecodedCache


class Saving:
    """The publishing that is under way or about to be, one at a time for each cache."""

    def __init__(self, delay_s: float = CACHE_PUBLISH_S) -> None:
        self._delay_s = delay_s
        self._under_way: dict[DecodedCache, asyncio.Task[None]] = {}

    def note(self, cache: DecodedCache) -> None:
        """The cache may have been given something."""
        if cache.unpublished and cache not in self._under_way:
            task = asyncio.ensure_future(self._save(cache))
            self._under_way[cache] = task
            task.add_done_callback(lambda _: self._under_way.pop(cache))

    async def _save(self, cache: DecodedCache) -> None:
        await asyncio.sleep(self._delay_s)
        await asyncio.to_thread(cache.publish)
