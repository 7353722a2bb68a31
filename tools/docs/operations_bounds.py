"""What happens at each bound that an operator may meet: its value is that of limits.py."""

from __future__ import annotations

from typing import Final

from operations_table import code, table

from streamd import limits
from streamd.config.units import format_bytes

# bound: of what, and what happens there
BOUNDS: Final[dict[str, tuple[str, str]]] = {
    "MAX_SESSIONS": (
        "trainers' subscriptions at a time",
        "waits: a new trainer asks for ten seconds, a trainer that was reading asks until there is room",
    ),
    "SESSION_DESCRIPTORS": (
        "descriptors that a trainer takes, of those that the daemon may have (ulimit -n, LimitNOFILE)",
        "waits, as with MAX_SESSIONS: a trainer for which no descriptors are left",
    ),
    "KNOCKS": ("connections accepted at a time, if there are descriptors for them", "waits: at the socket"),
    "LOOK_FOR_DATA_S": (
        "between two checks for data that a service waits for",
        "checks again: a new mount is noticed at once",
    ),
    "REFUSED_START_S": ("until a service that cannot start ends, if a trainer waits", "ended, and started again"),
    "MIN_CREDIT": ("batches that a trainer has at least", "refused: a trainer for which they do not fit"),
    "DEFAULT_CREDIT": (
        "batches that a trainer asks for",
        "shrinks: the largest credit is halved, then the next largest",
    ),
    "MAX_CREDIT": ("batches that a trainer may ask for", "refused"),
    "MAX_SLOTS": ("batches in memory at a time", "shrinks: credit, as if memory were short"),
    "MAX_BATCH_ROWS": ("images in a batch", "refused: a mistake in the configuration"),
    "MAX_FILE_BYTES": ("of an image's file", "set aside: a bad sample, `large`"),
    "MAX_PIXELS": ("pixels of an image", "set aside: a bad sample, `large`"),
    "MAX_TEXT_BYTES": ("of a text label", "refused: a mistake in the data"),
    "WORKER_DATA_BYTES": ("heap of a worker", "set aside: a sample that needs more twice"),
    "ROW_DEADLINE_S": (
        "spent on the pixels of one sample",
        "set aside: the worker is killed; the second time, it is bad",
    ),
    "TASK_ATTEMPTS": (
        "workers that die at one task for another reason",
        "stopped: the task's stream, if the time in the next line has passed too",
    ),
    "TASK_GIVE_UP_S": ("of such deaths", "stopped: its stream"),
    "WORKER_RESPAWN_MAX_S": ("between a worker's death and the next worker, at most", "waits"),
    "STALLED_S": ("without a task done or a worker replaced", "ended: the watchdog restarts the daemon"),
    "DRAIN_S": ("from SIGTERM to the end", "ended: trainers that are still connected notice it by themselves"),
    "CONNECT_TIMEOUT_S": ("for the answer to a client's request", "refused: ConnectError, before a training begins"),
    "SILENCE_S": (
        "that a loop waits before it checks its session with the daemon",
        "starts its session again at the same batch, if needed",
    ),
    "PAIR_S": (
        "from the daemon's answer to a subscription until the trainer connects its lifeline",
        "ended: that session",
    ),
    "HELD_ERROR_S": ("with all credit held by the caller, after a garbage collection", "BatchesHeldError"),
    "MAX_CLIENT_FRAME_BYTES": ("of a frame from a client", "dropped: the connection"),
    "ROUTER_QUEUE": ("messages that wait for a client", "ended: the session of the client that does not read"),
    "MAX_MONITOR_CONNECTIONS": ("over HTTP", "dropped: the oldest of them"),
    "ANSWER_AGE_S": ("age of a status or of counters, if very many are asked for", "made anew"),
    "DIGEST_TURN_ROWS": (
        "samples of one user's receipt whose digest is computed at a time, if other users wait for theirs",
        "continued at its next turn",
    ),
    "MAX_NAMES": ("names of files asked for at once", "refused"),
    "MAX_OPEN_SHARDS": ("shards that a worker keeps open", "closed and opened again"),
    "MAX_ARRAY_FILES": ("files of arrays in a stream", "refused: a mistake in the data"),
    "CHUNKS_KEPT_BYTES": ("decompressed chunks in a worker", "dropped: those used longest ago"),
    "READ_AHEAD_BYTES": ("files that a worker reads ahead", "waits: larger ones are read when their row comes"),
    "CACHE_UNPUBLISHED_BYTES": ("of a worker, for the cache, ahead of the disk", "left out until another epoch"),
    "UNREAD_S": ("for a process that decodes to read of what waits for it", "ended: another takes its place"),
    "GATE_UNREAD_S": ("for a gate to read of what waits for it", "ended: its user's trainers connect again"),
    "LOG_UNWRITTEN_BYTES": ("of the log that nothing reads", "counted: `log.unwritten`, when something reads again"),
    "LOG_SPAN_EVENTS": ("events of one name in half a minute", "held back and counted: `log.held`"),
}


def bound_table() -> str:
    rows = [(code(name), shown(name), *told) for name, told in BOUNDS.items()]
    return table(("bound", "how much", "of what", "what happens beyond it"), rows)


def shown(name: str) -> str:
    """The value of a bound, with its unit."""
    value = getattr(limits, name)
    if name.endswith("_BYTES"):
        return format_bytes(value)
    return f"{value:g} s" if name.endswith("_S") else f"{value:,}"
