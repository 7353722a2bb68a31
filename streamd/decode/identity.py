"""What this installation's pipeline makes of built-in images: equal pixel ids mean equal pixels everywhere."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files

import numpy as np

from streamd.decode.choose import decode_into
from streamd.spec import ImageSpec, PixelId


@lru_cache(maxsize=64)
def pixel_id(image: ImageSpec) -> PixelId:
    """The digest of the probe images decoded under `image`."""
    digest = hashlib.blake2b(repr(image).encode(), digest_size=16)
    row = np.empty(image.shape, dtype=np.uint8)
    for probe in sorted(files("streamd.decode").joinpath("probes").iterdir(), key=lambda entry: entry.name):
        decode_into(probe.read_bytes(), row, image)
        digest.update(row.data)
    return PixelId(digest.hexdigest())
