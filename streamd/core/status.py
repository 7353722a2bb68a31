"""The status of a daemon: plain values, and remedies where something could be better. Pure.

The daemon computes every figure here when somebody asks. `streamd status`, `streamd top`, the dashboard, the metrics
and Python only read them. A new field goes to the end and has a default, so that clients and daemons of other releases
understand each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from streamd.core.epoch_timing import Bottleneck, EpochTiming
from streamd.core.spec import ImageMode, PixelType
from streamd.core.text import format_count
from streamd.limits import MAX_COUNT

# The state of a session. `gathering`: it waits for other trainers (start={"together": K}). `waiting`: it waits for a
# batch that is not ready yet. `reading`: it takes batches as fast as it can use them. `resting`: it has requested
# nothing for a while (validation, compiling, an idle notebook). `finished`: it was sent all its epochs.
SessionState = Literal["gathering", "waiting", "reading", "resting", "finished"]

STATE_WORDS: Final[dict[SessionState, str]] = {
    "gathering": "waits for others",
    "waiting": "waits for batch",
    "reading": "reads",
    "resting": "rests",
    "finished": "has finished",
}
COUNTED_SPAN_S: Final = 10  # the window of all rates and shares of a screen
RESTING_S: Final = 5.0  # without a request for this long a session rests; a slow step is shorter
WELL_SHARED: Final = 1.1  # decodes for each batch; with more of them, trainers are apart
# Deaths of workers in half a minute. A sample that crashes its decoder costs two before it is set aside. A worker that
# never finishes a task costs five, since its successors are started ever more slowly.
MANY_DEATHS: Final = 4


class SessionStatus(msgspec.Struct, frozen=True):
    """One trainer's subscription. It took `step` of the `steps` batches that `epoch` has for its rank.

    `held` batches are leased to it; `in_flight` batches were sent and are not yet taken. `own_step` of `own_steps` is
    the same place in batches of its own `batch_size`. `samples_per_s` is the rate at which it took samples, over the
    status's `window_s`; `age_s` is the time in seconds since it subscribed. `last_epoch` is the trainer's own report on
    where the time of its last epoch went. `name` is given by its program; sessions with the same `pid` are of one
    process.

    `lag_steps` is how many of the stream's batches it has taken less than the furthest session of its stream, rank and
    world. Sessions of a stream with the same `cohort` are close enough together to share each decode; cohorts are
    numbered from 0. Both are None once it has finished. `left_s` is the time in seconds until the end of its epoch at
    its present rate, None while it takes no batches.
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
    lag_steps: int | None = None
    left_s: float | None = None
    cohort: int | None = None

    @property
    def steps_taken(self) -> int:
        """The number of the stream's batches that its trainer took since the beginning of epoch 0."""
        return self.epoch * self.steps + self.step

    @property
    def steps_sent(self) -> int:
        """The number of the stream's batches that were sent to it since the beginning of epoch 0."""
        return self.steps_taken + self.in_flight


class ImageStatus(msgspec.Struct, frozen=True):
    """One image of every sample of a stream; `shape` is that of its array in a batch, without the batch's rows."""

    name: str
    shape: tuple[int, ...]
    mode: ImageMode
    dtype: PixelType


