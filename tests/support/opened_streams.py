"""Streams as the daemon serves them and as workers open them, and a fake store of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamd.core.sampler import Ids
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.arrays.store import (
    NO_DRAWS,
    Mask,
    ReportRow,
    SampleDraws,
    SampleGeometries,
    SampleRows,
    Store,
    ignore_row_report,
)
from streamd.worker.stream_reader import StreamReader
from support.daemon_process import write_images
from support.served_folder import serve

LABELS = {"label": {"type": "category", "classes": ["dog", "cat"]}}  # sample 0 has a label other than 0


Serve = Callable[..., ServedStream]


@pytest.fixture
def serve_images(tmp_path: Path) -> Iterator[Serve]:
    """Serves `train` over new images, so many a class; all that was served is closed at the end."""
    streams: list[ServedStream] = []

    def serve_classes(classes: dict[str, int], **changes: Any) -> ServedStream:
        number = f"{len(streams) or ''}"
        folder = write_images(tmp_path / f"data{number}", classes)
        streams.append(serve(folder, tmp_path / f"state{number}", **changes))
        return streams[-1]

    yield serve_classes
    for stream in streams:
        stream.manifest.close()


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    """Nine samples in batches of 8."""
    return serve_images({"cat": 4, "dog": 5}, labels=LABELS)


@pytest.fixture
def source(stream: ServedStream) -> Iterator[StreamReader]:
    source = StreamReader.open(stream.spec, stream.manifest_path)
    yield source
    source.close()


class Held(Store):
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

    def gather(
        self, ids: Ids, rows: SampleRows, draws: SampleDraws = NO_DRAWS, report_row: ReportRow = ignore_row_report
    ) -> tuple[Mask, Sequence[SampleGeometries]]:
        del draws, report_row
        (images,) = rows.values()
        assert images.flags.c_contiguous
        self.asked.append(ids.tolist())
        images[:] = ids.astype(np.uint8).reshape(-1, 1, 1, 1)
        return self.find_gatherable(ids), [{}] * ids.size

    def close(self) -> None:
        self.closed = True


def holding(source: StreamReader, *held: int) -> tuple[StreamReader, Held]:
    store = Held(set(held))
    return replace(source, store=store), store
