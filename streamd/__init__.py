"""Load once, train many.

One daemon reads, shuffles, decodes and batches images; any number of trainers on the host take the batches.

    import streamd

    with streamd.connect() as client, client.subscribe("train", epochs=10) as stream:
        for batch in stream:
            batch.images, batch.labels      # uint8 (B, H, W, C), and arrays of B by name
            batch.arrays                    # all images of a sample by name, where it has several

connect       returns a client of the daemon that `streamd serve` runs
local         starts a daemon of your own, for a notebook, a script or a test; it ends with your process
Client        what both return: `subscribe` for training, `batch` to look at one, `streams`, `names`, `status`
Stream        a subscription, an iterator of batches; with `receipts`, and the `token` from which to resume
Batch         images, labels, weights and sample_ids; a notebook shows it as pictures
load_image    reads one image file as a stream does, for a trained model
headroom      repeats held batches in a stream's place, to measure how fast training is if loading costs nothing
StreamdError  the base class of all errors, such as ConnectError and RefusedError

For Keras there is `streamd.frameworks.keras.fit_data(stream)`, for torch `streamd.frameworks.torch.loader(stream)`.
`help(streamd.connect)` and `help(streamd.Client.subscribe)` explain every argument. `streamd --help` lists the
commands. README.md is the introduction, docs/README.md lists the pages, and ARCHITECTURE.md is the map of the code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

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
    from streamd.client import Batch, Client, Stream, connect
    from streamd.client.local import local
    from streamd.decode.inference import load_image

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchesHeldError",
    "Client",
    "ConfigError",
    "ConnectError",
    "ForkedClientError",
    "ReceiptError",
    "RefusedError",
    "Stream",
    "StreamChangedError",
    "StreamStoppedError",
    "StreamdError",
    "TokenError",
    "connect",
    "headroom",
    "load_image",
    "local",
]

# Imported at their first use: they need ZeroMQ and NumPy, and load_image needs the decoders.
_MODULES: Final = {
    "Batch": "streamd.client",
    "Client": "streamd.client",
    "Stream": "streamd.client",
    "connect": "streamd.client",
    "load_image": "streamd.decode.inference",
    "local": "streamd.client.local",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name == "headroom":
        return importlib.import_module("streamd.headroom")
    raise AttributeError(f"module 'streamd' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names, without the names that only this module uses."""
    return sorted(["__doc__", "__version__", *__all__])
