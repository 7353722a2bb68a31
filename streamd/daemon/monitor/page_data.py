"""What the dashboard shows at a moment, as its page reads it: JSON of plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from streamd.core.activity import (
    BOTTLENECK_WORDS,
    Bottleneck,
    DaemonActivity,
    DataFlow,
    StreamPace,
    TrainerPace,
    number_cohorts,
)
from streamd.core.epoch_timing import EpochBottleneck
from streamd.core.status import STATE_WORDS, DaemonStatus, SessionStatus, StreamStatus, find_reached_step, sort_sessions
from streamd.daemon.monitor.bad_samples import FaultKind
from streamd.daemon.monitor.snapshot import MonitorSnapshot

SourceStorage = Literal["files", "arrays", "shards"]


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a stream is made of: where its samples lie, `image` such as `128x128 RGB`, whether decoded ones are kept."""

    source: SourceStorage
    image: str
    cached: bool


@dataclass(frozen=True, slots=True)
class DaemonView:
    """The daemon itself; memory in bytes, `busy_fraction` over the last half minute."""

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


@dataclass(frozen=True, slots=True)
class DataPathView:
    """Where batches wait on their way, as in top.Flow, and the sentence about it."""

    reading: float
    decoding: float
    slots: int
    waiting: float
    limit: Bottleneck
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView(StreamStatus):
    """One stream, with the rates of this moment; `sent_samples` are those since the daemon began."""

    source: SourceStorage
    image: str
    cached: bool
    sent_samples: int
    new_bad: int
    faults: Mapping[FaultKind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerView(SessionStatus):
    """One trainer, with the rate of this moment. Those of a stream with one `cohort` share each decode.

    Once it has finished that is None. `lag` is in steps behind the furthest, `left_s` of its epoch; the verdict is that
    of its last epoch.
    """

    cohort: int | None
    doing_words: str
    lag: int | None
    left_s: float | None
    verdict: EpochBottleneck | None
    verdict_words: str | None


@dataclass(frozen=True, slots=True)
class DashboardView:
    """All of it. `way` is None after a first look."""

    daemon: DaemonView
    troubles: Sequence[str]
    way: DataPathView | None
    streams: Sequence[StreamView]
    trainers: Sequence[TrainerView]


def build_dashboard_view(
    activity: DaemonActivity, snapshot: MonitorSnapshot, facts_by_stream: Mapping[str, StreamFacts], host: str
) -> DashboardView:
    """What there is to see of a moment on `host`."""
    cohorts = number_cohorts(activity.status.sessions)
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
    )


def _build_data_path_view(flow: DataFlow | None) -> DataPathView | None:
    if flow is None:
        return None
    return DataPathView(
        flow.reading, flow.decoding, flow.slots, flow.waiting, flow.bottleneck, BOTTLENECK_WORDS[flow.bottleneck]
    )


def _build_stream_view(pace: StreamPace, snapshot: MonitorSnapshot, facts: StreamFacts) -> StreamView:
    name = pace.status.name
    rates = {"decoded_per_s": pace.decoded_per_s, "samples_per_s": pace.samples_per_s}
    return StreamView(
        **{**_collect_fields(pace.status), **_collect_fields(facts), **rates},
        sent_samples=int(snapshot.stream_counter_value(name, "sent_samples")),
        new_bad=pace.new_bad,
        faults=snapshot.bad_counts[name],
    )


def _build_trainer_view(pace: TrainerPace, cohort: int | None) -> TrainerView:
    status, timing = pace.status, pace.status.last_epoch
    epoch, step = find_reached_step(status)
    return TrainerView(
        **{**_collect_fields(status), "epoch": epoch, "step": step, "samples_per_s": pace.samples_per_s},
        cohort=cohort,
        doing_words=STATE_WORDS[status.doing],
        lag=pace.lag,
        left_s=pace.left_s,
        verdict=timing.verdict if timing else None,
        verdict_words=timing.summary_text if timing else None,
    )


def _collect_fields(value: StreamStatus | SessionStatus | StreamFacts) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}
