"""What lies ready for a session is sent, as far as it may be, and an epoch's receipt right behind its last batch."""

from __future__ import annotations

from streamd.scheduler.actions import Action, SendBatch, SendReceipt
from streamd.scheduler.session import Session
from streamd.scheduler.slot_pool import Pool


def deliver(session: Session, pool: Pool, actions: list[Action]) -> None:
    """Sends a session all that lies ready for it and that it may have."""
    while True:
        while session.at_epoch_end:
            actions.append(SendReceipt(session.id, session.end_epoch()))
        if session.room <= 0:
            return
        entry = pool.entries.get(session.next_key)
        if entry is None or not entry.ready:
            return
        pool.hold(entry)
        actions.append(SendBatch(session.id, session.send(entry.slot), entry.slot))