class StreamStatus(msgspec.Struct, frozen=True):
    """One stream. Rates are over the status's `window_s`; `samples_per_s` is the rate at which trainers took samples.

    `decodes_per_batch` is how often each batch that trainers got was decoded: 1 if they share each decode. It is None
    before a trainer has read an epoch, and while no trainer gets batches; `decodes_unknown` says which. `bad` is the
    number of known bad samples. Receipts are those that trainers confirmed since the daemon started. `stopped` is the
    reason why no trainer gets a batch of it, if that is so. `failed` is the reason why its sessions were ended, if they
    were and no trainer has subscribed since. `shuffle_score` says how well batches mix the labels, from 0 to 1, the
    score of a full shuffle. It is None if the stored order is kept or there is nothing to mix. `poorly_mixed` is the
    remedy for a low score. `images` are those of each sample. `cohorts` counts the cohorts of its sessions.
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
    images: tuple[ImageStatus, ...] = ()
    cohorts: int = 0

    @property
    def images_text(self) -> str:
        """The images of a sample: `photo 512x512x3 RGB, mask 512x512 index`."""
        return ", ".join(
            f"{image.name} {'x'.join(map(str, image.shape))} {image.mode}"
            f"{'' if image.dtype == 'uint8' else f' {image.dtype}'}"
            for image in self.images
        )


# The state of a node of a cluster. `starting`: its processes start, or open the streams and prove their data.
# `serving`: it decodes. `silent`: it has not answered in time, and its tasks went to other nodes. `refused`: it may not
# decode, for the reason that it waits for. `lost`: it has left the cluster, or its processes have ended.
NodeState = Literal["starting", "serving", "silent", "refused", "lost"]


class NodeStatus(msgspec.Struct, frozen=True):
    """A node of the cluster that decodes for the daemon: its decode processes and their unfinished tasks.

    `samples_per_s` is the rate at which it delivered samples. `waits_for` says what it waits for, or why it is refused.
    """

    name: str
    state: NodeState
    workers: int = 0
    tasks: int = 0
    samples_per_s: float = 0.0
    waits_for: str = ""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster at `address` that decodes for the daemon, and its nodes. `problem`: why it cannot be used now."""

    address: str
    problem: str = ""
    nodes: tuple[NodeStatus, ...] = ()

    @property
    def serving_nodes(self) -> list[NodeStatus]:
        """The nodes that decode now."""
        return [node for node in self.nodes if node.state == "serving"]

    @property
    def workers(self) -> int:
        """The decode processes of all nodes that decode now."""
        return sum(node.workers for node in self.serving_nodes)

    @property
    def troubles(self) -> list[str]:
        """The problems of the cluster and of its nodes, and their remedies."""
        troubles = []
        if self.problem:
            troubles.append(f"{self.problem}; trainers get batches again when the cluster is back")
        elif not self.serving_nodes:
            troubles.append(
                f"no node of the cluster at {self.address} decodes, and trainers wait: start one, or see why below"
            )
        refused = (node for node in self.nodes if node.state == "refused")
        return troubles + [f"node {node.name} may not decode: {node.waits_for}" for node in refused]


