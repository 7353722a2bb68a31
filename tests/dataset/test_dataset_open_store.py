"""Which store a list of samples gets."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import write_images
from support.served_folder import serve
from support.tar_shards import pack

from streamd.dataset.arrays.npy_store import NpyStore
from streamd.dataset.manifest.types import StorageFormat
from streamd.dataset.open_store import open_shard_reader, open_store
from streamd.dataset.shard_reader import ShardReader
from streamd.errors import ConfigError


def test_files_have_no_store_arrays_have_theirs_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((4, 8, 8, 3), np.uint8))
    rows = serve(tmp_path, tmp_path / "state", source={"kind": "npy", "path": str(tmp_path)}, labels={}, image={})
    files = serve(write_images(tmp_path / "data", {"cat": 3}), tmp_path / "state")
    assert open_store(files.manifest, 0) is None
    root = os.open(tmp_path, os.O_RDONLY)
    store = open_store(rows.manifest, root)
    assert isinstance(store, NpyStore)
    store.close()
    assert rows.manifest.arrays is not None
    rows.manifest.arrays = replace(rows.manifest.arrays, stored=StorageFormat("tape"))
    with pytest.raises(ConfigError, match=r"'tape'.*--rescan"):
        open_store(rows.manifest, root)
    os.close(root)
    for each in (rows, files):
        each.manifest.close()


def test_images_in_shards_have_the_reader_of_their_format_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    shards = pack(tmp_path / "shards" / "0.tar", {"0.jpg": b"x"}).parent
    stream = serve(shards, tmp_path / "state", source={"kind": "tar", "path": str(shards)}, labels={})
    root = os.open(shards, os.O_RDONLY)
    reader = open_shard_reader(stream.manifest, root)
    assert isinstance(reader, ShardReader)
    assert reader.read_image(0, 1) == b"x"
    reader.close()
    assert stream.manifest.shards is not None
    stream.manifest.shards = replace(stream.manifest.shards, format="tape")
    with pytest.raises(ConfigError, match=r"'tape' files.*--rescan"):
        open_shard_reader(stream.manifest, root)
    stream.manifest.shards = None
    assert open_shard_reader(stream.manifest, root) is None
    os.close(root)
    stream.manifest.close()
