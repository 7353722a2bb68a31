"""The status that a daemon reports to clients: plain values, and remedies where something could be better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from streamd.core.epoch_timing import EpochTiming
from streamd.core.spec import ImageMode, PixelType, StreamSpec
from streamd.core.text import format_count

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


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One trainer's subscription. It took `step` of the `steps` batches that `epoch` has for its rank.

    `held` batches are leased to it; `in_flight` batches were sent and are not yet taken. `own_step` of `own_steps` is
    the same place in batches of its own `batch_size`. `samples_per_s` is the rate at which it took samples, over the
    status's `window_s`; `age_s` is the time in seconds since it subscribed. `last_epoch` is the trainer's own report on
    where the time of its last epoch went. `name` is given by its program; sessions with the same `pid` are of one
    process.
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
class ImageStatus:
    """One image of every sample of a stream; `shape` is that of its array in a batch, without the batch's rows."""

    name: str
    shape: tuple[int, ...]
    mode: ImageMode
    dtype: PixelType


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Rates are over the status's `window_s`; `samples_per_s` is the rate at which trainers took samples.

    `decodes_per_batch` is how often each batch that trainers got was decoded: 1 if they share each decode. It is None
    before a trainer has read an epoch, and while no trainer gets batches; `decodes_unknown` says which. `bad` is the
    number of known bad samples. Receipts are those that trainers confirmed since the daemon started. `stopped` is the
    reason why no trainer gets a batch of it, if that is so. `failed` is the reason why its sessions were ended, if they
    were and no trainer has subscribed since. `shuffle_score` says how well batches mix the labels, from 0 to 1, the
    score of a full shuffle. It is None if the stored order is kept or there is nothing to mix. `poorly_mixed` is the
    remedy for a low score. `images` are those of each sample.
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

    @property
    def images_text(self) -> str:
        """The images of a sample: `photo 512x512x3 RGB, mask 512x512 index`."""
        return ", ".join(
            f"{image.name} {'x'.join(map(str, image.shape))} {image.mode}"
            f"{'' if image.dtype == 'uint8' else f' {image.dtype}'}"
            for image in self.images
        )


def list_image_statuses(spec: StreamSpec) -> tuple[ImageStatus, ...]:
    """Returns the images of a stream's samples."""
    return tuple(ImageStatus(name, image.shape, image.mode, image.dtype) for name, image in spec.images.items())


# The state of a node of a cluster. `starting`: its processes start, or open the streams and prove their data.
# `serving`: it decodes. `silent`: it has not answered in time, and its tasks went to other nodes. `refused`: it may not
# decode, for the reason that it waits for. `lost`: it has left the cluster, or its processes have ended.
NodeState = Literal["starting", "serving", "silent", "refused", "lost"]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node of the cluster that decodes for the daemon: its decode processes and their unfinished tasks.

    `samples_per_s` is the rate at which it delivered samples. `waits_for` says what it waits for, or why it is refused.
    """

    name: str
    state: NodeState
    workers: int = 0
    tasks: int = 0
    samples_per_s: float = 0.0
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
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


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """The whole daemon. Memory in bytes. All rates and fractions are over its last `window_s` seconds.

    `busy_fraction` of the workers' time went into reading and decoding, `reading_fraction` into waiting for reads,
    `decoding_fraction` into all else. `waiting_trainers` is the mean number of trainers that waited for a batch, and
    `slot_wait_fraction` the part of the time without a slot for the next batch. `worker_deaths` counts since the daemon
    started, `deaths_lately` over the last half minute; each worker was replaced. `reload_failed`: the configuration is
    not served, or not all of it. `held_over_bytes` of the used bytes are in batches that trainers still hold of ended
    subscriptions. `cluster` decodes in place of this host's workers, if there is one; `workers` are then those of its
    nodes.
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

    @property
    def all_troubles(self) -> list[str]:
        """The problems and their remedies, a sentence each. With any of them, `streamd status` exits with status 1."""
        return [
            *(each for stream in self.streams for each in _find_stream_troubles(stream)),
            *_find_daemon_troubles(self),
        ]


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


def _find_stream_troubles(stream: StreamStatus) -> Iterator[str]:
    if stream.stopped:
        yield f"stream {stream.name!r} is stopped: {stream.stopped}"
    elif stream.failed:
        yield (
            f"stream {stream.name!r} has stopped its trainers: {stream.failed}; start them again once the error is "
            "fixed"
        )
    if stream.receipts_bad:
        receipts = "1 receipt does" if stream.receipts_bad == 1 else f"{stream.receipts_bad:,} receipts do"
        yield f"stream {stream.name!r}: {receipts} not add up; see the daemon's log"


def _find_daemon_troubles(daemon: DaemonStatus) -> Iterator[str]:
    if daemon.deaths_lately >= MANY_DEATHS:
        yield (
            f"{format_count(daemon.deaths_lately, 'worker')} died within half a minute; the daemon's log says why: "
            "look for worker.died"
        )
    if daemon.reload_failed:
        yield "the last reload failed, see the log; fix the configuration, then reload it again"
    if daemon.draining:
        yield "the daemon is shutting down"
    if daemon.cluster is not None:
        cluster = daemon.cluster
        if cluster.problem:
            yield f"{cluster.problem}; trainers get batches again when the cluster is back"
        elif not cluster.serving_nodes:
            yield f"no node of the cluster at {cluster.address} decodes, and trainers wait: start one, or see why below"
        for node in cluster.nodes:
            if node.state == "refused":
                yield f"node {node.name} may not decode: {node.waits_for}"


def suggest_remedy_for_apart_trainers(decodes_per_batch: float | None, *, are_apart: bool) -> str | None:
    """Returns the remedy for trainers that do not share their decodes; None if they do, or have just drawn level."""
    if decodes_per_batch is None or not are_apart or decodes_per_batch <= WELL_SHARED:
        return None
    return (
        f"each batch is decoded {decodes_per_batch:.1f} times, because the trainers are too far apart; those only a "
        "few seconds apart catch up by themselves, others should subscribe with "
        'start="live" (join where the rest are) or start={"together": K} (begin when K are there)'
    )
