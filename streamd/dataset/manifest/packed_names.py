"""Where `streamd pack` keeps the names of the files that it packed, so that a pack is served under them. Pure.

    npy     the first column of labels.parquet
    tar     the first field of each sample's .json
    hdf5    /names
    lmdb    an array of each sample, as bytes; packs of older versions have none

The key is `name`, followed by as many `_` as it takes to differ from all labels.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

PACKED_TABLE: Final = "labels.parquet"
PACKED_IMAGES_ARRAY: Final = "images"
PACKED_NAMES_ARRAY: Final = "names"
_NAME_KEY: Final = "name"
_NAME_KEYS: Final = re.compile(rf"{_NAME_KEY}_*")


def choose_name_key(labels: Container[str]) -> str:
    """Returns the key of the names beside these labels."""
    return choose_unused_key(_NAME_KEY, labels)


def choose_unused_key(name: str, labels: Container[str]) -> str:
    """Returns `name`, followed by as many `_` as it takes to differ from all labels."""
    return name if name not in labels else choose_unused_key(f"{name}_", labels)


def is_packed_name_key(key: str) -> bool:
    """Returns whether a pack may keep its names under this key."""
    return _NAME_KEYS.fullmatch(key) is not None
