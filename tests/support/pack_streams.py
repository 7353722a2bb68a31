"""Streams to pack, decoded in this process because a worker takes long to start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.cli.pack.batches import DecodedBatch, build_packing_stream, list_and_open_stream
from streamd.cli.pack.writer import PackJob, PackWriter
from streamd.config.load import load_config
from streamd.core.bad_samples import BadRow
from streamd.core.sampler import Ids
from streamd.core.spec import PixelId
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.decoders import BadImageError, decode_image
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
    images = np.zeros((ids.size, *stream.spec.image_shape), np.uint8)
    good = np.ones(ids.size, np.bool_)
    for row, sample_id in enumerate(ids.tolist()):
        try:
            _fill(source, sample_id, images[row])
        except BadImageError as error:
            good[row] = False
            bad.append(BadRow(row, sample_id, stream.format_file_name(sample_id), str(error), "masked"))
    return DecodedBatch(index, ids[good], images[good], tuple(bad), 0)


def _fill(source: StreamReader, sample_id: int, row: npt.NDArray[np.uint8]) -> None:
    if source.store is not None:
        assert source.store.gather_rows(np.array([sample_id]), row[None]).all()
        return
    blob = source.read_sample(sample_id)
    assert isinstance(blob, bytes), blob
    decode_image(blob, row, source.spec.image)


def write_all(writer: PackWriter, stream: ServedStream, *, bad: Ids | None = None) -> npt.NDArray[np.uint64]:
    """Writes all samples but the bad ones, finishes, and returns the checksums that the writer gave."""
    writer.resume_after_rows(0, {})
    left_out = np.empty(0, np.int64) if bad is None else bad
    source = StreamReader.open(stream.spec, stream.manifest_path)
    try:
        sums = []
        for index in range(stream.spec.batches):
            batch = decoded(stream, source, index)
            kept = ~np.isin(batch.ids, left_out)
            sums.append(writer.append_rows(batch.ids[kept], batch.images[kept]))
    finally:
        source.close()
    writer.sync_to_disk()
    writer.finish_pack(left_out)
    return np.concatenate(sums)


def read_back(writer: PackWriter, bad: Ids | None = None) -> npt.NDArray[np.uint64]:
    """The checksums of what lies on the disk."""
    return np.concatenate(list(writer.read_checksums(np.empty(0, np.int64) if bad is None else bad)))


def pixels_of(stream: ServedStream) -> npt.NDArray[np.uint8]:
    """The images of all samples in the order of their ids, however they are stored."""
    source = StreamReader.open(stream.spec, stream.manifest_path)
    try:
        images = np.zeros((stream.spec.samples, *stream.spec.image_shape), np.uint8)
        for sample_id, row in enumerate(images):
            _fill(source, sample_id, row)
        return images
    finally:
        source.close()


def labels_of(stream: ServedStream) -> dict[str, list[Any]]:
    """All labels, and weights, as batches carry them."""
    ids = np.arange(stream.spec.samples)
    labels = {name: stream.manifest.gather_label(name, ids).tolist() for name in stream.spec.labels}
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
