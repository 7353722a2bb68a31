"""A batch of which one task fills some rows, and a stream as a worker has it open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.served_folder import serve

from streamd.core.slot_layout import compute_layout
from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, create_memfd
from streamd.ipc.worker_messages import FillRows
from streamd.worker.fill_rows import TaskRunner
from streamd.worker.stream_reader import StreamReader

ROWS = 8
TASK = 77


@contextmanager
def opened(folder: Path, state: Path, **config: Any) -> Iterator[StreamReader]:
    """A stream over a folder, served and opened."""
    stream = serve(folder, state, **config)
    source = StreamReader.open(stream.spec, stream.manifest_path)
    yield source
    source.close()
    stream.manifest.close()


def new_track() -> ProgressPage:
    page = create_memfd("track", PROGRESS_PAGE_BYTES)
    try:
        return ProgressPage(page)
    finally:
        os.close(page)


class Unfilled:
    """A batch of 8 rows, and a task for some of them; memory that nobody wrote is 0xAA."""

    def __init__(self, source: StreamReader, ids: list[int], rows: Sequence[int] | None = None, epoch: int = 0) -> None:
        self.layout = compute_layout(source.spec, ROWS)
        self.memory = memoryview(bytearray(b"\xaa" * self.layout.size_bytes))
        self.track = new_track()
        self.ids = np.array(ids, np.int64)
        places = np.array(range(len(ids)) if rows is None else rows, np.uint16)
        task = FillRows(TASK, 0, 1, self.layout.size_bytes, ROWS, places, self.ids, epoch)
        self.filling = TaskRunner(source, task, self.memory, self.track)
        self.arrays = {name: each.build_array_in_memory(self.memory) for name, each in self.layout.arrays.items()}
        self.images: npt.NDArray[np.uint8] = self.layout.images.build_array_in_memory(self.memory)
        self.sample_ids = self.layout.sample_ids.build_array_in_memory(self.memory)
        self.weights = self.layout.weights.build_array_in_memory(self.memory)

    def labels(self, name: str = "label") -> npt.NDArray[Any]:
        return self.layout.labels[name].build_array_in_memory(self.memory)


class Filled(Unfilled):
    """The same once the task is done, three rows at a time. `plain` has the images before a transform."""

    def __init__(self, source: StreamReader, ids: list[int], rows: Sequence[int] | None = None, epoch: int = 0) -> None:
        super().__init__(source, ids, rows, epoch)
        blobs = [] if self.filling.gather_stored_rows() else source.read_files(self.ids)
        for start in range(0, len(blobs), 3):
            self.filling.decode_rows(blobs, start, start + 3)
        if source.cache is not None:
            self.filling.write_to_cache(source.cache)
        self.filling.write_labels()
        self.plain = self.images.copy()
        for start in range(0, len(ids), 3):
            self.filling.transform_rows(start, start + 3)
        self.bad = self.filling.unfilled_rows
