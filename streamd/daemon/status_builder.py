"""Builds the daemon's status: which trainers read which streams, how fast, and whether they share each decode.

All rates cover the same stretch of time.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from streamd import __version__
from streamd.core import log
from streamd.core.counters import ProcessStats
from streamd.core.epoch_timing import EpochTiming, find_bottleneck
from streamd.core.spec import count_own_steps
from streamd.core.status import (
    COUNTED_SPAN_S,
    RESTING_S,
    ClusterStatus,
    DaemonStatus,
    ImageStatus,
    NodeStatus,
    SessionState,
    SessionStatus,
    StreamStatus,
    compare_sessions,
    suggest_remedy_for_apart_trainers,
)
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.epoch_summary import EpochTracker
from streamd.daemon.streams.served_stream import ServedStream
from streamd.limits import MAX_SLOTS
from streamd.scheduler.scheduler import Scheduler
from streamd.scheduler.session import ScheduledSession

# --- Counts over the last seconds. All counts cover the same stretch of time. Pure.

_CELL_S: Final = 0.5  # seconds that are counted together, and forgotten together
_MIN_WINDOW_S: Final = 1.0  # seconds; a rate over less would be noise


@dataclass(slots=True)
class SlidingCount:
    """Counts over the last `span_s` seconds, in a few cells, so that adding is cheap at any rate.

    Cells begin at fixed times, so that all counts of one span cover the same stretch of time.
    """

    span_s: int = COUNTED_SPAN_S
    _cells: dict[int, float] = field(default_factory=dict)

    def add_amount(self, now_s: float, amount: float = 1) -> None:
        cell = int(now_s // _CELL_S)
        if cell in self._cells:
            self._cells[cell] += amount
        else:
            self._remove_expired_cells(now_s)
            self._cells[cell] = amount

    def merge_maximum(self, other: SlidingCount) -> None:
        """Increases each cell to that of the other count, where that is larger."""
        for cell, amount in other._cells.items():
            self._cells[cell] = max(amount, self._cells.get(cell, 0))

    def compute_total(self, now_s: float) -> float:
        """Returns the sum over the span."""
        self._remove_expired_cells(now_s)
        return sum(self._cells.values())

    def _remove_expired_cells(self, now_s: float) -> None:
        first = _find_first_cell(now_s, self.span_s)
        for cell in [cell for cell in self._cells if cell < first]:
            del self._cells[cell]


def compute_window(now_s: float, began_s: float) -> float:
    """Returns the seconds that all counts of the usual span cover now, in a daemon that began at `began_s`."""
    covered_from_s = _find_first_cell(now_s, COUNTED_SPAN_S) * _CELL_S
    return max(_MIN_WINDOW_S, now_s - max(began_s, covered_from_s))


def _find_first_cell(now_s: float, span_s: int) -> int:
    return int((now_s - span_s) // _CELL_S) + 1


# --- Builds the daemon's status: which trainers read which streams, how fast, and whether they share each decode.

_DEATHS_SPAN_S: Final = 30
_ASKING: Final[frozenset[SessionState]] = frozenset({"waiting", "reading"})
_NO_EPOCH_TEXT: Final = "known once a trainer has read an epoch"
_NO_BATCHES_TEXT: Final = "no trainer has received a batch lately"

StreamPart = tuple[str, int, int]  # stream name, rank, world


@dataclass(frozen=True, slots=True)
class SubscribedTrainer:
    """A trainer as its subscription describes it: its name, process, rows of a batch and steps of an epoch.

    0 means unknown. Steps and rows are then those of the stream. `is_remote`: it runs on another host.
    """

    name: str = ""
    pid: int = 0
    batch_size: int = 0
    steps: int = 0
    is_remote: bool = False


_UNKNOWN_TRAINER: Final = SubscribedTrainer()


@dataclass(slots=True)
class _SessionActivity:
    """What one session was sent and took. `batches` also counts those of ended sessions of the same part."""

    part: StreamPart
    trainer: SubscribedTrainer
    began_s: float
    last_active_s: float  # when it last got a batch or took one
    batches: SlidingCount  # that were sent to it
    samples: SlidingCount = field(default_factory=SlidingCount)  # that it took
    taken: int = 0  # deliveries that its loop took
    untaken: deque[tuple[int, int]] = field(default_factory=deque)  # epoch and samples of each delivery sent, not taken
    last_epoch: EpochTiming | None = None


@dataclass(slots=True)
class _StreamActivity:
    """What was done for one stream since the daemon started or the stream was changed."""

    decoded_batches: SlidingCount = field(default_factory=SlidingCount)
    # Each batch is counted when it is first sent to any trainer. A batch that is decoded ahead and never sent does not
    # count.
    first_sent_batches: SlidingCount = field(default_factory=SlidingCount)
    taken_samples: SlidingCount = field(default_factory=SlidingCount)  # also by ended sessions
    was_read: bool = False  # by a trainer, for at least one epoch
    failed: str | None = None  # why its sessions were ended, until a new one begins
    paused: str | None = None  # why its trainers wait for its data


@dataclass(slots=True)
class StatusBuilder:
    """Counts events, and builds the status from the counts. Times are seconds of the monotonic clock."""

    streams: Mapping[str, ServedStream]
    workers: int
    memory_bytes: int
    endpoint: str
    counters: ProcessStats
    began_s: float
    epoch_tracker: EpochTracker = field(default_factory=EpochTracker)
    reload_failed: bool = False  # the last reload left a part of the configuration unserved
    _sessions: dict[int, _SessionActivity] = field(default_factory=dict)
    # Batches of ended sessions, for parts that no session reads now.
    _ended_batches: dict[StreamPart, SlidingCount] = field(default_factory=dict)
    _activities: defaultdict[str, _StreamActivity] = field(default_factory=lambda: defaultdict(_StreamActivity))
    _busy_seconds: SlidingCount = field(default_factory=SlidingCount)
    _reading_seconds: SlidingCount = field(default_factory=SlidingCount)
    _waited_seconds: SlidingCount = field(default_factory=SlidingCount)  # of all trainers
    _slot_wait_seconds: SlidingCount = field(default_factory=SlidingCount)
    _slot_wait_total_s: float = 0.0
    _worker_deaths: SlidingCount = field(default_factory=lambda: SlidingCount(_DEATHS_SPAN_S))
    _cluster: ClusterStatus | None = None

    # --- events

    def on_session_began(
        self, session: int, part: StreamPart, now_s: float, trainer: SubscribedTrainer = _UNKNOWN_TRAINER
    ) -> None:
        self._activities[part[0]].failed = None
        self.epoch_tracker.on_session_began(session, now_s)
        batches = self._ended_batches.pop(part, None) or SlidingCount()
        self._sessions[session] = _SessionActivity(part, trainer, now_s, now_s, batches)

    def set_cluster(self, cluster: ClusterStatus) -> None:
        """Records the cluster as it is now, and logs what has changed in it."""
        log_cluster_changes(self._cluster, cluster)
        self._cluster = cluster
        self.workers = max(1, cluster.workers)

    def set_process(self, session: int, pid: int) -> None:
        """Sets the process of a session as the kernel reports it, which is its pid on the daemon's host."""
        if session in self._sessions and pid > 0 and not self._sessions[session].trainer.is_remote:
            self._sessions[session].trainer = replace(self._sessions[session].trainer, pid=pid)

    def on_session_ended(self, session: int, now_s: float) -> None:
        seen = self._sessions.pop(session, None)
        if seen is None:
            return
        # The decodes for its batches stay counted, so its batches must stay too. Sessions of the same part had the same
        # batches, so the larger count of each cell stands for both.
        heirs = [other for other in self._sessions.values() if other.part == seen.part]
        for heir in heirs:
            heir.batches.merge_maximum(seen.batches)
        self._ended_batches = {
            part: batches for part, batches in self._ended_batches.items() if batches.compute_total(now_s)
        }
        if not heirs:
            self._ended_batches[seen.part] = seen.batches

    def on_batches_sent(
        self, session: int, deliveries: Sequence[tuple[int, int]], now_s: float, *, first_sent: int
    ) -> None:
        """Counts batches sent to a session, by epoch and samples. For `first_sent` of them it is the first session."""
        seen = self._sessions[session]
        seen.batches.add_amount(now_s, len(deliveries))
        seen.untaken.extend(deliveries)
        # A trainer can release only what it has taken, so no more can be untaken than a session may hold.
        self._mark_taken(seen, len(seen.untaken) - MAX_SLOTS, now_s)
        seen.last_active_s = now_s
        if first_sent:
            self._activities[seen.part[0]].first_sent_batches.add_amount(now_s, first_sent)

    def on_progress(self, session: int, taken: int, waited_s: float, now_s: float) -> None:
        """Counts the deliveries that a trainer has taken in all, and the seconds waited since its last report."""
        self._waited_seconds.add_amount(now_s, max(0.0, waited_s))  # a client may send any number
        seen = self._sessions.get(session)
        if seen is not None:
            # A client may also claim to have taken more than it was sent.
            self._mark_taken(seen, min(taken - seen.taken, len(seen.untaken)), now_s)

    def on_epoch_received(self, session: int, epoch: int, timing: EpochTiming | None, now_s: float) -> None:
        """Records that a trainer has finished an epoch, and so has taken all deliveries of it.

        `timing` is how it has spent the time of the epoch, if it says so.
        """
        seen = self._sessions.get(session)
        if seen is not None:
            seen.last_epoch = timing or seen.last_epoch
            self._activities[seen.part[0]].was_read = True
            self._mark_taken(seen, sum(each <= epoch for each, _ in seen.untaken), now_s)

    def _mark_taken(self, seen: _SessionActivity, deliveries: int, now_s: float) -> None:
        if deliveries <= 0:
            return
        samples = sum(seen.untaken.popleft()[1] for _ in range(deliveries))
        seen.taken += deliveries
        seen.last_active_s = now_s
        seen.samples.add_amount(now_s, samples)
        self._activities[seen.part[0]].taken_samples.add_amount(now_s, samples)
        self.counters.add_count(f"stream.{seen.part[0]}", "taken_samples", samples)

    def on_slot_wait(self, total_s: float, now_s: float) -> None:
        """Counts the time without a slot for the next batch, from its total so far in seconds."""
        self._slot_wait_seconds.add_amount(now_s, total_s - self._slot_wait_total_s)
        self._slot_wait_total_s = total_s

    def on_stream_changed(self, stream: str) -> None:
        """Resets the counts of a stream that was replaced, added or removed."""
        self._activities[stream] = _StreamActivity()
        self._ended_batches = {part: batches for part, batches in self._ended_batches.items() if part[0] != stream}

    def on_batch_produced(self, job: BatchJob, now_s: float) -> None:
        self._activities[job.key.stream].decoded_batches.add_amount(now_s)
        self._busy_seconds.add_amount(now_s, job.busy_s)
        self._reading_seconds.add_amount(now_s, job.waited_s)
        self.epoch_tracker.on_batch_produced(job.key, job.row_status)

    def on_worker_died(self, now_s: float) -> None:
        """Counts a worker that has died and is replaced."""
        self._worker_deaths.add_amount(now_s)

    def on_stream_failed(self, stream: str, reason: str) -> None:
        """Records why a stream's sessions were ended."""
        self._activities[stream].failed = reason

    def set_stream_paused(self, stream: str, why: str | None) -> None:
        """Records why the trainers of a stream wait for its data; None when the data are there again."""
        self._activities[stream].paused = why

    def is_stream_paused(self, stream: str) -> bool:
        """Whether the trainers of a stream wait for its data."""
        return self._activities[stream].paused is not None

    # --- status

    def build_status(self, scheduler: Scheduler, now_s: float, *, slots: int, is_draining: bool) -> DaemonStatus:
        """Returns the status of the daemon as of now; `slots` is the number of its slots."""
        self.on_slot_wait(scheduler.slot_wait_s, now_s)
        known = [session for session in scheduler.sessions if session.id in self._sessions]
        window_s = compute_window(now_s, self.began_s)
        sessions = compare_sessions([self._build_session_status(session, now_s, window_s) for session in known])
        busy, reading = (
            min(1.0, count.compute_total(now_s) / window_s / self.workers)
            for count in (self._busy_seconds, self._reading_seconds)
        )
        decoding = max(0.0, busy - reading)
        slot_wait = min(1.0, self._slot_wait_seconds.compute_total(now_s) / window_s)
        # A trainer reports its wait only after the batch has come. So while no trainer gets any batch, the trainers
        # that are seen waiting are counted instead.
        if any(each.samples_per_s for each in sessions):
            waiting = min(self._waited_seconds.compute_total(now_s) / window_s, float(len(sessions)))
        else:
            waiting = float(sum(each.doing == "waiting" for each in sessions))
        asking = sum(each.doing in _ASKING for each in sessions)
        return DaemonStatus(
            version=__version__,
            pid=os.getpid(),
            endpoint=self.endpoint,
            uptime_s=now_s - self.began_s,
            workers=self.workers,
            busy_fraction=busy,
            memory_bytes=self.memory_bytes,
            memory_used_bytes=scheduler.used_bytes,
            draining=is_draining,
            streams=tuple(
                self._build_stream_status(stream, known, sessions, now_s, window_s) for stream in self.streams.values()
            ),
            sessions=sessions,
            worker_deaths=int(self.counters.counter_value("engine", "worker_deaths")),
            deaths_lately=round(self._worker_deaths.compute_total(now_s)),
            reload_failed=self.reload_failed,
            held_over_bytes=sum(each.held_bytes for each in scheduler.ended_sessions.values()),
            window_s=window_s,
            reading_fraction=reading,
            decoding_fraction=decoding,
            waiting_trainers=waiting,
            slot_wait_fraction=slot_wait,
            cluster=self._cluster,
            slots=slots,
            bottleneck=find_bottleneck(asking, waiting, reading, decoding, slot_wait),
        )

    def _build_stream_status(
        self,
        stream: ServedStream,
        scheduled: Iterable[ScheduledSession],
        sessions: Iterable[SessionStatus],
        now_s: float,
        window_s: float,
    ) -> StreamStatus:
        spec, group = stream.spec, f"stream.{stream.spec.name}"
        readers = [session for session in scheduled if session.shape.name == spec.name]
        cohorts = {each.cohort for each in sessions if each.stream == spec.name and each.cohort is not None}
        decodes = self.compute_decodes_per_batch(spec.name, now_s)
        seen = self._activities[spec.name]
        return StreamStatus(
            name=spec.name,
            samples=spec.samples,
            batch_size=spec.batch_size,
            batches=spec.batches,
            sessions=len(readers),
            decoded_per_s=seen.decoded_batches.compute_total(now_s) / window_s,
            samples_per_s=seen.taken_samples.compute_total(now_s) / window_s,
            decodes_per_batch=decodes if seen.was_read else None,
            bad=len(stream.quarantine.reasons),
            receipts_ok=int(self.counters.counter_value(group, "receipts_ok")),
            receipts_bad=int(self.counters.counter_value(group, "receipts_bad")),
            remedy=suggest_remedy_for_apart_trainers(decodes, are_apart=_are_trainers_too_far_apart(readers)),
            stopped=stream.explain_too_many_bad_samples() or seen.paused,
            shuffle_score=stream.shuffle_score,
            poorly_mixed=stream.mixing_advice,
            failed=seen.failed,
            decodes_unknown=(_NO_EPOCH_TEXT if not seen.was_read else _NO_BATCHES_TEXT if decodes is None else None),
            images=tuple(
                ImageStatus(name, image.shape, image.mode, image.dtype) for name, image in spec.images.items()
            ),
            cohorts=len(cohorts),
        )

    def compute_decodes_per_batch(self, stream: str, now_s: float) -> float | None:
        """Returns the decodes for each batch that trainers were sent; None if they were sent none lately.

        A decode counts when its batch is first sent to a trainer. So a trainer alone is at 1, whatever was decoded
        ahead, or dropped before it was sent.
        """
        # Sessions of one part get the same batches, so each part counts the largest number that one of them was sent.
        needed = {
            part: batches.compute_total(now_s) for part, batches in self._ended_batches.items() if part[0] == stream
        }
        for seen in self._sessions.values():
            if seen.part[0] == stream:
                needed[seen.part] = max(needed.get(seen.part, 0.0), seen.batches.compute_total(now_s))
        batches = sum(needed.values())
        return self._activities[stream].first_sent_batches.compute_total(now_s) / batches if batches else None

    def _build_session_status(self, session: ScheduledSession, now_s: float, window_s: float) -> SessionStatus:
        seen, walk = self._sessions[session.id], session.rank_steps
        steps, in_flight = walk.steps_per_epoch, max(0, session.sent - seen.taken)
        sent = session.position.epoch * steps + session.position.base // walk.world + session.position.step
        epoch, step = divmod(max(0, sent - in_flight), max(1, steps))
        stream = self.streams.get(session.shape.name)
        rows = stream.spec.batch_size if stream is not None else 1
        own_size, own_steps = seen.trainer.batch_size or rows, seen.trainer.steps or steps
        quiet_s, age_s = now_s - seen.last_active_s, now_s - seen.began_s
        doing: SessionState
        if session.finished and not in_flight:
            doing = "finished"
        elif session.gathering_count:
            doing = "gathering"
        elif session.sendable_count > 0:
            doing = "waiting"
        else:
            doing = "resting" if quiet_s >= RESTING_S else "reading"
        samples = seen.samples.compute_total(now_s)
        left_s = None
        if doing != "finished" and samples > 0:
            # The rate is over the whole window, but a session younger than that took its samples in a shorter time.
            left_s = (steps - step) * rows * min(window_s, max(1.0, age_s)) / samples
        return SessionStatus(
            session=session.id,
            stream=session.shape.name,
            rank=walk.rank,
            world=walk.world,
            epoch=epoch,
            epochs=walk.epochs,
            step=step,
            steps=steps,
            credit=session.credit,
            held=len(session.leases),
            doing=doing,
            samples_per_s=samples / window_s,
            age_s=age_s,
            last_epoch=seen.last_epoch,
            name=seen.trainer.name,
            pid=seen.trainer.pid,
            batch_size=own_size,
            own_step=count_own_steps(step, steps, rows, own_size, own_steps),
            own_steps=own_steps,
            in_flight=in_flight,
            left_s=left_s,
        )


