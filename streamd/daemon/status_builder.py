"""What the daemon knows of itself: who reads what, how fast, and whether each decode is shared.

What happened in the last half minute: a count that forgets. And what the daemon tells anyone who asks, without a
session: what is served, how it goes, what files are called.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from streamd import __version__
from streamd.core.counters import ProcessStats as Counters
from streamd.core.epoch_timing import EpochTiming
from streamd.core.status import (
    RESTING_S,
    DaemonStatus,
    SessionState,
    SessionStatus,
    StreamStatus,
    suggest_remedy_for_apart_trainers,
)
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.epoch_summary import EpochTracker
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import suggest_name
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    MonitorAt,
    Names,
    Refused,
    Stats,
    StatusNow,
    Streams,
)
from streamd.ipc.slots import SlotStore
from streamd.limits import MAX_NAMES
from streamd.scheduler.scheduler import Scheduler
from streamd.scheduler.session import ScheduledSession

COUNTED_SPAN_S: Final = 30
_COUNTED_CELL_S: Final = 2  # what is counted together, and forgotten together
_NO_MONITOR_TEXT: Final = (
    "this daemon has no dashboard: give its configuration a line such as `monitor: 127.0.0.1:9191` and start it anew"
)

QueryMessage = AskStreams | AskStats | AskStatus | AskMonitor | AskNames
QueryAnswer = Streams | Stats | StatusNow | MonitorAt | Names | Refused
StreamPart = tuple[str, int, int]  # a stream, and whose batches of it: rank and world


@dataclass(slots=True)
class SlidingCount:
    """Counts over a sliding span, in a few cells: adding costs next to nothing, whatever the rate."""

    since_s: float
    _cells: dict[int, float] = field(default_factory=dict)

    def add_amount(self, now_s: float, amount: float = 1) -> None:
        cell = int(now_s // _COUNTED_CELL_S)
        if cell in self._cells:
            self._cells[cell] += amount
        else:
            self._remove_expired_cells(now_s)
            self._cells[cell] = amount

    def merge_maximum(self, other: SlidingCount) -> None:
        """Counts at least what the other counted, in each part of the span."""
        for cell, amount in other._cells.items():
            self._cells[cell] = max(amount, self._cells.get(cell, 0))

    def compute_total(self, now_s: float) -> float:
        """What was counted within the span."""
        self._remove_expired_cells(now_s)
        return sum(self._cells.values())

    def compute_rate(self, now_s: float) -> float:
        """The rate, over the span or over the time that there has been so far."""
        return self.compute_total(now_s) / max(_COUNTED_CELL_S, min(COUNTED_SPAN_S, now_s - self.since_s))

    def _remove_expired_cells(self, now_s: float) -> None:
        oldest = int((now_s - COUNTED_SPAN_S) // _COUNTED_CELL_S)
        for cell in [cell for cell in self._cells if cell <= oldest]:
            del self._cells[cell]


@dataclass(slots=True)
class _SessionActivity:
    """What went to one session; `batches` also counts what others of its part got that have ended since."""

    part: StreamPart
    began_s: float
    batches: SlidingCount
    samples: SlidingCount
    last_active_s: float  # when it last had room for a batch, or got one
    last_epoch: EpochTiming | None = None


@dataclass(slots=True)
class StatusBuilder:
    """Counts as things happen; puts it all together when somebody asks. Times are monotonic, in seconds."""

    streams: Mapping[str, ServedStream]
    workers: int
    memory_bytes: int
    endpoint: str
    counters: Counters
    began_s: float
    epoch_tracker: EpochTracker = field(default_factory=EpochTracker)
    _sessions: dict[int, _SessionActivity] = field(default_factory=dict)
    # Batches of sessions that ended, where none took over.
    _ended_batches: dict[StreamPart, SlidingCount] = field(default_factory=dict)
    _batches_by_stream: dict[str, SlidingCount] = field(init=False)
    _busy_seconds: SlidingCount = field(init=False)
    _worker_deaths: SlidingCount = field(init=False)
    # Why a stream's trainers were ended, until one comes again.
    _failed_streams: dict[str, str] = field(default_factory=dict)
    _paused_streams: dict[str, str] = field(default_factory=dict)  # why a stream's trainers wait for its data
    _reload_failed: bool = False

    def __post_init__(self) -> None:
        self._busy_seconds, self._worker_deaths = SlidingCount(self.began_s), SlidingCount(self.began_s)
        self._batches_by_stream = {name: SlidingCount(self.began_s) for name in self.streams}

    # --- what happens

    def on_session_began(self, session: int, part: StreamPart, now_s: float) -> None:
        self._failed_streams.pop(part[0], None)
        self.epoch_tracker.on_session_began(session, now_s)
        batches = self._ended_batches.pop(part, None) or SlidingCount(now_s)
        self._sessions[session] = _SessionActivity(part, now_s, batches, SlidingCount(now_s), now_s)

    def on_session_ended(self, session: int, now_s: float) -> None:
        seen = self._sessions.pop(session, None)
        if seen is None:
            return
        # What was decoded for it stays in the count, so what it got must, too.
        heirs = [other for other in self._sessions.values() if other.part == seen.part]
        for heir in heirs:
            heir.batches.merge_maximum(seen.batches)
        self._ended_batches = {
            part: batches for part, batches in self._ended_batches.items() if batches.compute_total(now_s)
        }
        if not heirs:
            self._ended_batches[seen.part] = seen.batches

    def on_batches_sent(self, session: int, batches: int, samples: int, now_s: float) -> None:
        seen = self._sessions[session]
        seen.batches.add_amount(now_s, batches)
        seen.samples.add_amount(now_s, samples)
        seen.last_active_s = now_s

    def on_epoch_timing_reported(self, session: int, timing: EpochTiming) -> None:
        """A session has said where the time of an epoch went."""
        if session in self._sessions:
            self._sessions[session].last_epoch = timing

    def on_stream_changed(self, stream: str, now_s: float) -> None:
        """A stream was replaced, added or taken away: what was counted was another's."""
        self._failed_streams.pop(stream, None)
        self._paused_streams.pop(stream, None)
        self._ended_batches = {part: batches for part, batches in self._ended_batches.items() if part[0] != stream}
        self._batches_by_stream[stream] = SlidingCount(now_s)

    def on_batch_produced(self, job: BatchJob, now_s: float) -> None:
        self._batches_by_stream[job.key.stream].add_amount(now_s)
        self._busy_seconds.add_amount(now_s, job.busy_s)
        self.epoch_tracker.on_batch_produced(job.key, job.row_status)

    def on_worker_died(self, now_s: float) -> None:
        """A worker has died, and is replaced."""
        self._worker_deaths.add_amount(now_s)

    def on_stream_failed(self, stream: str, reason: str) -> None:
        """The trainers of a stream were ended."""
        self._failed_streams[stream] = reason

    def on_stream_paused(self, stream: str, why: str) -> None:
        """The trainers of a stream wait for its data."""
        self._paused_streams[stream] = why

    def is_stream_paused(self, stream: str) -> bool:
        """Whether the trainers of a stream wait for its data."""
        return stream in self._paused_streams

    def on_stream_resumed(self, stream: str) -> None:
        """The data are there again."""
        self._paused_streams.pop(stream, None)

    def set_reload_failed(self, *, failed: bool) -> None:
        """The configuration was read again; `failed`: something of it is not served."""
        self._reload_failed = failed

    # --- what is told

    def build_status(self, scheduler: Scheduler, now_s: float, *, is_draining: bool) -> DaemonStatus:
        """Everything, as of now."""
        sessions = [session for session in scheduler.sessions if session.id in self._sessions]
        lifetime_s = max(1.0, min(COUNTED_SPAN_S, now_s - self.began_s))
        return DaemonStatus(
            __version__,
            os.getpid(),
            self.endpoint,
            now_s - self.began_s,
            self.workers,
            min(1.0, self._busy_seconds.compute_total(now_s) / lifetime_s / self.workers),
            self.memory_bytes,
            scheduler.used_bytes,
            is_draining,
            tuple(self._build_stream_status(stream, sessions, now_s) for stream in self.streams.values()),
            tuple(self._build_session_status(session, now_s) for session in sessions),
            int(self.counters.values_by_group().get("engine", {}).get("worker_deaths", 0)),
            round(self._worker_deaths.compute_total(now_s)),
            self._reload_failed,
            sum(each.held_bytes for each in scheduler.ended_sessions.values()),
        )

    def _build_stream_status(
        self, stream: ServedStream, sessions: Iterable[ScheduledSession], now_s: float
    ) -> StreamStatus:
        spec = stream.spec
        readers = [session for session in sessions if session.shape.name == spec.name]
        counters = self.counters.values_by_group().get(f"stream.{spec.name}", {})
        decodes = self.compute_decodes_per_batch(spec.name, now_s)
        return StreamStatus(
            spec.name,
            spec.samples,
            spec.batch_size,
            spec.batches,
            len(readers),
            self._batches_by_stream[spec.name].compute_rate(now_s),
            sum(self._sessions[session.id].samples.compute_rate(now_s) for session in readers),
            decodes,
            len(stream.quarantine.reasons),
            int(counters.get("receipts_ok", 0)),
            int(counters.get("receipts_bad", 0)),
            suggest_remedy_for_apart_trainers(decodes, are_apart=_are_trainers_too_far_apart(readers)),
            stream.explain_too_many_bad_samples() or self._paused_streams.get(spec.name),
            stream.shuffle_score,
            stream.mixing_advice,
            self._failed_streams.get(spec.name),
        )

    def compute_decodes_per_batch(self, stream: str, now_s: float) -> float | None:
        """Decodes for each batch that the trainers needed; trainers of one rank need the same ones."""
        needed = {
            part: batches.compute_total(now_s) for part, batches in self._ended_batches.items() if part[0] == stream
        }
        for seen in self._sessions.values():
            if seen.part[0] == stream:
                needed[seen.part] = max(needed.get(seen.part, 0.0), seen.batches.compute_total(now_s))
        batches = sum(needed.values())
        return self._batches_by_stream[stream].compute_total(now_s) / batches if batches else None

    def _build_session_status(self, session: ScheduledSession, now_s: float) -> SessionStatus:
        seen, walk = self._sessions[session.id], session.rank_steps
        return SessionStatus(
            session.id,
            session.shape.name,
            walk.rank,
            walk.world,
            session.position.epoch,
            walk.epochs,
            session.position.base // walk.world + session.position.step,
            walk.steps_per_epoch,
            session.credit,
            len(session.leases),
            _compute_session_state(session, now_s - seen.last_active_s),
            seen.samples.compute_rate(now_s),
            now_s - seen.began_s,
            seen.last_epoch,
        )


