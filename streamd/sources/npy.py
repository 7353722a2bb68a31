"""`kind: npy`: images that are rows of arrays of uint8, with labels from a table, a row an image, or from other arrays.

Samples are in the order of the rows, those of several files by bytes of the files' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np

from streamd.errors import ConfigError
from streamd.sources import shards
from streamd.sources.beside import read
from streamd.sources.files import shown
from streamd.sources.shards import Files, Header
from streamd.sources.values import labels_of
from streamd.sources.wanted import Arrays, Scanned, WantedLabel, WantedNpy

_CHANNELS: Final = (1, 3)
_GREY, _COLOUR = 3, 4  # dimensions


def scan(
    stream: str,
    source: WantedNpy,
    labels: Mapping[str, WantedLabel],
    group_column: str | None,
    progress: Callable[[int], None],
) -> Scanned:
    """Lists the rows of arrays. `group_column` is the column of the table that a split goes by."""
    key = f"streams.{stream}.source.path"
    files = shards.find(source.path, key, [file for label in labels.values() if (file := label.file)], progress)
    arrays = _arrays(files, key)
    progress(arrays.starts[-1])
    beside = read(stream, source, labels, group_column, arrays.starts[-1])
    values, specs, fixed = labels_of(labels, beside.columns)
    seen = files.root, files.names, files.sizes, files.mtimes_ns
    return Scanned(*seen, values, specs, fixed, beside.groups, arrays, beside.kept)


def _arrays(files: Files, key: str) -> Arrays:
    """What lies in the files. Raises ConfigError unless all hold images of one shape."""
    headers = [shards.read_header(files.path(number), key) for number in range(len(files.names))]
    shapes = [_shape(header, files.path(number), key) for number, header in enumerate(headers)]
    other = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise ConfigError(
            f"{key}: {shown(files.names[other])} holds images of {_sides(shapes[other])}, and "
            f"{shown(files.names[0])} of {_sides(shapes[0])}; images of a stream have one shape: name only files that "
            "belong together, such as images-*.npy"
        )
    starts = accumulate((header.shape[0] for header in headers), initial=0)
    return Arrays(shapes[0], tuple(starts), tuple(header.offset for header in headers))


def _shape(header: Header, path: Path, key: str) -> tuple[int, int, int]:
    """Height, width and channels of the images in an array. Raises ConfigError when it holds none."""
    what = f"{key}: {shown(path)} holds {header.dtype} {header.shape}"
    if header.dtype != np.uint8:
        raise ConfigError(f"{what}; pixels are uint8, 0-255: save them scaled to that, as array.astype(np.uint8)")
    shape = header.shape[1:] if len(header.shape) == _COLOUR else (*header.shape[1:], 1)
    if len(header.shape) not in {_GREY, _COLOUR} or 0 in header.shape:
        raise ConfigError(f"{what}; images are (n, height, width, channels) or (n, height, width): reshape it")
    height, width, channels = shape
    if channels not in _CHANNELS and height in _CHANNELS:
        raise ConfigError(
            f"{what}, channels first; save it channels last: np.ascontiguousarray(array.transpose(0, 2, 3, 1))"
        )
    if channels not in _CHANNELS:
        raise ConfigError(f"{what}; images have 1 channel or 3: leave others out, such as array[..., :3]")
    return height, width, channels


def _sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
