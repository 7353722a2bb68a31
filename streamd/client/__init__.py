"""The trainer's side of streamd: `connect()` returns a client, `subscribe()` a stream of batches.

session   the protocol's client side (pure)         io_thread   the thread that owns the socket
handoff   passes batches from that thread to a loop leases      how leases of batches end, also across a fork
stream    the iterator that a trainer holds         batch       what it yields, also of another size
client    connects, subscribes, sends requests      arguments   what these accept
waiting   how long a loop waits, what it reports    ranks       the rank of this process (pure)
sockets   opens a client's sockets                  local       a private daemon
notebook  a batch as HTML
"""

from __future__ import annotations

from streamd.client.batch import Batch
from streamd.client.client import Client, connect
from streamd.client.stream import Stream

__all__ = ["Batch", "Client", "Stream", "connect"]