def _are_trainers_too_far_apart(readers: Iterable[ScheduledSession]) -> bool:
    """Whether trainers of one rank are further apart than the largest credit, so that they cannot share decodes now."""
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for session in readers:
        if not session.finished:
            place = (
                session.position.epoch * session.rank_steps.steps_per_epoch
                + session.next_epoch_and_base[1] // session.rank_steps.world
            )
            places.setdefault((session.rank_steps.rank, session.rank_steps.world), []).append((place, session.credit))
    return any(max(cohort)[0] - min(cohort)[0] > max(credit for _, credit in cohort) for cohort in places.values())


# --- Logs what has changed in the cluster that decodes, node by node.


def log_cluster_changes(before: ClusterStatus | None, now: ClusterStatus) -> None:
    """Logs each node whose state has changed, and whether the cluster can be used."""
    problem = before.problem if before is not None else ""
    if now.problem and now.problem != problem:
        log.warning("cluster.away", now.problem, address=now.address)
    elif problem and not now.problem:
        log.notice("cluster.back", "the cluster can be used", address=now.address)
    states = {node.name: (node.state, node.waits_for) for node in (before.nodes if before is not None else ())}
    changed = [node for node in now.nodes if states.pop(node.name, None) != (node.state, node.waits_for)]
    left = [name for name, (state, _) in states.items() if state != "lost"]
    changed += [NodeStatus(name, "lost", waits_for="it has left the cluster") for name in left]
    for node in changed:
        reason = f": {node.waits_for}" if node.waits_for else ""
        match node.state:
            case "serving":
                log.info("node.serving", f"decodes from now on{reason}", node=node.name)
            case "silent":
                log.warning("node.silent", f"other nodes do its tasks{reason}", node=node.name)
            case "refused":
                log.warning("node.refused", f"may not decode{reason}", node=node.name)
            case "lost":
                log.warning("node.lost", f"other nodes do its tasks{reason}", node=node.name)
            case "starting":
                pass
