"""Streams to pack, decoded in this process because a worker takes long to start."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.cli.pack.batches import (
    DecodedBatch,
    PackedRows,
    PackJob,
    PackWriter,
    WholeShards,
    build_packing_stream,
    list_and_open_stream,
    read_slot_rows,
)
from streamd.config.load import load_config
from streamd.core.sampler import BadRow, BadSample, Ids
from streamd.core.slot_layout import compute_layout
from streamd.core.spec import PixelId
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, create_memfd
from streamd.ipc.worker_messages import FillRows
from streamd.worker.fill_rows import TaskRunner
from streamd.worker.stream_reader import StreamReader

HEIGHT, WIDTH = 5, 7
ROWS = (  # file, label, angle, tags, text, x, y
    ("a.png", "cat", "0.5", "red|big", "", "1", "2"),
    ("b.png", "dog", "-1.25", "", "naïve", "3", "4"),
    ("c.png", "cat", "3", "big", "two words", "5", "6"),
    ("d.png", "cat", "0", "red", "x", "7", "8"),
    ("e.png", "dog", "7.5", "red|big", "y", "9", "10"),
)
LABELS: Mapping[str, object] = {
    "label": "category",
    "angle": "float",
    "tags": "tags",
    "text": "string",
    "where": {"type": "int", "from": ["x", "y"]},
}


def write_table(folder: Path, *, channels: int = 3) -> dict[str, Any]:
    """Small pictures, a table of their labels, and the configuration of a stream `train` over them."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name, *_ in ROWS:
        pixels = rng.integers(0, 256, (HEIGHT, WIDTH, channels), dtype=np.uint8)
        Image.fromarray(pixels if channels > 1 else pixels[:, :, 0]).save(folder / name)
    lines = ["file,label,angle,tags,text,x,y", *(",".join(row) for row in ROWS)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    stream = {
        "source": {"kind": "table", "path": str(folder / "table.csv"), "image": "file"},
        "labels": dict(LABELS),
        "image": {"size": [HEIGHT, WIDTH], "mode": "RGB" if channels > 1 else "L"},
    }
    return {"workers": 1, "streams": {"train": stream}}


@contextmanager
def stream_of(config: dict[str, Any], folder: Path, *, shuffled: bool = False, rows: int = 2) -> Iterator[ServedStream]:
    """The stream `train` of a configuration, as it is packed."""
    with list_and_open_stream(load_config(config), "train", folder, lambda *_: None) as stream:
        yield build_packing_stream(stream, shuffled=shuffled, batch_rows=rows)


def subject_of(stream: ServedStream, folder: Path) -> PackJob:
    """What is packed of a stream, in a folder of its own."""
    return PackJob(stream, folder / "pack", folder / "scratch")


@asynccontextmanager
async def decoding_here(stream: ServedStream, workers: int, memory_bytes: int) -> AsyncIterator[Here]:
    """Stands for `decoded.decoding`."""
    del workers, memory_bytes
    source = StreamReader.open(stream.spec, stream.manifest_path)
    try:
        yield Here(stream, source)
    finally:
        source.close()


class Here:
    """Stands for `BatchDecoder`."""

    def __init__(self, stream: ServedStream, source: StreamReader) -> None:
        self._stream, self._source, self._index = stream, source, 0

    async def wait_for_pixel_id(self) -> PixelId:
        return self._source.pixel_id

    def request_batches_from(self, index: int) -> None:
        self._index = index

    async def wait_for_next_batch(self) -> DecodedBatch | None:
        if self._index == self._stream.spec.batches:
            return None
        self._index += 1
        return decoded(self._stream, self._source, self._index - 1)

    def release_batch(self, batch: DecodedBatch) -> None:
        assert batch.index == self._index - 1


def decoded(stream: ServedStream, source: StreamReader, index: int) -> DecodedBatch:
    """One batch, what cannot be decoded left out."""
    ids, bad = stream.compute_planned_ids(0, index), list[BadRow]()
    rows, unfilled = fill_rows(source, ids)
    good = np.ones(ids.size, np.bool_)
    for each in unfilled:
        row = ids.tolist().index(each.sample_id)
        good[row] = False
        bad.append(BadRow(row, each.sample_id, stream.format_file_name(each.sample_id), each.reason, "masked"))
    return DecodedBatch(index, rows.select_rows(good), tuple(bad), 0)


def fill_rows(source: StreamReader, ids: Ids) -> tuple[PackedRows, list[BadSample]]:
    """What a worker makes of these samples, in the memory of a batch, and those that it cannot fill."""
    layout = compute_layout(source.spec, ids.size)
    memory = memoryview(bytearray(layout.size_bytes))
    task = FillRows(1, 0, 1, layout.size_bytes, ids.size, np.arange(ids.size, dtype=np.uint16), ids)
    descriptor = create_memfd("track", PROGRESS_PAGE_BYTES)
    page = ProgressPage(descriptor)
    os.close(descriptor)
    runner = TaskRunner(source, task, memory, page)
    blobs = [] if runner.gather_stored_rows() else source.read_files(ids)
    runner.decode_rows(blobs, 0, len(blobs))
    runner.write_labels()
    page.close()
    return read_slot_rows(source.spec, ids, memory), runner.unfilled_rows


def write_all(writer: PackWriter, stream: ServedStream, *, bad: Ids | None = None) -> npt.NDArray[np.uint64]:
    """Writes all samples but the bad ones, finishes, and returns the checksums that the writer gave."""
    writer.resume_after_shards(WholeShards())
    left_out = np.empty(0, np.int64) if bad is None else bad
    source = StreamReader.open(stream.spec, stream.manifest_path)
    try:
        sums = []
        for index in range(stream.spec.batches):
            batch = decoded(stream, source, index)
            sums.append(writer.append_rows(batch.rows.select_rows(~np.isin(batch.rows.ids, left_out))))
    finally:
        source.close()
    writer.sync_to_disk()
    writer.finish_pack(left_out)
    return np.concatenate(sums)


def read_back(writer: PackWriter, bad: Ids | None = None) -> npt.NDArray[np.uint64]:
    """The checksums of what lies on the disk."""
    return np.concatenate(list(writer.read_checksums(np.empty(0, np.int64) if bad is None else bad)))


def rows_of(stream: ServedStream) -> PackedRows:
    """The images, boxes and points of all samples in the order of their ids, however they are stored."""
    source = StreamReader.open(stream.spec, stream.manifest_path)
    try:
        rows, unfilled = fill_rows(source, np.arange(stream.spec.samples))
        assert not unfilled, unfilled
        return rows
    finally:
        source.close()


def pixels_of(stream: ServedStream) -> npt.NDArray[np.uint8]:
    """The images of all samples, of a stream that has one a sample."""
    (images,) = rows_of(stream).images.values()
    return images


def labels_of(stream: ServedStream) -> dict[str, list[Any]]:
    """All labels but boxes and points, and weights, as batches carry them."""
    ids = np.arange(stream.spec.samples)
    plain = [name for name, label in stream.spec.labels.items() if not label.is_ragged]
    labels = {name: stream.manifest.gather_label(name, ids).tolist() for name in plain}
    return {**labels, "weights": stream.manifest.gather_weights(ids).tolist()}


@pytest.fixture
def pack_job(tmp_path: Path) -> Iterator[PackJob]:
    """Five pictures with labels in stored order, two a batch, to be packed at `pack`."""
    with stream_of(write_table(tmp_path / "data"), tmp_path / "list") as stream:
        yield subject_of(stream, tmp_path)


@pytest.fixture
def shuffled_pack_job(tmp_path: Path) -> Iterator[PackJob]:
    """The same pictures in one global order."""
    with stream_of(write_table(tmp_path / "data"), tmp_path / "list", shuffled=True) as stream:
        yield subject_of(stream, tmp_path)
