"""The choice of a store or reader for a manifest; the tests of each format open their own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streamd.dataset.manifest.types import ArrayFiles, ShardFiles, StorageFormat
from streamd.dataset.open_store import open_shard_reader, open_store
from streamd.errors import ConfigError


@pytest.mark.parametrize(
    ("open_one", "field", "unknown"),
    [
        (open_store, "arrays", ArrayFiles((8, 8, 3), (0, 4), (0,), StorageFormat("tape"))),
        (open_shard_reader, "shards", ShardFiles((), (), (), "tape")),
    ],
    ids=["store", "shard reader"],
)
def test_files_have_no_store_or_reader_and_an_unknown_one_is_refused(
    open_one: Callable[[Any, int], object], field: str, unknown: object
) -> None:
    assert open_one(SimpleNamespace(**{field: None}), 0) is None
    with pytest.raises(ConfigError, match=r"'tape'.*--rescan"):
        open_one(SimpleNamespace(**{field: unknown}), 0)
