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
from streamd.daemon.monitor.http_access import STARTING_TEXT, build_headers, is_authorized
from streamd.daemon.monitor.page_data import SourceStorage, StreamFacts, build_dashboard_view
from streamd.daemon.monitor.snapshot import MonitoredDaemon, SnapshotBuilder
from streamd.daemon.streams.served_stream import ServedStream

_EVENT_INTERVAL_S: Final = 1.0
_MIN_SNAPSHOT_INTERVAL_S: Final = 0.5  # those who look within so long are told the same
_MAX_SNAPSHOT_AGE_S: Final = 5.0  # what happened since a look so long ago says little of now
_REDACTED_TEXT: Final = "see `streamd status`, or this page with its token"


class _EncodedEvents(NamedTuple):
    """What is told at a time: everything, and what anybody may know."""

    full: bytes
    redacted: bytes


class LiveFeed:
    """Looks once a second, however many watch, and not at all when nobody does."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._daemon: MonitoredDaemon | None = None
        self._snapshot_builder: SnapshotBuilder | None = None
        self._host = socket.gethostname()
        self._last_snapshot: StatusSnapshot | None = None
        self._last_snapshot_s = -_MAX_SNAPSHOT_AGE_S
        self._events = _EncodedEvents(b"", b"")
        self._closing = asyncio.Event()

    def watch_daemon(self, daemon: MonitoredDaemon, snapshot_builder: SnapshotBuilder) -> None:
        """From now on it tells of this service."""
        self._daemon, self._snapshot_builder = daemon, snapshot_builder

    def close(self) -> None:
        """Ends what is being told."""
        self._closing.set()

    async def send_events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, one a second, until the page or the daemon goes; with the token they name files."""
        whole = is_authorized(request.headers.get("Authorization"), self._token)
        response = web.StreamResponse(headers={**build_headers("text/event-stream"), "X-Accel-Buffering": "no"})
        await response.prepare(request)
        try:
            while not self._closing.is_set():
                await response.write(self.build_event(is_full=whole))
                await self._wait_for_interval()
        except ConnectionResetError:
            pass  # the page was closed
        return response

    async def _wait_for_interval(self) -> None:
        try:
            async with asyncio.timeout(_EVENT_INTERVAL_S):
                await self._closing.wait()
        except TimeoutError:
            return

    def build_event(self, *, is_full: bool) -> bytes:
        """What there is to tell now, `whole` or without the reasons that may name files."""
        if self._daemon is None or self._snapshot_builder is None:
            return _encode_event({"starting": STARTING_TEXT})
        now_s = time.monotonic()
        if now_s >= self._last_snapshot_s + _MIN_SNAPSHOT_INTERVAL_S:
            self._events = self._encode_snapshot(self._daemon, self._snapshot_builder, now_s)
        return self._events.full if is_full else self._events.redacted

    def _encode_snapshot(
        self, daemon: MonitoredDaemon, snapshot_builder: SnapshotBuilder, now_s: float
    ) -> _EncodedEvents:
        before = self._last_snapshot if now_s < self._last_snapshot_s + _MAX_SNAPSHOT_AGE_S else None
        figures = snapshot_builder.take_snapshot()
        self._last_snapshot, self._last_snapshot_s = figures, now_s
        now, made = compute_activity(before, figures), describe_streams(daemon.streams)
        whole = _encode_event(build_dashboard_view(now, figures, made, self._host))
        if not any(each.status.stopped or each.status.failed for each in now.streams):  # as nearly always
            return _EncodedEvents(whole, whole)
        return _EncodedEvents(
            whole, _encode_event(build_dashboard_view(redact_reasons(now), figures, made, self._host))
        )


def redact_reasons(activity: DaemonActivity) -> DaemonActivity:
    """The same without the reasons why streams are stopped or have failed: they name files."""
    streams = tuple(replace(each, status=_redact_stream(each.status)) for each in activity.streams)
    return replace(
        activity, streams=streams, status=replace(activity.status, streams=tuple(each.status for each in streams))
    )


def _redact_stream(stream: StreamStatus) -> StreamStatus:
    return replace(stream, stopped=stream.stopped and _REDACTED_TEXT, failed=stream.failed and _REDACTED_TEXT)


def describe_streams(streams: Mapping[str, ServedStream]) -> dict[str, StreamFacts]:
    """What each stream is made of."""
    return {name: _describe_stream(stream) for name, stream in streams.items()}


def _describe_stream(stream: ServedStream) -> StreamFacts:
    manifest = stream.manifest
    source: SourceStorage = (
        "arrays" if manifest.arrays is not None else "shards" if manifest.shards is not None else "files"
    )
    return StreamFacts(source, format_image_shape(*stream.spec.image_shape), stream.cache is not None)


def _encode_event(value: object) -> bytes:
    """JSON has no line breaks, which end an event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
