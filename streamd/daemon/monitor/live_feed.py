"""What goes on, second by second, for whoever has the dashboard open."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from streamd.core.activity import DaemonActivity, StatusSnapshot, compute_activity
from streamd.core.captions import format_image_shape
from streamd.core.status import StreamStatus
from streamd.daemon.monitor.http_access import STARTING, opens, standing
from streamd.daemon.monitor.page_data import Make, Source, view
from streamd.daemon.monitor.snapshot import Sight, Watched
from streamd.daemon.streams.served_stream import ServedStream

_EVERY_S: Final = 1.0
_TOGETHER_S: Final = 0.5  # those who look within so long are told the same
_OLD_S: Final = 5.0  # what happened since a look so long ago says little of now
_UNSAID: Final = "see `streamd status`, or this page with its token"


class _Events(NamedTuple):
    """What is told at a time: everything, and what anybody may know."""

    whole: bytes
    discreet: bytes


class Live:
    """Looks once a second, however many watch, and not at all when nobody does."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._service: Watched | None = None
        self._sight: Sight | None = None
        self._host = socket.gethostname()
        self._before: StatusSnapshot | None = None
        self._looked_s = -_OLD_S
        self._events = _Events(b"", b"")
        self._closing = asyncio.Event()

    def watch(self, service: Watched, sight: Sight) -> None:
        """From now on it tells of this service."""
        self._service, self._sight = service, sight

    def close(self) -> None:
        """Ends what is being told."""
        self._closing.set()

    async def tell(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, one a second, until the page or the daemon goes; with the token they name files."""
        whole = opens(request.headers.get("Authorization"), self._token)
        response = web.StreamResponse(headers={**standing("text/event-stream"), "X-Accel-Buffering": "no"})
        await response.prepare(request)
        try:
            while not self._closing.is_set():
                await response.write(self.event(whole=whole))
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

    def event(self, *, whole: bool) -> bytes:
        """What there is to tell now, `whole` or without the reasons that may name files."""
        if self._service is None or self._sight is None:
            return _event({"starting": STARTING})
        now_s = time.monotonic()
        if now_s >= self._looked_s + _TOGETHER_S:
            self._events = self._look(self._service, self._sight, now_s)
        return self._events.whole if whole else self._events.discreet

    def _look(self, service: Watched, sight: Sight, now_s: float) -> _Events:
        before = self._before if now_s < self._looked_s + _OLD_S else None
        figures = sight.look()
        self._before, self._looked_s = figures, now_s
        now, made = compute_activity(before, figures), makes(service.streams)
        whole = _event(view(now, figures, made, self._host))
        if not any(each.status.stopped or each.status.failed for each in now.streams):  # as nearly always
            return _Events(whole, whole)
        return _Events(whole, _event(view(discreet(now), figures, made, self._host)))


def discreet(now: DaemonActivity) -> DaemonActivity:
    """The same without the reasons why streams are stopped or have failed: they name files."""
    streams = tuple(replace(each, status=_discreet(each.status)) for each in now.streams)
    return replace(now, streams=streams, status=replace(now.status, streams=tuple(each.status for each in streams)))


def _discreet(stream: StreamStatus) -> StreamStatus:
    return replace(stream, stopped=stream.stopped and _UNSAID, failed=stream.failed and _UNSAID)


def makes(streams: Mapping[str, ServedStream]) -> dict[str, Make]:
    """What each stream is made of."""
    return {name: _make(stream) for name, stream in streams.items()}


def _make(stream: ServedStream) -> Make:
    manifest = stream.manifest
    source: Source = "arrays" if manifest.arrays is not None else "shards" if manifest.shards is not None else "files"
    return Make(source, format_image_shape(*stream.spec.image_shape), stream.cache is not None)


def _event(value: object) -> bytes:
    """JSON has no line breaks, which end an event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
