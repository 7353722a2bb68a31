"""What a daemon does, as `streamd top` and the dashboard show it: cohorts of sessions, rates, and the bottleneck.

A cohort is a group of sessions that are close enough together to share each decode. Pure; `watch_activity` gets its
clock as an argument.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from streamd.core.bottleneck import Bottleneck
from streamd.core.epoch_timing import BatchSupply, find_epoch_bottleneck
from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus
from streamd.errors import ConnectError
from streamd.limits import MAX_COUNT, WAIT_NOTICED

_ASKING: Final = frozenset({"waiting", "reading"})
_STARVED: Final = 0.5  # of the time without a slot for the next batch: what trainers wait for is memory then


def count_steps_done(session: SessionStatus) -> int:
    """Returns the number of the stream's batches that its trainer took since the beginning of epoch 0."""
    return session.epoch * session.steps + session.step


def count_steps_sent(session: SessionStatus) -> int:
    """Returns the number of the stream's batches that were sent to it since the beginning of epoch 0."""
    return count_steps_done(session) + session.in_flight


def compute_steps_behind_leader(sessions: Iterable[SessionStatus]) -> dict[int, int]:
    """Returns how many steps each unfinished session is behind the furthest of its stream, rank and world.

    At most MAX_COUNT: a session may begin in any epoch, and the number has to fit into 64 bits.
    """
    return {
        each.session: min(MAX_COUNT, max(map(count_steps_done, row)) - count_steps_done(each))
        for row in _group_sessions_by_rank(sessions)
        for each in row
    }


def assign_cohort_numbers(sessions: Iterable[SessionStatus]) -> dict[int, int]:
    """Returns the cohort of each unfinished session, by session; cohorts of a stream are numbered from 0."""
    found: dict[int, int] = {}
    begun: Counter[str] = Counter()
    for row in _group_sessions_by_rank(sessions):
        for ahead, each in zip((row[0], *row), row, strict=False):
            begun[each.stream] += ahead is each or _are_too_far_apart_to_share(ahead, each)
            found[each.session] = begun[each.stream] - 1
    return found


def count_cohorts_by_stream(sessions: Iterable[SessionStatus]) -> dict[str, int]:
    """Returns how many cohorts the unfinished sessions of each stream form."""
    found: dict[str, int] = defaultdict(int)
    for row in _group_sessions_by_rank(sessions):
        found[row[0].stream] += 1 + sum(_are_too_far_apart_to_share(ahead, each) for ahead, each in pairwise(row))
    return dict(found)


def _are_too_far_apart_to_share(ahead: SessionStatus, behind: SessionStatus) -> bool:
    """Whether two sessions are further apart than the larger of their credits."""
    return count_steps_sent(ahead) - count_steps_sent(behind) > max(ahead.credit, behind.credit)


def _group_sessions_by_rank(sessions: Iterable[SessionStatus]) -> Iterable[list[SessionStatus]]:
    """Groups unfinished sessions by stream, rank and world, in each group those first that were sent most."""
    parts: dict[tuple[str, int, int], list[SessionStatus]] = defaultdict(list)
    for each in sessions:
        if each.doing != "finished":
            parts[each.stream, each.rank, each.world].append(each)
    return [sorted(part, key=count_steps_sent, reverse=True) for part in parts.values()]


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """A daemon's report on itself at one moment: its status, and its numbers by group and name."""

    status: DaemonStatus
    numbers: Mapping[str, Mapping[str, float]]

    def counter_value(self, group: str, name: str) -> float:
        """Returns the value of a counter, 0 if it has none."""
        return self.numbers.get(group, {}).get(name, 0)


@dataclass(frozen=True, slots=True)
class DataFlow:
    """How data went from the disk to the trainers, over the status's window.

    `reading` and `decoding` are parts of the workers' time; workers read ahead while they decode, so both together may
    be more than 1. `waiting` is the mean number of trainers that waited for a batch; `slots` is the number of slots.
    """

    reading: float
    decoding: float
    slots: int
    waiting: float
    bottleneck: Bottleneck


@dataclass(frozen=True, slots=True)
class StreamPace:
    """One stream, and how many samples turned out bad since the last snapshot."""

    status: StreamStatus
    new_bad: int


@dataclass(frozen=True, slots=True)
class TrainerPace:
    """One session. `lag` is how many batches it is behind the furthest of its rank, None once it has finished.

    `left_s` is the time that the rest of its epoch takes at its present rate, None while it takes no batches.
    """

    status: SessionStatus
    lag: int | None
    left_s: float | None


