"""Streams as workers have them open, with stores of our own in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamd.core.sampler import Ids
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.worker.stream_reader import StreamReader
from support.daemon_process import write_images
from support.served_folder import serve

LABELS = {"label": {"type": "category", "classes": ["dog", "cat"]}}  # sample 0 has a label other than 0


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    """Nine samples in batches of 8."""
    folder = write_images(tmp_path / "data", {"cat": 4, "dog": 5})
    stream = serve(folder, tmp_path / "state", labels=LABELS)
    yield stream
    stream.manifest.close()


@pytest.fixture
def source(stream: ServedStream) -> Iterator[StreamReader]:
    source = StreamReader.open(stream.spec, stream.manifest_path)
    yield source
    source.close()


class Held:
    """A store of some samples, each of one colour; what it does not hold it leaves as rubbish."""

    def __init__(self, held: set[int]) -> None:
        self._held = held
        self.asked: list[list[int]] = []
        self.expected: list[int] = []
        self.closed = False

    def find_gatherable(self, ids: Ids) -> Mask:
        return np.array([sample_id in self._held for sample_id in ids.tolist()])

    def prefetch_rows(self, ids: Ids) -> None:
        self.expected += ids.tolist()

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        assert images.flags.c_contiguous
        self.asked.append(ids.tolist())
        images[:] = ids.astype(np.uint8).reshape(-1, 1, 1, 1)
        return self.find_gatherable(ids)

    def find_permanent_fault(self, sample_id: int) -> str:
        del sample_id
        return ""

    def close(self) -> None:
        self.closed = True


def holding(source: StreamReader, *held: int) -> tuple[StreamReader, Held]:
    store = Held(set(held))
    return replace(source, store=store), store