class DaemonStatus(msgspec.Struct, frozen=True):
    """The whole daemon. Memory in bytes. All rates and fractions are over its last `window_s` seconds.

    `busy_fraction` of the workers' time went into reading and decoding, `reading_fraction` into waiting for reads,
    `decoding_fraction` into all else. `waiting_trainers` is the mean number of trainers that waited for a batch, and
    `slot_wait_fraction` the part of the time without a slot for the next batch. `worker_deaths` counts since the daemon
    started, `deaths_lately` over the last half minute; each worker was replaced. `reload_failed`: the configuration is
    not served, or not all of it. `held_over_bytes` of the used bytes are in batches that trainers still hold of ended
    subscriptions. `cluster` decodes in place of this host's workers, if there is one; `workers` are then those of its
    nodes. `slots` is the number of slots for batches, and `bottleneck` the stage that limits trainers now.
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
    cluster: ClusterStatus | None = None
    slots: int = 0
    bottleneck: Bottleneck = "pending"

    @property
    def all_troubles(self) -> list[str]:
        """The problems and their remedies, a sentence each. With any of them, `streamd status` exits with status 1."""
        troubles: list[str] = []
        for stream in self.streams:
            if stream.stopped:
                troubles.append(f"stream {stream.name!r} is stopped: {stream.stopped}")
            elif stream.failed:
                troubles.append(
                    f"stream {stream.name!r} has stopped its trainers: {stream.failed}; start them again once the "
                    "error is fixed"
                )
            if stream.receipts_bad:
                receipts = "1 receipt does" if stream.receipts_bad == 1 else f"{stream.receipts_bad:,} receipts do"
                troubles.append(f"stream {stream.name!r}: {receipts} not add up; see the daemon's log")
        if self.deaths_lately >= MANY_DEATHS:
            troubles.append(
                f"{format_count(self.deaths_lately, 'worker')} died within half a minute; the daemon's log says why: "
                "look for worker.died"
            )
        if self.reload_failed:
            troubles.append("the last reload failed, see the log; fix the configuration, then reload it again")
        if self.draining:
            troubles.append("the daemon is shutting down")
        return troubles if self.cluster is None else troubles + self.cluster.troubles


def compare_sessions(sessions: Sequence[SessionStatus]) -> tuple[SessionStatus, ...]:
    """Returns the sessions, in their order, with the lag and the cohort of each that has not finished."""
    parts: dict[tuple[str, int, int], list[SessionStatus]] = defaultdict(list)
    for each in sessions:
        if each.doing != "finished":
            parts[each.stream, each.rank, each.world].append(each)
    compared: dict[int, SessionStatus] = {}
    cohorts: Counter[str] = Counter()
    for part in parts.values():
        most_taken = max(each.steps_taken for each in part)
        part.sort(key=lambda each: each.steps_sent, reverse=True)
        ahead = None
        for each in part:
            # Two neighbours that are further apart than the larger of their credits cannot share decodes.
            if ahead is None or ahead.steps_sent - each.steps_sent > max(ahead.credit, each.credit):
                cohorts[each.stream] += 1
            # A session may begin in any epoch, and the number has to fit into 64 bits.
            lag_steps = min(MAX_COUNT, most_taken - each.steps_taken)
            compared[each.session] = msgspec.structs.replace(each, lag_steps=lag_steps, cohort=cohorts[each.stream] - 1)
            ahead = each
    return tuple(compared.get(each.session, each) for each in sessions)


def count_new_bad_samples(before: DaemonStatus | None, now: DaemonStatus) -> dict[str, int]:
    """Returns how many samples of each stream turned out bad since `before`, 0 if that is of another run."""
    # A pid may be used again after a restart, but a daemon's uptime never falls.
    is_same_run = before is not None and before.pid == now.pid and before.uptime_s <= now.uptime_s
    earlier = {each.name: each.bad for each in before.streams} if before is not None and is_same_run else {}
    # A reload may replace the stream by one with fewer bad samples.
    return {each.name: max(0, each.bad - earlier.get(each.name, each.bad)) for each in now.streams}


def sort_sessions(sessions: Iterable[SessionStatus]) -> list[SessionStatus]:
    """Returns sessions sorted by stream and rank, those of one process together, at the place of its first one."""
    by_rank = sorted(sessions, key=lambda each: (each.stream, each.world, each.rank, each.session))
    places: dict[tuple[int, int], int] = {}
    for place, each in enumerate(by_rank):
        places.setdefault(identify_process(each), place)
    return sorted(by_rank, key=lambda each: places[identify_process(each)])


def identify_process(session: SessionStatus) -> tuple[int, int]:
    """Returns a key that is equal for sessions of one process; a session of an unknown process has its own."""
    return (session.pid, 0) if session.pid else (0, session.session)


def find_reached_epoch_and_step(session: SessionStatus) -> tuple[int, int]:
    """Returns (epoch, own step) of a trainer; for one that has finished, the end of its last epoch."""
    if session.doing == "finished" and session.own_step == 0 and session.epoch:
        return session.epoch - 1, session.own_steps
    return session.epoch, session.own_step


def format_window(window_s: float) -> str:
    """Returns the window of a status's rates as text: `over the last 10 s`."""
    return f"over the last {max(1, round(window_s))} s"


def suggest_remedy_for_apart_trainers(decodes_per_batch: float | None, *, are_apart: bool) -> str | None:
    """Returns the remedy for trainers that do not share their decodes; None if they do, or have just drawn level."""
    if decodes_per_batch is None or not are_apart or decodes_per_batch <= WELL_SHARED:
        return None
    return (
        f"each batch is decoded {decodes_per_batch:.1f} times, because the trainers are too far apart; those only a "
        "few seconds apart catch up by themselves, others should subscribe with "
        'start="live" (join where the rest are) or start={"together": K} (begin when K are there)'
    )