@dataclass(frozen=True, slots=True)
class DaemonActivity:
    """All that a screen shows at one time. Rates and shares are the status's, over its last `window_s` seconds."""

    status: DaemonStatus
    streams: tuple[StreamPace, ...]
    trainers: tuple[TrainerPace, ...]
    flow: DataFlow


@dataclass(frozen=True, slots=True)
class UnreachableDaemon:
    """The daemon has not answered for `seconds`; `last` is its last activity."""

    last: DaemonActivity
    seconds: float


def watch_activity(
    take_snapshot: Callable[[], StatusSnapshot], wait: Callable[[], None], clock: Callable[[], float]
) -> Iterator[DaemonActivity | UnreachableDaemon]:
    """Yields the daemon's activity without end; `wait` returns when the next is due, `clock` returns seconds.

    Raises ConnectError if no daemon answers at first. While one that answered before does not, it yields
    UnreachableDaemon.
    """
    now = take_snapshot()
    seen, seen_s = compare_snapshots(None, now), clock()
    yield seen
    while True:
        wait()
        before = now
        try:
            now = take_snapshot()
        except ConnectError:
            yield UnreachableDaemon(seen, clock() - seen_s)
            continue
        seen, seen_s = compare_snapshots(before, now), clock()
        yield seen


def compare_snapshots(before: StatusSnapshot | None, now: StatusSnapshot) -> DaemonActivity:
    """Returns the activity at `now`. Bad samples are new since `before`, if that is of the same run of the daemon."""
    # A pid may be used again after a restart, but a daemon's uptime never falls.
    is_same_run = (
        before is not None and before.status.pid == now.status.pid and before.status.uptime_s <= now.status.uptime_s
    )
    earlier = {each.name: each.bad for each in before.status.streams} if before is not None and is_same_run else {}
    return DaemonActivity(
        now.status,
        # A reload may replace the stream by one with fewer bad samples.
        tuple(StreamPace(each, max(0, each.bad - earlier.get(each.name, each.bad))) for each in now.status.streams),
        _compute_trainer_paces(now.status),
        _compute_data_flow(now),
    )


def _compute_trainer_paces(status: DaemonStatus) -> tuple[TrainerPace, ...]:
    rows = {stream.name: stream.batch_size for stream in status.streams}
    behind = compute_steps_behind_leader(status.sessions)
    return tuple(
        TrainerPace(
            each,
            behind.get(each.session),
            _compute_seconds_left(each, rows.get(each.stream, 0), status.window_s),
        )
        for each in status.sessions
    )


def _compute_seconds_left(session: SessionStatus, rows: int, window_s: float) -> float | None:
    """Returns the seconds until the end of a session's epoch at its present rate, None while it takes no batches."""
    if session.doing == "finished" or session.samples_per_s <= 0:
        return None
    # The rate is over the whole window, but a session younger than that took its samples in a shorter time.
    own_s = min(window_s, max(1.0, session.age_s))
    return (session.steps - session.step) * rows / (session.samples_per_s * window_s / own_s)


def _compute_data_flow(now: StatusSnapshot) -> DataFlow:
    status = now.status
    asking = sum(each.doing in _ASKING for each in status.sessions)
    reading, decoding, waiting = status.reading_fraction, status.decoding_fraction, status.waiting_trainers
    return DataFlow(
        reading,
        decoding,
        int(now.counter_value("daemon", "slots")),
        waiting,
        find_bottleneck(asking, waiting, reading, decoding, status.slot_wait_fraction),
    )


def find_bottleneck(asking: int, waiting: float, reading: float, decoding: float, slot_wait: float) -> Bottleneck:
    """Returns the stage that limits trainers now.

    `asking` trainers request batches, and `waiting` of them wait, on average. `reading`, `decoding` and `slot_wait` are
    parts of time. The rule is that of an epoch's verdict; memory comes first, since without a slot workers are idle.
    """
    if not asking:
        return "nobody"
    waits = waiting / asking
    if waits > WAIT_NOTICED and slot_wait > _STARVED:
        return "memory"
    if waits > WAIT_NOTICED and not reading + decoding:
        return "pending"
    supply = BatchSupply(awaited=1, reading_s=reading, working_s=decoding, at_work=min(1.0, reading + decoding))
    return find_epoch_bottleneck(1.0, waits, supply)
