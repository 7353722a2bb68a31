"""Rows written to caches are published together after a delay."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

from streamd.dataset.cache import CachePublisher, DecodedCache

ANSWER_S = 20.0


class CacheStub:
    """Stands for a cache with an unpublished row."""

    def __init__(self) -> None:
        self.unpublished_rows = 1
        self.published: list[threading.Thread] = []
        self.is_published = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def publish_rows(self) -> None:
        self.published.append(threading.current_thread())
        self.unpublished_rows = 0
        self._loop.call_soon_threadsafe(self.is_published.set)


def schedule_publish(publisher: CachePublisher, cache: CacheStub) -> None:
    publisher.schedule_publish(cast("DecodedCache", cache))


async def write_and_publish(publisher: CachePublisher, cache: CacheStub) -> None:
    """Has another row written and published."""
    cache.unpublished_rows = 1
    cache.is_published.clear()
    for _ in range(5):
        schedule_publish(publisher, cache)
    await asyncio.wait_for(cache.is_published.wait(), ANSWER_S)
    await asyncio.gather(*publisher._under_way.values())


async def test_rows_written_together_are_published_once_by_another_thread() -> None:
    publisher, cache = CachePublisher(delay_s=0), CacheStub()
    await write_and_publish(publisher, cache)
    assert len(cache.published) == 1
    assert cache.published[0] is not threading.main_thread()


async def test_rows_written_later_are_published_too() -> None:
    publisher, cache = CachePublisher(delay_s=0), CacheStub()
    await write_and_publish(publisher, cache)
    await write_and_publish(publisher, cache)
    assert len(cache.published) == 2


async def test_every_cache_with_unpublished_rows_is_published_and_no_other() -> None:
    publisher, one, other, idle = CachePublisher(delay_s=0), CacheStub(), CacheStub(), CacheStub()
    idle.unpublished_rows = 0
    schedule_publish(publisher, idle)
    schedule_publish(publisher, one)
    await write_and_publish(publisher, other)
    await asyncio.wait_for(one.is_published.wait(), ANSWER_S)
    assert (len(one.published), len(other.published), idle.published) == (1, 1, [])
