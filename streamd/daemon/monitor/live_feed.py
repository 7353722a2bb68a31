"""Events for open dashboards, one a second: the daemon's status with the words for it, in plain JSON."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from streamd.core.bottleneck import BOTTLENECK_ADVICE
from streamd.core.captions import format_stream_images
from streamd.core.counters import read_number
from streamd.core.status import (
    STATE_WORDS,
    DaemonStatus,
    count_new_bad_samples,
    find_reached_epoch_and_step,
    format_window,
    sort_sessions,
)
from streamd.daemon.monitor.http_access import STARTING_TEXT, build_response_headers, is_authorized
from streamd.daemon.monitor.snapshot import MonitoredDaemon, MonitorSnapshot, SnapshotBuilder
from streamd.daemon.streams.served_stream import ServedStream

_EVENT_INTERVAL_S: Final = 1.0
_MIN_SNAPSHOT_INTERVAL_S: Final = 0.5  # pages that are due within this time receive the same event
_MAX_SNAPSHOT_AGE_S: Final = 5.0  # changes since an older snapshot say little about now
_REDACTED_TEXT: Final = "see `streamd status`, or this page with its token"


def build_dashboard_view(
    before: DaemonStatus | None, snapshot: MonitorSnapshot, streams: Mapping[str, ServedStream], host: str
) -> dict[str, Any]:
    """Returns what the page of the daemon on `host` shows, as plain data; page/shapes.js has its form.

    It is the status as it is, but for the words that belong to a figure and for what only the page shows. Bad samples
    are new since the status `before`.
    """
    status, new_bad = snapshot.status, count_new_bad_samples(before, snapshot.status)
    advice, daemon = BOTTLENECK_ADVICE[status.bottleneck], msgspec.to_builtins(status)
    del daemon["streams"], daemon["sessions"], daemon["cluster"]
    stream_views = []
    for each in status.streams:
        stream = streams[each.name]
        arrays, shards = stream.manifest.arrays is not None, stream.manifest.shards is not None
        stream_views.append(
            {
                **msgspec.to_builtins(each),
                "source": "arrays" if arrays else "shards" if shards else "files",
                "image": format_stream_images(stream.spec),
                "cached": stream.cache is not None,
                "taken_samples": int(read_number(snapshot.numbers, f"stream.{each.name}", "taken_samples")),
                "new_bad": new_bad[each.name],
                "faults": snapshot.bad_counts[each.name],
            }
        )
    trainer_views = []
    for session in sort_sessions(status.sessions):
        timing = session.last_epoch
        # The place where its user sees it: a trainer that has finished is at the end of its last epoch.
        epoch, own_step = find_reached_epoch_and_step(session)
        trainer_views.append(
            {
                **msgspec.to_builtins(session),
                "epoch": epoch,
                "own_step": own_step,
                "doing_words": STATE_WORDS[session.doing],
                "verdict": timing.verdict if timing else None,
                "verdict_short": BOTTLENECK_ADVICE[timing.verdict].short if timing else None,
                "verdict_words": timing.summary_text if timing else None,
            }
        )
    return {
        "daemon": {
            **daemon,
            "host": host,
            "window": format_window(status.window_s),
            "nodes": () if status.cluster is None else status.cluster.nodes,
        },
        "troubles": status.all_troubles,
        "way": {
            "reading": status.reading_fraction,
            "decoding": status.decoding_fraction,
            "slots": status.slots,
            "waiting": status.waiting_trainers,
            "limit": status.bottleneck,
            "words": advice.sentence,
            "tag": advice.limit,
            "is_bad": advice.is_bad,
        },
        "streams": stream_views,
        "trainers": trainer_views,
    }


class _EncodedEvents(NamedTuple):
    """One event in two versions: with the reasons that may name files, and without them for requests without token."""

    full: bytes
    redacted: bytes


class LiveFeed:
    """Sends events to open pages. Takes one snapshot for all of them, and none while no page is open."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._daemon: MonitoredDaemon | None = None
        self._snapshot_builder: SnapshotBuilder | None = None
        self._host = socket.gethostname()
        self._last_status: DaemonStatus | None = None
        self._last_status_s = -_MAX_SNAPSHOT_AGE_S
        self._events = _EncodedEvents(b"", b"")
        self._closing = asyncio.Event()

    def set_monitored_daemon(self, daemon: MonitoredDaemon, snapshot_builder: SnapshotBuilder) -> None:
        """Reports on this daemon from now on."""
        self._daemon, self._snapshot_builder = daemon, snapshot_builder

    def close(self) -> None:
        """Ends all event streams."""
        self._closing.set()

    async def stream_events(self, request: web.Request) -> web.StreamResponse:
        """Streams server-sent events, one a second, until the page is closed or the daemon ends.

        Events may name files only for a request with the token.
        """
        whole = is_authorized(request.headers.get("Authorization"), self._token)
        response = web.StreamResponse(
            headers={**build_response_headers("text/event-stream"), "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        try:
            while not self._closing.is_set():
                await response.write(self.encode_current_event(is_full=whole))
                # Waits for the end instead of sleeping, so that an open page does not delay it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EVENT_INTERVAL_S):
                        await self._closing.wait()
        except ConnectionResetError:
            pass  # the page was closed
        return response

    def encode_current_event(self, *, is_full: bool) -> bytes:
        """Returns the event of now, in full or without the reasons that may name files."""
        if self._daemon is None or self._snapshot_builder is None:
            return _encode_event({"starting": STARTING_TEXT})
        now_s = time.monotonic()
        if now_s >= self._last_status_s + _MIN_SNAPSHOT_INTERVAL_S:
            self._events = self._encode_snapshot(self._daemon.streams, self._snapshot_builder.take_snapshot(), now_s)
        return self._events.full if is_full else self._events.redacted

    def _encode_snapshot(
        self, streams: Mapping[str, ServedStream], snapshot: MonitorSnapshot, now_s: float
    ) -> _EncodedEvents:
        # All pages share one previous status: how many pages are open changes no count.
        before = self._last_status if now_s < self._last_status_s + _MAX_SNAPSHOT_AGE_S else None
        status = self._last_status = snapshot.status
        self._last_status_s = now_s
        whole = _encode_event(build_dashboard_view(before, snapshot, streams, self._host))
        # Nearly always there is nothing to redact, and one encoding serves both kinds of requests.
        if not any(each.stopped or each.failed for each in status.streams):
            return _EncodedEvents(whole, whole)
        # The reasons why streams are stopped or failed name files.
        redacted = tuple(
            msgspec.structs.replace(
                each, stopped=each.stopped and _REDACTED_TEXT, failed=each.failed and _REDACTED_TEXT
            )
            for each in status.streams
        )
        discreet = msgspec.structs.replace(snapshot, status=msgspec.structs.replace(status, streams=redacted))
        return _EncodedEvents(whole, _encode_event(build_dashboard_view(before, discreet, streams, self._host)))


def _encode_event(value: object) -> bytes:
    """Encodes a server-sent event. A line break would end it, and encoded JSON has none."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
