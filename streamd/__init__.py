"""streamd: load once, train many.

One daemon reads, shuffles, decodes and batches images; any number of trainers take the batches. Data flows right,
demand flows left, and they meet in the window:

    source -> decode -> slot -> server ==> client -> framework
    worker <- engine <- window <- server <== client

The rooms, in the order of the data:

    spec, plan, layout, verdicts, receipts, limits   what a batch is (pure)
    config, sources, manifest                        what the user has
    worker, produce, confined, decode                files become rows of a slot
    slots, mapping, descriptors                      the memory and its ways to other processes
    engines                                          who decodes
    window                                           the one decision: what is produced, sent, freed (pure)
    messages, wire, tasks                            what is said, and its bytes (pure)
    server, daemon, quarantine, stats, logs          the process
    notify, pulse, activation                        ... as systemd sees it
    monitor                                          ... as a browser and Prometheus see it
    client                                           the trainer's end
    frameworks, images, saved, train, demo, cli      what people touch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamd.errors import (
    BatchesHeldError,
    ConfigError,
    ConnectError,
    ForkedClientError,
    ReceiptError,
    RefusedError,
    StreamChangedError,
    StreamdError,
    StreamStoppedError,
    TokenError,
)

if TYPE_CHECKING:
    from streamd.client import connect
    from streamd.images import load_image
    from streamd.private import local

__version__ = "0.1.0"

__all__ = [
    "BatchesHeldError",
    "ConfigError",
    "ConnectError",
    "ForkedClientError",
    "ReceiptError",
    "RefusedError",
    "StreamChangedError",
    "StreamStoppedError",
    "StreamdError",
    "TokenError",
    "connect",
    "load_image",
    "local",
]


def __getattr__(name: str) -> Any:
    """Loads ZeroMQ and NumPy only when they are wanted."""
    if name == "connect":
        from streamd.client import connect  # noqa: PLC0415 - the point is to import late

        return connect
    if name == "local":
        from streamd.private import local  # noqa: PLC0415 - as above

        return local
    if name == "load_image":
        from streamd.images import load_image  # noqa: PLC0415 - as above

        return load_image
    raise AttributeError(f"module 'streamd' has no attribute {name!r}")
