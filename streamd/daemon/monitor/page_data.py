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
from streamd.daemon.monitor.bad_samples import Fault
from streamd.daemon.monitor.snapshot import Figures

Source = Literal["files", "arrays", "shards"]


@dataclass(frozen=True, slots=True)
class Make:
    """What a stream is made of: where its samples lie, `image` such as `128x128 RGB`, whether decoded ones are kept."""

    source: Source
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
class WayView:
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

    source: Source
    image: str
    cached: bool
    sent_samples: int
    new_bad: int
    faults: Mapping[Fault, int]


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
class View:
    """All of it. `way` is None after a first look."""

    daemon: DaemonView
    troubles: Sequence[str]
    way: WayView | None
    streams: Sequence[StreamView]
    trainers: Sequence[TrainerView]


def view(now: DaemonActivity, figures: Figures, makes: Mapping[str, Make], host: str) -> View:
    """What there is to see of a moment on `host`."""
    cohorts = number_cohorts(now.status.sessions)
    paces = {each.status.session: each for each in now.trainers}
    return View(
        _daemon(now.status, host),
        now.status.all_troubles,
        _way(now.flow),
        [_stream(each, figures, makes[each.status.name]) for each in now.streams],
        [_trainer(paces[each.session], cohorts.get(each.session)) for each in sort_sessions(now.status.sessions)],
    )


def _daemon(status: DaemonStatus, host: str) -> DaemonView:
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


def _way(flow: DataFlow | None) -> WayView | None:
    if flow is None:
        return None
    return WayView(
        flow.reading, flow.decoding, flow.slots, flow.waiting, flow.bottleneck, BOTTLENECK_WORDS[flow.bottleneck]
    )


def _stream(pace: StreamPace, figures: Figures, make: Make) -> StreamView:
    name = pace.status.name
    rates = {"decoded_per_s": pace.decoded_per_s, "samples_per_s": pace.samples_per_s}
    return StreamView(
        **{**_fields(pace.status), **_fields(make), **rates},
        sent_samples=int(figures.of_stream(name, "sent_samples")),
        new_bad=pace.new_bad,
        faults=figures.bad[name],
    )


def _trainer(pace: TrainerPace, cohort: int | None) -> TrainerView:
    status, timing = pace.status, pace.status.last_epoch
    epoch, step = find_reached_step(status)
    return TrainerView(
        **{**_fields(status), "epoch": epoch, "step": step, "samples_per_s": pace.samples_per_s},
        cohort=cohort,
        doing_words=STATE_WORDS[status.doing],
        lag=pace.lag,
        left_s=pace.left_s,
        verdict=timing.verdict if timing else None,
        verdict_words=timing.summary_text if timing else None,
    )


def _fields(of: StreamStatus | SessionStatus | Make) -> dict[str, Any]:
    return {each.name: getattr(of, each.name) for each in fields(of)}
