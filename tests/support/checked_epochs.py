"""Reads whole epochs and checks each row against its file; reads counters and bad samples of a daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import streamd
from streamd.client import Batch
from streamd.core.receipt import Receipt
from streamd.core.spec import StreamSpec
from streamd.decode.decoders import decode_image
from support.daemon_process import DaemonProcess


class Epoch:
    """One epoch of a stream, read whole; every row that was delivered is checked against its file."""

    def __init__(
        self,
        daemon: DaemonProcess,
        root: Path,
        stream: str = "train",
        *,
        between: Callable[[Batch], None] = lambda _: None,
        **wish: Any,
    ) -> None:
        self.bad: list[tuple[str, str, str]] = []  # file, reason, action
        self.ids: list[int] = []
        self.weights: list[float] = []
        self.pixels: list[bytes] = []
        with streamd.connect(daemon.endpoint) as client, client.subscribe(stream, epochs=1, **wish) as batches:
            for batch in batches:
                self._check(batch, batches.spec, client, root)
                between(batch)
        self.receipt: Receipt = batches.receipts[0]
        assert self.receipt.ok
        assert self.receipt.complete
        assert (self.receipt.missed, self.receipt.repeated) == (0, 0)

    def _check(self, batch: Batch, spec: StreamSpec, client: streamd.Client, root: Path) -> None:
        expected = np.zeros(spec.image_shape, np.uint8)
        ids = batch.sample_ids.tolist()
        names = iter(client.names(spec.name, [each for each in ids if each >= 0]))
        for image, sample_id in zip(batch.images, ids, strict=True):
            if sample_id >= 0:
                decode_image((root / next(names)).read_bytes(), expected, spec.image)
            assert np.array_equal(image, expected if sample_id >= 0 else 0 * expected)
        self.bad += [(row.file, row.reason, row.action) for row in batch.bad]
        self.ids += ids
        self.weights += batch.weights.tolist()
        self.pixels.append(batch.images.tobytes())


def number(daemon: DaemonProcess, group: str, name: str) -> float:
    with streamd.connect(daemon.endpoint) as client:
        return client.stats().get(group, {}).get(name, 0.0)


def verdicts(daemon: DaemonProcess) -> list[str]:
    """The lines of all quarantine lists of a daemon."""
    return [line for path in daemon.state.rglob("*.bad.jsonl") for line in path.read_text().splitlines()]
