"""Packs of several images, class numbers, raw numbers, boxes and points are served as what was packed."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pack_records import COUNT, IMAGES, write_records
from support.pack_streams import decoding_here, labels_of, rows_of, stream_of

from streamd.cli.pack import run, workdir
from streamd.cli.pack.packed_rows import PackedRows
from streamd.cli.pack.run import PACK_FORMATS, PackFormat, PackOptions, PackResult
from streamd.cli.terminal.progress import SilentProgress
from streamd.config.load import load_config
from streamd.core.spec import StreamSpec


@pytest.fixture(autouse=True)
def decodes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of two, saved after each."""
    monkeypatch.setattr(run, "open_batch_decoder", decoding_here)
    monkeypatch.setattr(run, "compute_pack_batch_rows", lambda *_: 2)
    monkeypatch.setattr(workdir, "PACK_SYNC_BYTES", 1)


def pack(config: dict[str, Any], destination: Path, name: PackFormat, **options: Any) -> PackResult:
    return run.pack_stream(load_config(config), PackOptions("train", destination, name, **options), SilentProgress())


def read_all(config: dict[str, Any], folder: Path) -> tuple[PackedRows, dict[str, list[Any]], list[str], StreamSpec]:
    """Images, boxes and points, other labels, names, and the specification of a stream."""
    with stream_of(config, folder) as stream:
        names = [stream.format_file_name(sample_id) for sample_id in range(stream.spec.samples)]
        return rows_of(stream), labels_of(stream), names, stream.spec


def assert_served_alike(config: dict[str, Any], packed: PackResult, folder: Path) -> None:
    """The pack is served with the samples of the stream that was packed."""
    rows, labels, names, spec = read_all(config, folder / "of stream")
    again, labels_again, names_again, spec_again = read_all({"streams": {"train": packed.serving}}, folder / "of pack")
    assert names_again == names
    assert labels_again == labels
    for name, images in {**rows.images, **rows.boxes}.items():
        served = again.images[name] if name in again.images else again.boxes[name]
        assert (served.dtype, served.shape) == (images.dtype, images.shape)
        assert np.array_equal(served, images), name
    for name, image in spec.images.items():
        mine = spec_again.images[name]
        assert (mine.mode, mine.fill, mine.normalize, mine.range) == (
            image.mode, image.fill, image.normalize, image.range,
        )  # fmt: skip
    assert spec_again.labels["boxes"].classes == spec.labels["boxes"].classes


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_a_pack_of_records_serves_the_same_records(tmp_path: Path, name: PackFormat) -> None:
    config = write_records(tmp_path / "data")
    packed = pack(config, tmp_path / "packed", name)
    assert packed.samples == COUNT
    assert list(packed.serving["images"]) == list(IMAGES)  # type: ignore[call-overload]  # a mapping of images
    assert_served_alike(config, packed, tmp_path)


@pytest.mark.parametrize(("first", "second"), [pair for pair in product(PACK_FORMATS, repeat=2) if pair[0] != pair[1]])
def test_a_pack_can_be_packed_again_in_any_other_format(tmp_path: Path, first: PackFormat, second: PackFormat) -> None:
    config = write_records(tmp_path / "data")
    middle = {"streams": {"train": pack(config, tmp_path / "first", first).serving}}
    assert_served_alike(config, pack(middle, tmp_path / "second", second), tmp_path)
