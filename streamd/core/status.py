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
COUNTED_SPAN_S: Final = 10  # what rates and shares are over: one stretch of time for all figures of a screen
RESTING_S: Final = 5.0  # asking for nothing for so long is rest, not a slow step
WELL_SHARED: Final = 1.1  # decodes a batch; beyond it trainers are apart
# Deaths of workers in half a minute. Two are what a sample costs that crashes its decoder, before it is set aside; a
# single worker that never lives to finish a task makes five, since its successors come ever more slowly.
MANY_DEATHS: Final = 4


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One trainer's subscription. It took `step` of the `steps` batches that `epoch` has for its rank.

    `held` batches are lent to it, `in_flight` were sent and not yet taken. `own_step` of `own_steps` are the same place
    in batches of its own `batch_size`. `samples_per_s` is what it took, over the status's `window_s`; `age_s` seconds
    have passed since it subscribed. `last_epoch` is where the time of the last epoch went that it has had, as it says
    itself. `name` is what its program calls it, `pid` its process: sessions of one process belong together.
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
    name: str = ""
    pid: int = 0
    batch_size: int = 0
    own_step: int = 0
    own_steps: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Rates are over the status's `window_s`; `samples_per_s` is what trainers took.

    `decodes_per_batch` is how often each batch that trainers got was decoded: 1 when they share each decode. It is None
    before a trainer has read an epoch, and while no trainer gets batches; `decodes_unknown` says which. `bad` samples
    are known; receipts are those that trainers have confirmed since the daemon began. `stopped` is why nobody gets a
    batch of it, if nobody does; `failed` why its trainers were ended, if they were and none has come since.
    `shuffle_score` is how well batches mix the labels, from 0 to 1, a full shuffle's; None where the stored order is
    kept or there is nothing to mix. `poorly_mixed` says what to do about a low one.
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
    decodes_unknown: str | None = None


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """The whole daemon. Memory in bytes. All rates and fractions are over its last `window_s` seconds.

    `busy_fraction` of the workers' time went into reading and decoding, `reading_fraction` into waiting for reads,
    `decoding_fraction` into all else; `waiting_trainers` waited for a batch, on average, and for `slot_wait_fraction`
    of the time there was no slot for the next batch. `worker_deaths` are those since it began, `deaths_lately` those of
    the last half minute: each was replaced. `reload_failed`: the configuration is not, or not all, what is served.
    `held_over_bytes`, of those used, lie in batches that trainers still hold of subscriptions that have ended.
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
    window_s: float = float(COUNTED_SPAN_S)
    reading_fraction: float = 0.0
    decoding_fraction: float = 0.0
    waiting_trainers: float = 0.0
    slot_wait_fraction: float = 0.0

    @property
    def all_troubles(self) -> list[str]:
        """What is wrong and what to do, a sentence each: what `streamd status` ends with an exit status of 1 for."""
        return [
            *(each for stream in self.streams for each in _find_stream_troubles(stream)),
            *_find_daemon_troubles(self),
        ]


def sort_sessions(sessions: Iterable[SessionStatus]) -> list[SessionStatus]:
    """By stream and rank; but what one process has subscribed to stands together, where its first session does."""
    by_rank = sorted(sessions, key=lambda each: (each.stream, each.world, each.rank, each.session))
    places: dict[tuple[int, int], int] = {}
    for place, each in enumerate(by_rank):
        places.setdefault(identify_process(each), place)
    return sorted(by_rank, key=lambda each: places[identify_process(each)])


def identify_process(session: SessionStatus) -> tuple[int, int]:
    """Equal for sessions of one process; a session of an unknown process is alone."""
    return (session.pid, 0) if session.pid else (0, session.session)


def find_reached_epoch_and_step(session: SessionStatus) -> tuple[int, int]:
    """(epoch, own step) of a trainer: of one that has finished, the end of its last epoch."""
    if session.doing == "finished" and session.own_step == 0 and session.epoch:
        return session.epoch - 1, session.own_steps
    return session.epoch, session.own_step


def format_window(window_s: float) -> str:
    """The stretch of time that the figures of a status are over."""
    return f"over the last {max(1, round(window_s))} s"


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
