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
from streamd.core.status import RESTING_S, DaemonStatus, SessionState, SessionStatus, StreamStatus, suggest_remedy
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.epoch_summary import Epochs
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
from streamd.scheduler import Window
from streamd.scheduler.session import Session

SPAN_S: Final = 30
_CELL_S: Final = 2  # what is counted together, and forgotten together
_NO_MONITOR: Final = (
    "this daemon has no dashboard: give its configuration a line such as `monitor: 127.0.0.1:9191` and start it anew"
)

Question = AskStreams | AskStats | AskStatus | AskMonitor | AskNames
Answer = Streams | Stats | StatusNow | MonitorAt | Names | Refused
Part = tuple[str, int, int]  # a stream, and whose batches of it: rank and world


@dataclass(slots=True)
class Recent:
    """Counts over a sliding span, in a few cells: adding costs next to nothing, whatever the rate."""

    since_s: float
    _cells: dict[int, float] = field(default_factory=dict)

    def add(self, now_s: float, amount: float = 1) -> None:
        cell = int(now_s // _CELL_S)
        if cell in self._cells:
            self._cells[cell] += amount
        else:
            self._forget(now_s)
            self._cells[cell] = amount

    def cover(self, other: Recent) -> None:
        """Counts at least what the other counted, in each part of the span."""
        for cell, amount in other._cells.items():
            self._cells[cell] = max(amount, self._cells.get(cell, 0))

    def total(self, now_s: float) -> float:
        """What was counted within the span."""
        self._forget(now_s)
        return sum(self._cells.values())

    def per_s(self, now_s: float) -> float:
        """The rate, over the span or over the time that there has been so far."""
        return self.total(now_s) / max(_CELL_S, min(SPAN_S, now_s - self.since_s))

    def _forget(self, now_s: float) -> None:
        oldest = int((now_s - SPAN_S) // _CELL_S)
        for cell in [cell for cell in self._cells if cell <= oldest]:
            del self._cells[cell]


@dataclass(slots=True)
class _Seen:
    """What went to one session; `batches` also counts what others of its part got that have ended since."""

    part: Part
    began_s: float
    batches: Recent
    samples: Recent
    asked_s: float  # when it last had room for a batch, or got one
    last_epoch: EpochTiming | None = None


@dataclass(slots=True)
class Overview:
    """Counts as things happen; puts it all together when somebody asks. Times are monotonic, in seconds."""

    streams: Mapping[str, ServedStream]
    workers: int
    memory_bytes: int
    endpoint: str
    stats: Counters
    began_s: float
    epochs: Epochs = field(default_factory=Epochs)
    _sessions: dict[int, _Seen] = field(default_factory=dict)
    _left: dict[Part, Recent] = field(default_factory=dict)  # batches of sessions that ended, where none took over
    _produced: dict[str, Recent] = field(init=False)
    _busy: Recent = field(init=False)
    _deaths: Recent = field(init=False)
    _failed: dict[str, str] = field(default_factory=dict)  # why a stream's trainers were ended, until one comes again
    _paused: dict[str, str] = field(default_factory=dict)  # why a stream's trainers wait for its data
    _reload_failed: bool = False

    def __post_init__(self) -> None:
        self._busy, self._deaths = Recent(self.began_s), Recent(self.began_s)
        self._produced = {name: Recent(self.began_s) for name in self.streams}

    # --- what happens

    def began(self, session: int, part: Part, now_s: float) -> None:
        self._failed.pop(part[0], None)
        self.epochs.began(session, now_s)
        batches = self._left.pop(part, None) or Recent(now_s)
        self._sessions[session] = _Seen(part, now_s, batches, Recent(now_s), now_s)

    def ended(self, session: int, now_s: float) -> None:
        seen = self._sessions.pop(session, None)
        if seen is None:
            return
        # What was decoded for it stays in the count, so what it got must, too.
        heirs = [other for other in self._sessions.values() if other.part == seen.part]
        for heir in heirs:
            heir.batches.cover(seen.batches)
        self._left = {part: batches for part, batches in self._left.items() if batches.total(now_s)}
        if not heirs:
            self._left[seen.part] = seen.batches

    def sent(self, session: int, batches: int, samples: int, now_s: float) -> None:
        seen = self._sessions[session]
        seen.batches.add(now_s, batches)
        seen.samples.add(now_s, samples)
        seen.asked_s = now_s

    def timed(self, session: int, timing: EpochTiming) -> None:
        """A session has said where the time of an epoch went."""
        if session in self._sessions:
            self._sessions[session].last_epoch = timing

    def changed(self, stream: str, now_s: float) -> None:
        """A stream was replaced, added or taken away: what was counted was another's."""
        self._failed.pop(stream, None)
        self._paused.pop(stream, None)
        self._left = {part: batches for part, batches in self._left.items() if part[0] != stream}
        self._produced[stream] = Recent(now_s)

    def produced(self, job: BatchJob, now_s: float) -> None:
        self._produced[job.key.stream].add(now_s)
        self._busy.add(now_s, job.busy_s)
        self.epochs.produced(job.key, job.marks)

    def died(self, now_s: float) -> None:
        """A worker has died, and is replaced."""
        self._deaths.add(now_s)

    def failed(self, stream: str, reason: str) -> None:
        """The trainers of a stream were ended."""
        self._failed[stream] = reason

    def paused(self, stream: str, why: str) -> None:
        """The trainers of a stream wait for its data."""
        self._paused[stream] = why

    def is_paused(self, stream: str) -> bool:
        """Whether the trainers of a stream wait for its data."""
        return stream in self._paused

    def resumed(self, stream: str) -> None:
        """The data are there again."""
        self._paused.pop(stream, None)

    def reloaded(self, *, failed: bool) -> None:
        """The configuration was read again; `failed`: something of it is not served."""
        self._reload_failed = failed

    # --- what is told

    def status(self, window: Window, now_s: float, *, draining: bool) -> DaemonStatus:
        """Everything, as of now."""
        sessions = [session for session in window.sessions if session.id in self._sessions]
        lifetime_s = max(1.0, min(SPAN_S, now_s - self.began_s))
        return DaemonStatus(
            __version__,
            os.getpid(),
            self.endpoint,
            now_s - self.began_s,
            self.workers,
            min(1.0, self._busy.total(now_s) / lifetime_s / self.workers),
            self.memory_bytes,
            window.used_bytes,
            draining,
            tuple(self._stream(stream, sessions, now_s) for stream in self.streams.values()),
            tuple(self._session(session, now_s) for session in sessions),
            int(self.stats.values_by_group().get("engine", {}).get("worker_deaths", 0)),
            round(self._deaths.total(now_s)),
            self._reload_failed,
            sum(each.held_bytes for each in window.ended.values()),
        )

    def _stream(self, stream: ServedStream, sessions: Iterable[Session], now_s: float) -> StreamStatus:
        spec = stream.spec
        readers = [session for session in sessions if session.shape.name == spec.name]
        counters = self.stats.values_by_group().get(f"stream.{spec.name}", {})
        decodes = self.decodes_per_batch(spec.name, now_s)
        return StreamStatus(
            spec.name,
            spec.samples,
            spec.batch_size,
            spec.batches,
            len(readers),
            self._produced[spec.name].per_s(now_s),
            sum(self._sessions[session.id].samples.per_s(now_s) for session in readers),
            decodes,
            len(stream.quarantine.reasons),
            int(counters.get("receipts_ok", 0)),
            int(counters.get("receipts_bad", 0)),
            suggest_remedy(decodes, are_apart=_are_apart(readers)),
            stream.explain_too_many_bad() or self._paused.get(spec.name),
            stream.shuffle_score,
            stream.mixing_advice,
            self._failed.get(spec.name),
        )

    def decodes_per_batch(self, stream: str, now_s: float) -> float | None:
        """Decodes for each batch that the trainers needed; trainers of one rank need the same ones."""
        needed = {part: batches.total(now_s) for part, batches in self._left.items() if part[0] == stream}
        for seen in self._sessions.values():
            if seen.part[0] == stream:
                needed[seen.part] = max(needed.get(seen.part, 0.0), seen.batches.total(now_s))
        batches = sum(needed.values())
        return self._produced[stream].total(now_s) / batches if batches else None

    def _session(self, session: Session, now_s: float) -> SessionStatus:
        seen, walk = self._sessions[session.id], session.walk
        return SessionStatus(
            session.id,
            session.shape.name,
            walk.rank,
            walk.world,
            session.at.epoch,
            walk.epochs,
            session.at.base // walk.world + session.at.step,
            walk.steps_per_epoch,
            session.credit,
            len(session.leases),
            _doing(session, now_s - seen.asked_s),
            seen.samples.per_s(now_s),
            now_s - seen.began_s,
            seen.last_epoch,
        )


def _are_apart(readers: Iterable[Session]) -> bool:
    """Whether trainers of one rank are further from each other than one holds batches: they cannot share now."""
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for session in readers:
        if not session.finished:
            place = session.at.epoch * session.walk.steps_per_epoch + session.place[1] // session.walk.world
            places.setdefault((session.walk.rank, session.walk.world), []).append((place, session.credit))
    return any(max(cohort)[0] - min(cohort)[0] > max(credit for _, credit in cohort) for cohort in places.values())


def _doing(session: Session, quiet_s: float) -> SessionState:
    if session.finished:
        return "finished"
    if session.together:
        return "gathering"
    if session.room > 0:
        return "waiting"
    return "resting" if quiet_s >= RESTING_S else "reading"


@dataclass(frozen=True, slots=True)
class Answers:
    """`streams` are those served now: a reload changes the mapping. `monitor` is None where there is none."""

    streams: Mapping[str, ServedStream]
    window: Window
    slots: SlotStore
    stats: Counters
    overview: Overview
    monitor: MonitorAt | None = None

    def to(self, question: Question, *, sessions: int, draining: bool) -> Answer:
        """The answer as of now."""
        match question:
            case AskStreams():
                return Streams({name: stream.spec for name, stream in self.streams.items()})
            case AskStats():
                return Stats(self.numbers(sessions))
            case AskStatus():
                return StatusNow(self.overview.status(self.window, time.monotonic(), draining=draining))
            case AskMonitor():
                return self.monitor or Refused("usage", _NO_MONITOR)
            case AskNames():
                return self._names(question)

    def _names(self, question: AskNames) -> Names | Refused:
        refusal = names_objection(question, self.streams)
        if refusal is not None:
            return refusal
        stream = self.streams[question.stream]
        return Names(tuple(stream.format_file_name(sample_id) for sample_id in question.sample_ids))

    def numbers(self, sessions: int) -> dict[str, dict[str, float]]:
        """All that is counted, and what goes up and down as it is now."""
        self.stats.set_gauge("daemon", "sessions", sessions)
        self.stats.set_gauge("daemon", "memory_used_bytes", self.window.used_bytes)
        self.stats.set_gauge("daemon", "slots", len(self.slots))
        self.stats.set_gauge("daemon", "producing", self.window.producing)
        self.stats.set_gauge("daemon", "slot_wait_s", self.window.slot_wait_s)
        for rule, checks in self.window.checks.items():
            self.stats.set_gauge("rules", rule, checks)
        return self.stats.values_by_group()


def names_objection(question: AskNames, streams: Mapping[str, ServedStream]) -> Refused | None:
    """Why names cannot be told."""
    stream = streams.get(question.stream)
    if stream is None:
        return unknown_stream(question.stream, streams)
    if len(question.sample_ids) > MAX_NAMES:
        return Refused("usage", f"{len(question.sample_ids)} names asked for at once; {MAX_NAMES} are the most")
    samples = stream.spec.samples
    strange = next((each for each in question.sample_ids if not 0 <= each < samples), None)
    if strange is not None:
        return Refused("usage", f"stream {question.stream!r} has sample ids 0 to {samples - 1}, not {strange}")
    return None


def unknown_stream(name: str, streams: Iterable[str]) -> Refused:
    """Why nothing is known of a stream."""
    return Refused("unknown", f"no stream {name!r}{suggest_name(name, streams)}; served: {', '.join(streams)}")
