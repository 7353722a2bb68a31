"""One task of a stream whose pixels are stored: they are gathered, or may come back, and are never bad."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.served_folder import serve

from streamd.core.sampler import PAD_ID, Ids
from streamd.core.slot_layout import compute_layout
from streamd.dataset.arrays.store import Pixels
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.progress_page import PROGRESS_PAGE_BYTES, ProgressPage
from streamd.ipc.slots import create_memfd
from streamd.ipc.worker_messages import FillRows, UnfilledRow
from streamd.worker.fill_rows import TaskRunner
from streamd.worker.stream_reader import StreamReader


@pytest.fixture
def arrays(tmp_path: Path) -> Iterator[StreamReader]:
    """A stream over five stored images, each of one level."""
    np.save(tmp_path / "x.npy", np.repeat(np.arange(5, dtype=np.uint8), 4 * 4 * 3).reshape(5, 4, 4, 3))
    stream = serve(tmp_path, tmp_path / "state", source={"kind": "npy", "path": str(tmp_path / "x.npy")}, image={})
    source = StreamReader.open(stream.spec, stream.manifest_path)
    yield source
    source.close()
    stream.manifest.close()


def filled(source: StreamReader, ids: Ids) -> tuple[Pixels, list[UnfilledRow]]:
    """What a task makes of these samples, in as many rows."""
    place = compute_layout(source.spec, ids.size)
    memory = memoryview(bytearray(b"\xaa" * place.size_bytes))
    task = FillRows(1, 0, 1, place.size_bytes, ids.size, np.arange(ids.size, dtype=np.uint16), ids)
    page = create_memfd("track", PROGRESS_PAGE_BYTES)
    filling = TaskRunner(source, task, memory, ProgressPage(page))
    os.close(page)
    if not filling.gather_stored_rows():
        filling.decode_rows(source.read_files(ids), 0, ids.size)
    return place.images.build_array_in_memory(memory), filling.unfilled_rows


def test_stored_pixels_need_no_file_read_and_a_row_without_a_sample_is_zero(arrays: StreamReader) -> None:
    ids = np.array([3, PAD_ID, 1], np.int64)
    batch, bad = filled(arrays, ids)
    assert (batch[:, 0, 0, 0].tolist(), bad) == ([3, 0, 1], [])
    assert not arrays.find_samples_to_decode(ids).any()


def test_stored_pixels_that_have_changed_may_come_back_and_condemn_no_sample(arrays: StreamReader) -> None:
    path = arrays.manifest.root / "x.npy"
    path.write_bytes(path.read_bytes())
    _, bad = filled(arrays, np.array([3, PAD_ID], np.int64))
    reason = "its file has changed since it was listed; restart with --rescan to list it anew"
    assert bad == [UnfilledRow(3, reason, lasting=False)]


def test_stored_pixels_whose_file_is_gone_are_away_until_it_is_back(arrays: StreamReader) -> None:
    path = arrays.manifest.root / "x.npy"
    aside = path.rename(path.with_name("aside"))
    (bad,) = filled(arrays, np.array([3, PAD_ID], np.int64))[1]
    assert bad == UnfilledRow(3, f"'x.npy' is not in '{arrays.manifest.root}'", lasting=False, away=True)
    aside.rename(path)
    assert filled(arrays, np.array([3, PAD_ID], np.int64))[1] == []


def test_stored_pixels_are_the_same_whatever_decodes_here(arrays: StreamReader) -> None:
    assert arrays.pixel_id != compute_pixel_id(arrays.spec.image)
    wider = replace(arrays, spec=replace(arrays.spec, image=replace(arrays.spec.image, width=9)))
    assert arrays.pixel_id != wider.pixel_id


def test_stored_numbers_that_are_none_condemn_their_sample_alone(tmp_path: Path) -> None:
    numbers = np.linspace(0, 1, 5 * 4 * 4 * 3).astype(np.float32).reshape(5, 4, 4, 3)
    numbers[3, 0, 0, 0] = np.nan
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = numbers
    kind = {"kind": "hdf5", "path": str(tmp_path / "x.h5"), "images": "/x", "range": [0, 1]}
    stream = serve(tmp_path, tmp_path / "state", source=kind, image={}, labels={})
    source = StreamReader.open(stream.spec, stream.manifest_path)
    batch, bad = filled(source, np.array([4, 3, 1], np.int64))
    assert bad == [UnfilledRow(3, "a pixel is no number (NaN)", lasting=True)]
    assert np.array_equal(batch[[0, 2]], np.rint(numbers[[4, 1]] * 255).astype(np.uint8))
    source.close()
    stream.manifest.close()
