"""What goes on, second by second, for whoever has the dashboard open."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from streamd.monitor.figures import Sight, Watched
from streamd.monitor.replies import standing
from streamd.monitor.view import Make, Source, view
from streamd.served import ServedStream
from streamd.top import Look, moment

_EVERY_S: Final = 1.0
_TOGETHER_S: Final = 0.5  # those who look within so long are told the same
_OLD_S: Final = 5.0  # what happened since a look so long ago says little of now


class Live:
    """Looks once a second, however many watch, and not at all when nobody does."""

    def __init__(self) -> None:
        self._service: Watched | None = None
        self._sight: Sight | None = None
        self._host = socket.gethostname()
        self._before: Look | None = None
        self._looked_s = -_OLD_S
        self._event = b""
        self._closing = asyncio.Event()

    def watch(self, service: Watched, sight: Sight) -> None:
        """From now on it tells of this service."""
        self._service, self._sight = service, sight

    def close(self) -> None:
        """Ends what is being told."""
        self._closing.set()

    async def tell(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, one a second, until the page or the daemon goes."""
        response = web.StreamResponse(headers={**standing("text/event-stream"), "X-Accel-Buffering": "no"})
        await response.prepare(request)
        try:
            while not self._closing.is_set():
                await response.write(self.event())
                await self._pause()
        except ConnectionResetError:
            pass  # the page was closed
        return response

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_EVERY_S):
                await self._closing.wait()
        except TimeoutError:
            return

    def event(self) -> bytes:
        """What there is to tell now."""
        if self._service is None or self._sight is None:
            return _event({"starting": "the samples are listed, or the workers come up"})
        now_s = time.monotonic()
        if now_s >= self._looked_s + _TOGETHER_S:
            self._event = self._look(self._service, self._sight, now_s)
        return self._event

    def _look(self, service: Watched, sight: Sight, now_s: float) -> bytes:
        before = self._before if now_s < self._looked_s + _OLD_S else None
        figures = sight.look()
        self._before, self._looked_s = figures, now_s
        return _event(view(moment(before, figures), figures, makes(service.streams), self._host))


def makes(streams: Mapping[str, ServedStream]) -> dict[str, Make]:
    """What each stream is made of."""
    return {name: _make(stream) for name, stream in streams.items()}


def _make(stream: ServedStream) -> Make:
    manifest, image = stream.manifest, stream.spec.image
    mode = "L" if image.channels == 1 else "RGB"
    source: Source = "arrays" if manifest.arrays is not None else "shards" if manifest.shards is not None else "files"
    return Make(source, f"{image.width}x{image.height} {mode}", stream.cache is not None)


def _event(value: object) -> bytes:
    """JSON has no line breaks, which end an event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