def _are_trainers_too_far_apart(readers: Iterable[ScheduledSession]) -> bool:
    """Whether trainers of one rank are further from each other than one holds batches: they cannot share now."""
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for session in readers:
        if not session.finished:
            place = (
                session.position.epoch * session.rank_steps.steps_per_epoch
                + session.next_epoch_and_base[1] // session.rank_steps.world
            )
            places.setdefault((session.rank_steps.rank, session.rank_steps.world), []).append((place, session.credit))
    return any(max(cohort)[0] - min(cohort)[0] > max(credit for _, credit in cohort) for cohort in places.values())


def _compute_session_state(session: ScheduledSession, quiet_s: float) -> SessionState:
    if session.finished:
        return "finished"
    if session.gathering_count:
        return "gathering"
    if session.sendable_count > 0:
        return "waiting"
    return "resting" if quiet_s >= RESTING_S else "reading"


@dataclass(frozen=True, slots=True)
class QueryResponder:
    """`streams` are those served now: a reload changes the mapping. `monitor` is None where there is none."""

    streams: Mapping[str, ServedStream]
    scheduler: Scheduler
    slots: SlotStore
    counters: Counters
    status_builder: StatusBuilder
    monitor: MonitorAt | None = None

    def answer_query(self, question: QueryMessage, *, session_count: int, is_draining: bool) -> QueryAnswer:
        """The answer as of now."""
        match question:
            case AskStreams():
                return Streams({name: stream.spec for name, stream in self.streams.items()})
            case AskStats():
                return Stats(self.collect_stats_values(session_count))
            case AskStatus():
                return StatusNow(
                    self.status_builder.build_status(self.scheduler, time.monotonic(), is_draining=is_draining)
                )
            case AskMonitor():
                return self.monitor or Refused("usage", _NO_MONITOR_TEXT)
            case AskNames():
                return self._answer_file_names(question)

    def _answer_file_names(self, question: AskNames) -> Names | Refused:
        refusal = find_names_query_refusal(question, self.streams)
        if refusal is not None:
            return refusal
        stream = self.streams[question.stream]
        return Names(tuple(stream.format_file_name(sample_id) for sample_id in question.sample_ids))

    def collect_stats_values(self, session_count: int) -> dict[str, dict[str, float]]:
        """All that is counted, and what goes up and down as it is now."""
        self.counters.set_gauge("daemon", "sessions", session_count)
        self.counters.set_gauge("daemon", "memory_used_bytes", self.scheduler.used_bytes)
        self.counters.set_gauge("daemon", "slots", len(self.slots))
        self.counters.set_gauge("daemon", "producing", self.scheduler.producing_count)
        self.counters.set_gauge("daemon", "slot_wait_s", self.scheduler.slot_wait_s)
        for rule, checks in self.scheduler.checks_by_rule.items():
            self.counters.set_gauge("rules", rule, checks)
        return self.counters.values_by_group()


def find_names_query_refusal(question: AskNames, streams: Mapping[str, ServedStream]) -> Refused | None:
    """Why names cannot be told."""
    stream = streams.get(question.stream)
    if stream is None:
        return build_unknown_stream_refusal(question.stream, streams)
    if len(question.sample_ids) > MAX_NAMES:
        return Refused("usage", f"{len(question.sample_ids)} names asked for at once; {MAX_NAMES} are the most")
    samples = stream.spec.samples
    strange = next((each for each in question.sample_ids if not 0 <= each < samples), None)
    if strange is not None:
        return Refused("usage", f"stream {question.stream!r} has sample ids 0 to {samples - 1}, not {strange}")
    return None


def build_unknown_stream_refusal(name: str, streams: Iterable[str]) -> Refused:
    """Why nothing is known of a stream."""
    return Refused("unknown", f"no stream {name!r}{suggest_name(name, streams)}; served: {', '.join(streams)}")
