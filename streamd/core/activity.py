"""What a daemon did between two looks at it: what `streamd top` shows. Pure; `watch_activity` is handed its clock.

Who shares each decode with whom, by where trainers are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from streamd.core.epoch_timing import BatchSupply, find_epoch_bottleneck
from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus
from streamd.errors import ConnectError
from streamd.limits import WAIT_NOTICED

# Where batches wait on their way: `disk`, `decode`, `transport` and `none`, the trainers themselves, as in an epoch's
# verdict; `memory`, no slot was free for the next batch; `pending`, some are under way, of which workers have told
# nothing yet; `nobody`, none is asked for.
Bottleneck = Literal["disk", "decode", "memory", "transport", "none", "pending", "nobody"]

# What is said of each, and what would help.
BOTTLENECK_WORDS: Final[dict[Bottleneck, str]] = {
    "disk": "waits for reads: a faster disk, a `cache` or `streamd pack` would help",
    "decode": "waits for decoding: more workers or a `cache` would help",
    "memory": "waits for a free slot: more `memory` would help",
    "transport": "waits on the way to the trainers, where batches lie ready or come one by one",
    "none": "the trainers themselves are the limit: data come as fast as they take them",
    "pending": "batches are under way, and none is done yet",
    "nobody": "nobody asks for batches",
}
_ASKING: Final = frozenset({"waiting", "reading"})
_STARVED: Final = 0.5  # of the time without a slot for the next batch: what trainers wait for is memory then


def count_steps_done(session: SessionStatus) -> int:
    """Steps since the beginning of epoch 0."""
    return session.epoch * session.steps + session.step


def compute_steps_behind_leader(sessions: Iterable[SessionStatus]) -> dict[int, int]:
    """How many steps each session is behind the furthest of its stream, rank and world that has not finished."""
    return {
        each.session: max(0, count_steps_done(row[0]) - count_steps_done(each))
        for row in _group_sessions_by_rank(sessions)
        for each in row
    }  # fmt: skip


def assign_cohort_numbers(sessions: Iterable[SessionStatus]) -> dict[int, int]:
    """The cohort that each session is in that has not finished; numbers are by stream, from 0."""
    found: dict[int, int] = {}
    begun: Counter[str] = Counter()
    for row in _group_sessions_by_rank(sessions):
        for ahead, each in zip((row[0], *row), row, strict=False):
            begun[each.stream] += ahead is each or _are_too_far_apart_to_share(ahead, each)
            found[each.session] = begun[each.stream] - 1
    return found


def count_cohorts_by_stream(sessions: Iterable[SessionStatus]) -> dict[str, int]:
    """How many cohorts the sessions of each stream make."""
    found: dict[str, int] = defaultdict(int)
    for row in _group_sessions_by_rank(sessions):
        found[row[0].stream] += 1 + sum(_are_too_far_apart_to_share(ahead, each) for ahead, each in pairwise(row))
    return dict(found)


def _are_too_far_apart_to_share(ahead: SessionStatus, behind: SessionStatus) -> bool:
    """Whether neither's credit reaches from one to the other."""
    return count_steps_done(ahead) - count_steps_done(behind) > max(ahead.credit, behind.credit)


def _group_sessions_by_rank(sessions: Iterable[SessionStatus]) -> Iterable[list[SessionStatus]]:
    """Those that have not finished, by stream, rank and world, the furthest first."""
    parts: dict[tuple[str, int, int], list[SessionStatus]] = defaultdict(list)
    for each in sessions:
        if each.doing != "finished":
            parts[each.stream, each.rank, each.world].append(each)
    return [sorted(part, key=count_steps_done, reverse=True) for part in parts.values()]


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """What a daemon tells of itself at one moment: its status, and its numbers by group and name."""

    status: DaemonStatus
    numbers: Mapping[str, Mapping[str, float]]

    def counter_value(self, group: str, name: str) -> float:
        """What was counted under a name; 0 when nothing was."""
        return self.numbers.get(group, {}).get(name, 0)

    def sum_over_streams(self, name: str) -> float:
        """The same, of all streams together."""
        return sum(self.counter_value(f"stream.{stream.name}", name) for stream in self.status.streams)


@dataclass(frozen=True, slots=True)
class DataFlow:
    """How data went from the disk to the trainers.

    `reading` and `decoding` are parts of the workers' time; both at once add up to more than 1. `waiting` is how many
    trainers waited for a batch, on average; `slots` exist now.
    """

    reading: float
    decoding: float
    slots: int
    waiting: float
    bottleneck: Bottleneck


@dataclass(frozen=True, slots=True)
class StreamPace:
    """One stream; rates are those between the looks."""

    status: StreamStatus
    decoded_per_s: float
    samples_per_s: float
    new_bad: int


@dataclass(frozen=True, slots=True)
class TrainerPace:
    """One trainer. `lag` is how many steps it is behind the furthest of its rank, None once it has finished.

    `left_s` is what its epoch takes from here on at the rate of the last half minute, None while it gets nothing.
    """

    status: SessionStatus
    samples_per_s: float
    lag: int | None
    left_s: float | None


