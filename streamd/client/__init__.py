"""A trainer's end: `connect()` gives a client, `subscribe()` a stream of batches.

session   the protocol's client side (pure)         io       the thread that owns the socket
inbox     between that thread and the loop          stream   the iterator a trainer holds
batch     what it yields                            client   the door
captions  what there is to say about its rows       html     the same in a notebook
"""

from __future__ import annotations

from streamd.client.batch import Batch
from streamd.client.client import Client, connect
from streamd.client.stream import Stream

__all__ = ["Batch", "Client", "Stream", "connect"]
