"""Whether one more session fits, and how much credit is left for it. Arithmetic, and the words that explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.limits import MAX_CREDIT, MIB, MIN_CREDIT, TASKS_AHEAD_PER_WORKER
from streamd.messages import Refusal
from streamd.window.events import StreamShape, Subscribed
from streamd.window.sessions import Session

RETRY_S = 0.5  # sessions end and leases return at any time


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a session is not admitted."""

    why: Refusal
    text: str
    retry_s: float | None = None


def ahead_slots(shape: StreamShape, workers: int, memory: int) -> int:
    """Slots that production may fill at a time: two tasks a worker, as far as two slots are left for a session."""
    wanted = -(-workers * TASKS_AHEAD_PER_WORKER // shape.tasks) + 1
    return max(1, min(wanted, memory // shape.slot_bytes - MIN_CREDIT))


def reserved_bytes(sessions: Sequence[Session], workers: int, memory: int, shape: StreamShape) -> int:
    """Bytes promised: every session's credit and what the workers fill, for `shape` and all streams in use."""
    shapes = {session.shape.name: session.shape for session in sessions} | {shape.name: shape}
    working = max(ahead_slots(each, workers, memory) * each.slot_bytes for each in shapes.values())
    return working + sum(session.reserved * session.shape.slot_bytes for session in sessions)


def admit(
    event: Subscribed, shape: StreamShape, sessions: Sequence[Session], workers: int, memory: int
) -> int | Denial:
    """The credit of a new session, after shrinking others' credit where needed; or why not."""
    if event.world > shape.batches and event.uneven == "drop":
        return Denial(
            "usage",
            f"world {event.world} is more than the {shape.batches} batches of an epoch: every step would be dropped; "
            'use fewer ranks, a smaller batch_size or uneven="pad"',
        )
    alone = (MIN_CREDIT + ahead_slots(shape, workers, memory)) * shape.slot_bytes
    if alone > memory:
        return Denial("memory", _arithmetic(shape, memory, alone, []))
    wanted = max(MIN_CREDIT, min(event.credit, MAX_CREDIT))
    while True:
        left = (memory - reserved_bytes(sessions, workers, memory, shape)) // shape.slot_bytes
        if left >= wanted or (left >= MIN_CREDIT and not _shrink(sessions)):
            return min(wanted, left)
        if left < MIN_CREDIT and not _shrink(sessions):
            break
    needed = reserved_bytes(sessions, workers, memory, shape) + MIN_CREDIT * shape.slot_bytes
    text = _arithmetic(shape, memory, needed, sessions)
    return Denial("memory", text, RETRY_S if event.resuming else None)


def _shrink(sessions: Sequence[Session]) -> bool:
    """Halves the largest credit above the minimum; False when there is none."""
    largest = max(sessions, key=lambda session: session.credit, default=None)
    if largest is None or largest.credit <= MIN_CREDIT:
        return False
    largest.credit = max(MIN_CREDIT, largest.credit // 2)
    return True


def _arithmetic(shape: StreamShape, memory: int, needed: int, sessions: Sequence[Session]) -> str:
    batch = shape.slot_bytes / MIB
    others = f" beside the {len(sessions)} sessions that are here" if sessions else ""
    return (
        f"stream {shape.name!r} does not fit into memory: one batch takes {batch:.1f} MiB; {MIN_CREDIT} for the "
        f"trainer and those in production come to {needed / MIB:.1f} MiB{others}; memory is {memory / MIB:.1f} MiB: "
        f"set memory to at least {-(-needed // MIB)}MiB, or make batch_size or image.size smaller"
    )
