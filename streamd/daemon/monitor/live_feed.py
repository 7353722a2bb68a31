"""Events for open dashboards, one a second: the state of the daemon as the page reads it, in plain JSON."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec
from aiohttp import web

from streamd.core.activity import (
    DaemonActivity,
    DataFlow,
    StatusSnapshot,
    StreamPace,
    TrainerPace,
    assign_cohort_numbers,
    compare_snapshots,
)
from streamd.core.bottleneck import BOTTLENECK_ADVICE, Bottleneck, EpochBottleneck
from streamd.core.display import format_stream_images
from streamd.core.status import (
    STATE_WORDS,
    DaemonStatus,
    NodeStatus,
    SessionStatus,
    StreamStatus,
    find_reached_epoch_and_step,
    format_window,
    sort_sessions,
)
from streamd.daemon.monitor.bad_samples import FaultKind
from streamd.daemon.monitor.http_access import STARTING_TEXT, build_response_headers, is_authorized
from streamd.daemon.monitor.snapshot import MonitoredDaemon, MonitorSnapshot, SnapshotBuilder
from streamd.daemon.streams.served_stream import ServedStream

SourceStorage = Literal["files", "arrays", "shards"]

_EVENT_INTERVAL_S: Final = 1.0
_MIN_SNAPSHOT_INTERVAL_S: Final = 0.5  # pages that are due within this time receive the same event
_MAX_SNAPSHOT_AGE_S: Final = 5.0  # changes since an older snapshot say little about now
_REDACTED_TEXT: Final = "see `streamd status`, or this page with its token"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The kind of a stream's source, its `image` such as `128x128 RGB`, and whether decoded samples are cached."""

    source: SourceStorage
    image: str
    cached: bool


@dataclass(frozen=True, slots=True)
class DaemonView:
    """The daemon itself; memory in bytes. `window` names the time over which all rates and shares are computed."""

    version: str
    pid: int
    host: str
    endpoint: str
    uptime_s: float
    workers: int
    busy_fraction: float
    worker_deaths: int
    memory_bytes: int
    memory_used_bytes: int
    draining: bool
    window: str
    nodes: tuple[NodeStatus, ...] = ()  # of the cluster that decodes, if one does


