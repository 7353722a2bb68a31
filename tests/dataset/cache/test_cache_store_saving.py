"""What caches were given is published without being asked for, together."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

from streamd.dataset.cache.store import CachePublisher, DecodedCache

ANSWER_S = 20.0


class Given:
    """Stands for a cache that was given something."""

    def __init__(self) -> None:
        self.unpublished_rows = 1
        self.published: list[threading.Thread] = []
        self.again = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def publish_rows(self) -> None:
        self.published.append(threading.current_thread())
        self.unpublished_rows = 0
        self._loop.call_soon_threadsafe(self.again.set)


def note(saving: CachePublisher, cache: Given) -> None:
    saving.schedule_publish(cast("DecodedCache", cache))


async def published(saving: CachePublisher, cache: Given) -> None:
    """The next time that it is."""
    cache.unpublished_rows = 1
    cache.again.clear()
    for _ in range(5):
        note(saving, cache)
    await asyncio.wait_for(cache.again.wait(), ANSWER_S)
    await asyncio.gather(*saving._under_way.values())


async def test_rows_written_together_are_published_once_by_another_thread() -> None:
    saving, cache = CachePublisher(delay_s=0), Given()
    await published(saving, cache)
    assert len(cache.published) == 1
    assert cache.published[0] is not threading.main_thread()


async def test_rows_written_later_are_published_too() -> None:
    saving, cache = CachePublisher(delay_s=0), Given()
    await published(saving, cache)
    await published(saving, cache)
    assert len(cache.published) == 2


async def test_every_cache_with_unpublished_rows_is_published_and_no_other() -> None:
    saving, one, other, idle = CachePublisher(delay_s=0), Given(), Given(), Given()
    idle.unpublished_rows = 0
    note(saving, idle)
    note(saving, one)
    await published(saving, other)
    await asyncio.wait_for(one.again.wait(), ANSWER_S)
    assert (len(one.published), len(other.published), idle.published) == (1, 1, [])
