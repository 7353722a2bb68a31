"""What lies ready for a session is sent, as far as it may be, and an epoch's receipt right behind its last batch."""

from __future__ import annotations

from streamd.window.actions import Action, SendBatch, SendReceipt
from streamd.window.pool import Pool
from streamd.window.sessions import Session


def deliver(session: Session, pool: Pool, actions: list[Action]) -> None:
    """Sends a session all that lies ready for it and that it may have."""
    _close_epochs(session, actions)
    while session.room > 0:
        key = session.next_key
        entry = pool.entries.get(key)
        if entry is None or not entry.ready:
            break
        pool.hold(entry)
        actions.append(SendBatch(session.id, session.send(entry.slot), key, entry.slot))
        _close_epochs(session, actions)


def _close_epochs(session: Session, actions: list[Action]) -> None:
    while session.at_epoch_end:
        actions.append(SendReceipt(session.id, session.end_epoch()))
