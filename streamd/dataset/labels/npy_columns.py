"""Arrays of labels as columns, with one row an image in their order; and the .npy files that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamd.core.text import format_count
from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.manifest.types import WEIGHTS_LABEL, ScannedSamples, build_label_key
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import format_path
from streamd.dataset.sources import LabelSource, ListingRequest
from streamd.errors import ConfigError

_KINDS: Final = "biufSU"  # of dtypes: numbers and texts
_VECTOR: Final = 2  # dimensions
_BOX_WIDTHS: Final = range(2, 6)  # numbers of a point or a box: other arrays of three dimensions are not even read


def add_labels_from_files(
    stream: ListingRequest, files: Mapping[str, LabelSource], scanned: ScannedSamples
) -> ScannedSamples:
    """Returns the scanned samples with the labels in `files`, a row a sample, in the order of the configuration."""
    values, specs, fixed = convert_labels(files, read_label_files(stream.name, files, scanned.samples))
    values, specs = scanned.labels | values, scanned.specs | specs
    order = sorted(values, key=[*(stream.labels or values), WEIGHTS_LABEL].index)
    return replace(
        scanned,
        labels={name: values[name] for name in order},
        specs={name: specs[name] for name in order},
        fixed=scanned.fixed | fixed,
    )


def read_label_files(stream: str, labels: Mapping[str, LabelSource], images: int) -> dict[str, list[Column]]:
    """Reads those of the `labels` that .npy files hold. Raises ConfigError unless each file has one row an image."""
    files = {name: file for name, label in labels.items() if (file := label.file)}
    return {name: [_read_label_file(file, build_label_key(stream, name), images)] for name, file in files.items()}


def _read_label_file(path: Path, key: str, images: int) -> Column:
    header = patterns.read_npy_header(path, f"{key}.from")
    # The header is checked before the file is mapped, since an empty array cannot be.
    check_label_array(header.shape, header.dtype, format_path(path), f"{key}.from", images)
    return build_array_column(np.load(path, mmap_mode="r"), path, path.name, key, images)


def build_array_column(values: npt.NDArray[Any], path: Path, name: str, key: str, images: int) -> Column:
    """Returns an array of numbers or texts, (n,), (n, 1) or (n, k), as a column; where k > 1, the cells are lists.

    An array of boxes or points, (n, m, k), has cells that are lists of lists.

    `path` is its file, `name` its name for people, such as samples.hdf5:/labels, and `key` that of its label. Raises
    ConfigError where it holds something else, or its number of rows is not `images`.
    """
    check_label_array(values.shape, values.dtype, format_path(path), f"{key}.from", images)
    widths = [] if values.ndim == _VECTOR and values.shape[1] == 1 else values.shape[:0:-1]  # the innermost first
    native = values.reshape(-1).astype(values.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "U":
        # The library would end a text at a NUL inside it.
        codes = native.view(np.uint32).reshape(native.size, -1)
        cut = ((codes[:, :-1] == 0) & (codes[:, 1:] != 0)).any(axis=1)
        if cut.any():
            row = int(np.argmax(cut)) * len(values) // native.size
            raise ConfigError(f"{key}.from: {name}[{row}] holds a text with a NUL in it; remove it")
    try:
        # Classes are made of their digits, and 0.1 has other digits in each width.
        cells = pa.array(
            native if widths else (native.astype(np.float64, copy=False) if native.dtype.kind == "f" else native)
        )
    except UnicodeDecodeError as error:  # NumPy's texts may hold any number of 32 bits in place of a character
        raise ConfigError(
            f"{key}.from: {format_path(path)} is damaged: {error}; write it again with np.save"
        ) from error
    for width in widths:
        cells = pa.FixedSizeListArray.from_arrays(cells, width)
    return Column(cells, "the array", SourceRows(path, lambda row: f"{name}[{row}]"), key)


def check_label_array(shape: tuple[int, ...], dtype: np.dtype[Any], file: str, key: str, images: int) -> None:
    """Raises ConfigError unless an array of `file` is a label of so many `images`.

    The array need not have been read.
    """
    may_be_boxes = len(shape) == _VECTOR + 1 and shape[-1] in _BOX_WIDTHS
    if dtype.kind not in _KINDS or not (may_be_boxes or len(shape) in {1, _VECTOR}) or 0 in shape:
        raise ConfigError(
            f"{key}: {file} holds {dtype} {shape}; labels must be numbers or text, of shape (n,) or (n, k), boxes "
            "of shape (n, max, 4) or (n, max, 5), and points of shape (n, max, 2) or (n, max, 3): reshape the array, "
            "or convert it with .astype and save it again"
        )
    check_row_count(key, file, shape[0], images)


def check_row_count(key: str, file: str, rows: int, images: int) -> None:
    """Raises ConfigError unless `file` has as many rows as there are images."""
    if rows != images:
        raise ConfigError(
            f"{key}: {file} has {format_count(rows, 'row')}, but there {'is' if images == 1 else 'are'} "
            f"{format_count(images, 'image')}; it needs one row per image, in the order of the images: correct the "
            "rows, or the path of the images"
        )
