"""Rules over the window that its own ledger does not know, looked at from outside."""

from __future__ import annotations

from stage import Hardware
from story import Story
from synthetic import SLOT_BYTES

from streamd.core.spec import StreamShape
from streamd.limits import TASKS_AHEAD_PER_WORKER
from streamd.scheduler import SchedulerLimits, Window
from streamd.scheduler.admission import ahead_slots


def check_memory(story: Story, window: Window, slots: int, hardware: Hardware) -> None:
    """There are as many slots as are accounted for, and no more than fit."""
    within = slots * SLOT_BYTES == window.used_bytes <= hardware.slots * SLOT_BYTES
    story.require("memory stays within its bound", within, "{} slots of {}", slots, hardware.slots)


def check_holders(story: Story, window: Window) -> None:
    """Every lease is a session's, or was and its trainer holds it: none is left by one that is gone."""
    ended = sum(len(each.leases) for each in window.ended.values())
    leases = ended + sum(len(session.leases) for session in window.sessions)
    holders = sum(entry.holders for entry in window._pool.by_slot.values())
    story.require("what is held is held by a session", leases == holders, "{}, not {}", leases, holders)


def check_no_worker_idles(story: Story, window: Window, shape: StreamShape, hardware: Hardware) -> None:
    """Whoever has credit and wants a batch that nobody has gets a worker, if there is one, and memory."""
    if window.producing * shape.tasks >= hardware.workers * TASKS_AHEAD_PER_WORKER:
        return
    entries = window._pool.by_slot.values()
    left = hardware.slots - sum(not entry.ready or entry.holders > 0 for entry in entries)
    most = ahead_slots(shape, SchedulerLimits(hardware.slots * SLOT_BYTES, hardware.workers))
    known = window._pool.entries
    missing = [key for each in window.sessions for key in each.ahead(each.room) if key not in known]
    story.require(
        "no worker idles while somebody wants a batch and memory allows",
        not missing or not left or window.producing >= most,
        "{} is not produced, {} slots are left",
        missing[:1],
        left,
    )
