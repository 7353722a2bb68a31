"""How a daemon is doing, as it tells clients: plain values, and the remedy where something could be better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from streamd.core.epoch_timing import EpochTiming
from streamd.core.text import format_count

# What a session is at: `gathering` waits for other trainers to come (start={"together": K}), `waiting` wants a batch
# that is not ready yet, `reading` takes batches as fast as it can use them, `resting` has asked for nothing for a while
# (validation, compiling, a notebook at rest), `finished` has been sent all its epochs.
SessionState = Literal["gathering", "waiting", "reading", "resting", "finished"]

STATE_WORDS: Final[dict[SessionState, str]] = {
    "gathering": "waits for others",
    "waiting": "waits for batch",
    "reading": "reads",
    "resting": "rests",
    "finished": "has finished",
}
RESTING_S: Final = 5.0  # asking for nothing for so long is rest, not a slow step
WELL_SHARED: Final = 1.1  # decodes a batch; beyond it trainers are apart
# Deaths of workers in half a minute. Two are what a sample costs that crashes its decoder, before it is set aside; a
# single worker that never lives to finish a task makes five, since its successors come ever more slowly.
MANY_DEATHS: Final = 4


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One trainer's subscription. `step` of `steps` is the next to be sent in `epoch`; `held` batches are lent to it.

    `samples_per_s` is over the last half minute, `age_s` seconds since it subscribed. `last_epoch` is where the time of
    the last epoch went that it has had, as it says itself.
    """

    session: int
    stream: str
    rank: int
    world: int
    epoch: int
    epochs: int | None
    step: int
    steps: int
    credit: int
    held: int
    doing: SessionState
    samples_per_s: float
    age_s: float
    last_epoch: EpochTiming | None = None


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Rates are over the last half minute.

    `decodes_per_batch` is how often each batch that trainers got was decoded: 1 when they share each decode, None when
    none got any. `bad` samples are known; receipts are those that trainers have confirmed since the daemon began.
    `stopped` is why nobody gets a batch of it, if nobody does; `failed` why its trainers were ended, if they were and
    none has come since. `shuffle_score` is how well batches mix the labels, from 0 to 1, a full shuffle's; None where
    the stored order is kept or there is nothing to mix. `poorly_mixed` says what to do about a low one.
    """

    name: str
    samples: int
    batch_size: int
    batches: int
    sessions: int
    decoded_per_s: float
    samples_per_s: float
    decodes_per_batch: float | None
    bad: int
    receipts_ok: int
    receipts_bad: int
    remedy: str | None = None
    stopped: str | None = None
    shuffle_score: float | None = None
    poorly_mixed: str | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """The whole daemon. Memory in bytes; `busy_fraction` of the workers' time over the last half minute.

    `worker_deaths` are those since it began, `deaths_lately` those of the last half minute: each was replaced.
    `reload_failed`: the configuration is not, or not all, what is served. `held_over_bytes`, of those used, lie in
    batches that trainers still hold of subscriptions that have ended.
    """

    version: str
    pid: int
    endpoint: str
    uptime_s: float
    workers: int
    busy_fraction: float
    memory_bytes: int
    memory_used_bytes: int
    draining: bool
    streams: tuple[StreamStatus, ...] = ()
    sessions: tuple[SessionStatus, ...] = ()
    worker_deaths: int = 0
    deaths_lately: int = 0
    reload_failed: bool = False
    held_over_bytes: int = 0

    @property
    def all_troubles(self) -> list[str]:
        """What is wrong and what to do, a sentence each: what `streamd status` ends with an exit status of 1 for."""
        return [
            *(each for stream in self.streams for each in _find_stream_troubles(stream)),
            *_find_daemon_troubles(self),
        ]


def sort_sessions(sessions: Iterable[SessionStatus]) -> list[SessionStatus]:
    """By stream and rank."""
    return sorted(sessions, key=lambda each: (each.stream, each.world, each.rank, each.session))


def find_reached_epoch_and_step(session: SessionStatus) -> tuple[int, int]:
    """(epoch, step) of a trainer: of one that has finished, the end of its last epoch, not the beginning of none."""
    if session.doing == "finished" and session.step == 0 and session.epoch:
        return session.epoch - 1, session.steps
    return session.epoch, session.step


def _find_stream_troubles(stream: StreamStatus) -> Iterator[str]:
    if stream.stopped:
        yield f"stream {stream.name!r} is stopped: {stream.stopped}"
    elif stream.failed:
        yield f"stream {stream.name!r} has ended its trainers: {stream.failed}; start them again once it is mended"
    if stream.receipts_bad:
        receipts = "1 receipt does" if stream.receipts_bad == 1 else f"{stream.receipts_bad:,} receipts do"
        yield f"stream {stream.name!r}: {receipts} not add up; see the daemon's log"


def _find_daemon_troubles(daemon: DaemonStatus) -> Iterator[str]:
    if daemon.deaths_lately >= MANY_DEATHS:
        yield (
            f"{format_count(daemon.deaths_lately, 'worker')} died within half a minute; the daemon's log says of "
            "what: look for worker.died"
        )
    if daemon.reload_failed:
        yield "the last reload failed, see the log; mend the configuration, then reload it again"
    if daemon.draining:
        yield "the daemon is going away"


def suggest_remedy_for_apart_trainers(decodes_per_batch: float | None, *, are_apart: bool) -> str | None:
    """What to do about trainers that do not share their decodes; None when they do, or have just drawn level."""
    if decodes_per_batch is None or not are_apart or decodes_per_batch <= WELL_SHARED:
        return None
    return (
        f"each batch is decoded {decodes_per_batch:.1f} times, since the trainers are apart; those a few seconds apart "
        'draw level by themselves, others subscribe with start="live" (join where the rest are) or '
        'start={"together": K} (begin when K are there)'
    )
