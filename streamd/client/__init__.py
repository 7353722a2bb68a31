"""A trainer's end: `connect()` gives a client, `subscribe()` a stream of batches.

session   the protocol's client side (pure)         io_thread   the thread that owns the socket
handoff   between that thread and the loop          leases      of batches: how they end, also around a fork
stream    the iterator a trainer holds              batch       what it yields
rebatch   batches of another size                   waiting     how long a loop waits, and for what
client    connects, subscribes, asks                ranks       which of several processes this is (pure)
notebook  a batch as HTML                           local       a daemon of one's own
sockets   makes a client's sockets                  session_waits  for a session's batches and receipts
"""

from __future__ import annotations

from streamd.client.batch import Batch
from streamd.client.client import Client, connect
from streamd.client.stream import Stream

__all__ = ["Batch", "Client", "Stream", "connect"]
