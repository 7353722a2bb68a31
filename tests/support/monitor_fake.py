"""A monitor without a daemon, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from streamd.daemon.monitor.http_server import Monitor
from support.sample_metrics import Books


class Answer(NamedTuple):
    """A status, headers in small letters, and the body."""

    status: int
    headers: str
    body: str


@contextlib.asynccontextmanager
async def monitor(books: Books | None = None) -> AsyncIterator[Monitor]:
    """Runs a monitor of `books`, or of a daemon that still starts."""
    monitor = Monitor("127.0.0.1:0")
    await monitor.start_listening()
    if books is not None:
        monitor.set_monitored_daemon(books)
    running = asyncio.ensure_future(monitor.run())
    try:
        yield monitor
    finally:
        running.cancel()
        await asyncio.wait({running})


async def say(to: Monitor, words: bytes) -> Answer:
    """Sends bytes and returns the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(to.url.rpartition(":")[2]))
    writer.write(words)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return Answer(int(head.split()[1]), head.lower(), body)


async def ask(to: Monitor, path: str, method: str = "GET", host: str = "localhost", token: str | None = None) -> Answer:
    """Sends a request, with a token if there is one, and returns the answer."""
    key = "" if token is None else f"Authorization: Bearer {token}\r\n"
    return await say(to, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{key}Connection: close\r\n\r\n".encode())


def answers(books: Books | None, *questions: Callable[[Monitor], Awaitable[Answer]]) -> list[Answer]:
    """Sends requests one after the other and returns their answers."""

    async def run() -> list[Answer]:
        async with monitor(books) as running:
            return [await question(running) for question in questions]

    return asyncio.run(run())


def answer(books: Books | None, path: str, method: str = "GET", host: str = "localhost") -> Answer:
    """Sends one request and returns the answer."""
    (only,) = answers(books, lambda to: ask(to, path, method, host))
    return only
