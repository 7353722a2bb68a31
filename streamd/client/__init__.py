"""The trainer's side of streamd: `connect()` returns a client, `subscribe()` a stream of batches.

session   the protocol's client side (pure)         io_thread   the thread that owns the socket
handoff   passes batches from that thread to a loop leases      how leases of batches end, also across a fork
stream    the iterator that a trainer holds         batch       what the iterator yields
rebatch   batches of another size                   waiting     how long a loop waits, and what it reports
client    connects, subscribes, sends requests      ranks       the rank of this process (pure)
notebook  a batch as HTML                           local       a private daemon
sockets   opens a client's sockets                  session_waits  waits for batches and receipts
"""

from __future__ import annotations

from streamd.client.batch import Batch
from streamd.client.client import Client, connect
from streamd.client.stream import Stream

__all__ = ["Batch", "Client", "Stream", "connect"]