@dataclass(frozen=True, slots=True)
class DaemonActivity:
    """What is shown at a time. `flow` is None after a first look, and every rate then that of the last half minute."""

    status: DaemonStatus
    streams: tuple[StreamPace, ...]
    trainers: tuple[TrainerPace, ...]
    flow: DataFlow | None = None


@dataclass(frozen=True, slots=True)
class UnreachableDaemon:
    """The daemon does not answer, for `seconds` now; `last` is what was seen of it before."""

    last: DaemonActivity
    seconds: float


def watch_activity(
    take_snapshot: Callable[[], StatusSnapshot], wait: Callable[[], None], clock: Callable[[], float]
) -> Iterator[DaemonActivity | UnreachableDaemon]:
    """One after the other, for ever; `wait` returns when the next is due, `clock` tells seconds.

    Raises ConnectError when no daemon answers at first; one that goes away later is waited for.
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
    """What happened between two looks; the earlier one counts for nothing where it was at another run of the daemon."""
    seconds = now.status.uptime_s - before.status.uptime_s if before is not None else 0.0
    if before is None or before.status.pid != now.status.pid or seconds <= 0:
        return _build_first_activity(now)
    return DaemonActivity(
        now.status,
        tuple(_compute_stream_pace(each, before, now, seconds) for each in now.status.streams),
        _compute_trainer_paces(now.status, before.status, seconds),
        _compute_data_flow(before, now, seconds),
    )


def _build_first_activity(now: StatusSnapshot) -> DaemonActivity:
    streams = (StreamPace(each, each.decoded_per_s, each.samples_per_s, 0) for each in now.status.streams)
    return DaemonActivity(now.status, tuple(streams), _compute_trainer_paces(now.status, None, 0.0))


def _compute_stream_pace(
    stream: StreamStatus, before: StatusSnapshot, now: StatusSnapshot, seconds: float
) -> StreamPace:
    group = f"stream.{stream.name}"
    earlier = next((each for each in before.status.streams if each.name == stream.name), stream)
    return StreamPace(
        stream,
        (now.counter_value(group, "produced") - before.counter_value(group, "produced")) / seconds,
        (now.counter_value(group, "sent_samples") - before.counter_value(group, "sent_samples")) / seconds,
        max(0, stream.bad - earlier.bad),  # fewer, where a reload has changed the stream
    )


def _compute_trainer_paces(now: DaemonStatus, before: DaemonStatus | None, seconds: float) -> tuple[TrainerPace, ...]:
    rows = {stream.name: stream.batch_size for stream in now.streams}
    earlier = {each.session: each for each in before.sessions} if before is not None else {}
    behind = compute_steps_behind_leader(now.sessions)
    return tuple(
        TrainerPace(
            each,
            _compute_sample_rate(each, earlier.get(each.session), rows.get(each.stream, 0), seconds),
            behind.get(each.session),
            _compute_seconds_left(each, rows.get(each.stream, 0)),
        )
        for each in now.sessions
    )


def _compute_sample_rate(now: SessionStatus, before: SessionStatus | None, rows: int, seconds: float) -> float:
    """Samples a second, of whole batches: an epoch's last one may be shorter, which a trainer's place does not tell."""
    if before is None:
        return now.samples_per_s
    return max(0, count_steps_done(now) - count_steps_done(before)) * rows / seconds


def _compute_seconds_left(session: SessionStatus, rows: int) -> float | None:
    if session.doing == "finished" or session.samples_per_s <= 0:
        return None
    return (session.steps - session.step) * rows / session.samples_per_s


def _compute_data_flow(before: StatusSnapshot, now: StatusSnapshot, seconds: float) -> DataFlow:
    all_s = seconds * max(1, now.status.workers)
    reading, decoding = (
        max(0.0, now.sum_over_streams(name) - before.sum_over_streams(name)) / all_s for name in ("read_s", "decode_s")
    )
    waiting = _compute_waiting_trainers(before, now, seconds)
    slot_wait = (now.counter_value("daemon", "slot_wait_s") - before.counter_value("daemon", "slot_wait_s")) / seconds
    asking = sum(each.doing in _ASKING for each in now.status.sessions)
    return DataFlow(
        reading,
        decoding,
        int(now.counter_value("daemon", "slots")),
        waiting,
        find_bottleneck(asking, waiting, reading, decoding, slot_wait),
    )


def _compute_waiting_trainers(before: StatusSnapshot, now: StatusSnapshot, seconds: float) -> float:
    """How many trainers waited. Who waits tells of it when his batch has come, so until then he is seen to wait."""
    told = max(0.0, now.sum_over_streams("client_wait_s") - before.sum_over_streams("client_wait_s")) / seconds
    if now.sum_over_streams("sent_samples") > before.sum_over_streams("sent_samples"):
        return min(told, float(len(now.status.sessions)))
    return float(sum(each.doing == "waiting" for each in now.status.sessions))


def find_bottleneck(asking: int, waiting: float, reading: float, decoding: float, slot_wait: float) -> Bottleneck:
    """Where batches wait: `asking` trainers want some, `waiting` of them wait on average, the others are parts of time.

    The rule is that of an epoch's verdict; memory comes first, since without a slot workers have nothing to do.
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