@dataclass(frozen=True, slots=True)
class DataPathView:
    """The data path and its bottleneck: the sentence about it, the `tag` shown at its place, and whether it is bad."""

    reading: float
    decoding: float
    slots: int
    waiting: float
    limit: Bottleneck
    words: str
    tag: str
    is_bad: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView(StreamStatus):
    """One stream; `sent_samples` and `taken_samples` count from the start of the daemon."""

    source: SourceStorage
    image: str
    cached: bool
    sent_samples: int
    taken_samples: int
    new_bad: int
    faults: Mapping[FaultKind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerView(SessionStatus):
    """One session. Sessions of a stream with the same `cohort` share each decode; a finished session has None.

    `epoch` and `own_step` are its position as users count. `lag` is in batches behind the furthest session, `left_s` is
    the time left in its epoch. The verdict is the bottleneck of its last epoch.
    """

    cohort: int | None
    doing_words: str
    lag: int | None
    left_s: float | None
    verdict: EpochBottleneck | None
    verdict_short: str | None
    verdict_words: str | None


@dataclass(frozen=True, slots=True)
class DashboardView:
    """All that the page shows."""

    daemon: DaemonView
    troubles: Sequence[str]
    way: DataPathView
    streams: Sequence[StreamView]
    trainers: Sequence[TrainerView]


def build_dashboard_view(
    activity: DaemonActivity, snapshot: MonitorSnapshot, facts_by_stream: Mapping[str, StreamFacts], host: str
) -> DashboardView:
    """Builds what the page shows of one snapshot of the daemon on `host`."""
    cohorts = assign_cohort_numbers(activity.status.sessions)
    paces = {each.status.session: each for each in activity.trainers}
    return DashboardView(
        _build_daemon_view(activity.status, host),
        activity.status.all_troubles,
        _build_data_path_view(activity.flow),
        [_build_stream_view(each, snapshot, facts_by_stream[each.status.name]) for each in activity.streams],
        [
            _build_trainer_view(paces[each.session], cohorts.get(each.session))
            for each in sort_sessions(activity.status.sessions)
        ],
    )


def _build_daemon_view(status: DaemonStatus, host: str) -> DaemonView:
    return DaemonView(
        status.version,
        status.pid,
        host,
        status.endpoint,
        status.uptime_s,
        status.workers,
        status.busy_fraction,
        status.worker_deaths,
        status.memory_bytes,
        status.memory_used_bytes,
        status.draining,
        format_window(status.window_s),
        () if status.cluster is None else status.cluster.nodes,
    )


def _build_data_path_view(flow: DataFlow) -> DataPathView:
    advice = BOTTLENECK_ADVICE[flow.bottleneck]
    return DataPathView(
        flow.reading,
        flow.decoding,
        flow.slots,
        flow.waiting,
        flow.bottleneck,
        advice.sentence,
        advice.limit,
        advice.is_bad,
    )


def _build_stream_view(pace: StreamPace, snapshot: MonitorSnapshot, facts: StreamFacts) -> StreamView:
    name = pace.status.name
    return StreamView(
        **_collect_dataclass_fields(pace.status),
        **_collect_dataclass_fields(facts),
        sent_samples=int(snapshot.stream_counter_value(name, "sent_samples")),
        taken_samples=int(snapshot.stream_counter_value(name, "taken_samples")),
        new_bad=pace.new_bad,
        faults=snapshot.bad_counts[name],
    )


def _build_trainer_view(pace: TrainerPace, cohort: int | None) -> TrainerView:
    status, timing = pace.status, pace.status.last_epoch
    epoch, own_step = find_reached_epoch_and_step(status)
    return TrainerView(
        **{**_collect_dataclass_fields(status), "epoch": epoch, "own_step": own_step},
        cohort=cohort,
        doing_words=STATE_WORDS[status.doing],
        lag=pace.lag,
        left_s=pace.left_s,
        verdict=timing.verdict if timing else None,
        verdict_short=BOTTLENECK_ADVICE[timing.verdict].short if timing else None,
        verdict_words=timing.summary_text if timing else None,
    )


def _collect_dataclass_fields(value: StreamStatus | SessionStatus | StreamFacts) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


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
        self._last_snapshot: StatusSnapshot | None = None
        self._last_snapshot_s = -_MAX_SNAPSHOT_AGE_S
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
                await self._wait_for_event_interval()
        except ConnectionResetError:
            pass  # the page was closed
        return response

    async def _wait_for_event_interval(self) -> None:
        # Waits for the event instead of sleeping, so that an open page does not delay the daemon's end.
        try:
            async with asyncio.timeout(_EVENT_INTERVAL_S):
                await self._closing.wait()
        except TimeoutError:
            return

    def encode_current_event(self, *, is_full: bool) -> bytes:
        """Returns the event of now, in full or without the reasons that may name files."""
        if self._daemon is None or self._snapshot_builder is None:
            return _encode_event({"starting": STARTING_TEXT})
        now_s = time.monotonic()
        if now_s >= self._last_snapshot_s + _MIN_SNAPSHOT_INTERVAL_S:
            self._events = self._encode_snapshot(self._daemon, self._snapshot_builder, now_s)
        return self._events.full if is_full else self._events.redacted

    def _encode_snapshot(
        self, daemon: MonitoredDaemon, snapshot_builder: SnapshotBuilder, now_s: float
    ) -> _EncodedEvents:
        # All pages share one previous snapshot: how many pages are open changes no rate.
        before = self._last_snapshot if now_s < self._last_snapshot_s + _MAX_SNAPSHOT_AGE_S else None
        figures = snapshot_builder.take_snapshot()
        self._last_snapshot, self._last_snapshot_s = figures, now_s
        now, made = compare_snapshots(before, figures), build_facts_by_stream(daemon.streams)
        whole = _encode_event(build_dashboard_view(now, figures, made, self._host))
        # Nearly always there is nothing to redact, and one encoding serves both kinds of requests.
        if not any(each.status.stopped or each.status.failed for each in now.streams):
            return _EncodedEvents(whole, whole)
        return _EncodedEvents(
            whole, _encode_event(build_dashboard_view(redact_failure_reasons(now), figures, made, self._host))
        )


def redact_failure_reasons(activity: DaemonActivity) -> DaemonActivity:
    """Returns the same activity without the reasons why streams are stopped or failed, since these name files."""
    streams = tuple(replace(each, status=_redact_stream_status(each.status)) for each in activity.streams)
    return replace(
        activity, streams=streams, status=replace(activity.status, streams=tuple(each.status for each in streams))
    )


def _redact_stream_status(stream: StreamStatus) -> StreamStatus:
    return replace(stream, stopped=stream.stopped and _REDACTED_TEXT, failed=stream.failed and _REDACTED_TEXT)


def build_facts_by_stream(streams: Mapping[str, ServedStream]) -> dict[str, StreamFacts]:
    """Returns the facts of each stream, by name."""
    return {name: _build_stream_facts(stream) for name, stream in streams.items()}


def _build_stream_facts(stream: ServedStream) -> StreamFacts:
    manifest = stream.manifest
    source: SourceStorage = (
        "arrays" if manifest.arrays is not None else "shards" if manifest.shards is not None else "files"
    )
    return StreamFacts(source, format_stream_images(stream.spec), stream.cache is not None)


def _encode_event(value: object) -> bytes:
    """Encodes a server-sent event. A line break would end it, and encoded JSON has none."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
