"""streamd: load once, train many.

One daemon reads, shuffles, decodes and batches images; any number of trainers take the batches. Data flows right,
demand flows left, and they meet in the scheduler:

    source -> decode -> slot -> router ==> client -> framework
    worker <- engine <- scheduler <- router <== client

A folder is one process, or one layer that processes share. Each may import what stands below it, never beside it:

    cli          what people start                  daemon      the server process
    frameworks   streams for Keras, torch, JAX      worker      the decode process
    client       a trainer's end                    config      config.yaml, or every line to mend
    dataset      files to samples, and back         scheduler   what is produced, sent and freed (pure)
    decode       bytes of an image to pixels        ipc         messages between processes, shared memory
    core         what a stream and a batch are (pure but for its log and two files)
    errors, limits
"""

from __future__ import annotations

import importlib
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
    from streamd import headroom
    from streamd.client import connect
    from streamd.client.local import local
    from streamd.decode.inference import load_image

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
    "headroom",
    "load_image",
    "local",
]


def __getattr__(name: str) -> Any:
    """Loads ZeroMQ and NumPy only when they are wanted."""
    if name == "connect":
        from streamd.client import connect  # noqa: PLC0415 - the point is to import late

        return connect
    if name == "local":
        from streamd.client.local import local  # noqa: PLC0415 - as above

        return local
    if name == "load_image":
        from streamd.decode.inference import load_image  # noqa: PLC0415 - as above

        return load_image
    if name == "headroom":
        return importlib.import_module("streamd.headroom")
    raise AttributeError(f"module 'streamd' has no attribute {name!r}")
