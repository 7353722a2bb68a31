"""Rules over the window that its own ledger does not know, looked at from outside."""

from __future__ import annotations

from stage import Hardware
from story import Story
from synthetic import SLOT_BYTES

from streamd.core.spec import StreamShape
from streamd.limits import TASKS_AHEAD_PER_WORKER
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots
from streamd.scheduler.scheduler import Scheduler


def check_memory(story: Story, window: Scheduler, slots: int, hardware: Hardware) -> None:
    """There are as many slots as are accounted for, and no more than fit."""
    within = slots * SLOT_BYTES == window.used_bytes <= hardware.slots * SLOT_BYTES
    story.require("memory stays within its bound", within, "{} slots of {}", slots, hardware.slots)


def check_holders(story: Story, window: Scheduler) -> None:
    """Every lease is a session's, or was and its trainer holds it: none is left by one that is gone."""
    ended = sum(len(each.leases) for each in window.ended_sessions.values())
    leases = ended + sum(len(session.leases) for session in window.sessions)
    holders = sum(entry.lease_count for entry in window._pool.by_slot.values())
    story.require("what is held is held by a session", leases == holders, "{}, not {}", leases, holders)


def check_no_worker_idles(story: Story, window: Scheduler, shape: StreamShape, hardware: Hardware) -> None:
    """Whoever has credit and wants a batch that nobody has gets a worker, if there is one, and memory."""
    if window.producing_count * shape.tasks >= hardware.workers * TASKS_AHEAD_PER_WORKER:
        return
    entries = window._pool.by_slot.values()
    left = hardware.slots - sum(not entry.is_whole or entry.lease_count > 0 for entry in entries)
    most = compute_production_slots(shape, SchedulerLimits(hardware.slots * SLOT_BYTES, hardware.workers))
    known = window._pool.entries
    missing = [key for each in window.sessions for key in each.upcoming_keys(each.sendable_count) if key not in known]
    story.require(
        "no worker idles while somebody wants a batch and memory allows",
        not missing or not left or window.producing_count >= most,
        "{} is not produced, {} slots are left",
        missing[:1],
        left,
    )
