"""The header of a manifest: what the file holds, and where. Whoever wrote it, it has to agree with itself.

`manifest` says how the file is built.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.columns import ColumnArray, TextColumn
from streamd.dataset.manifest.image_arrays import ImageArrayHeader, find_array_contradiction, list_array_columns
from streamd.dataset.manifest.image_files import ROW_FRAMES_PREFIX, is_frame_column, list_image_columns
from streamd.dataset.manifest.ragged import ROWS_PREFIX
from streamd.dataset.manifest.types import ArrayFiles, ShardFiles
from streamd.errors import ConfigError
from streamd.limits import TENSOR_ALIGN_BYTES

WritableColumn = ColumnArray | TextColumn

DISPLAY_PREFIX: Final = "display."
LABEL_PREFIX: Final = "label."
_MAGIC: Final = b"streamdM"
VERSION: Final = 2
READABLE_VERSIONS: Final = (1, 2)
_PREFIX: Final = struct.Struct("<8sII32s")
_INTEGER_DTYPES: Final = re.compile(r"[<|][iu][1248]")
_DTYPES: Final = {  # of the columns of labels, by NumPy's names, little-endian
    "category": _INTEGER_DTYPES,
    "int": _INTEGER_DTYPES,
    "float": re.compile(r"<f[48]"),
    "string": re.compile(r"\|S[1-9]\d{0,8}"),
    "tags": re.compile(r"\|u1"),
}


@dataclass(frozen=True, slots=True)
class ColumnExtent:
    """Where a column lies. `offset` is in bytes from the first column."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def end_offset(self) -> int:
        return self.offset + prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class ManifestHeader:
    root: bytes
    samples: int
    content_id: str
    config_id: str
    labels: dict[str, LabelSpec]
    columns: dict[str, ColumnExtent]
    arrays: ArrayFiles | None = None
    shards: ShardFiles | None = None
    images: dict[str, bytes | None] = field(default_factory=dict)
    image_arrays: dict[str, ImageArrayHeader] = field(default_factory=dict)


_header_decoder: Final = msgspec.json.Decoder(ManifestHeader)


def compute_extents(columns: Mapping[str, WritableColumn]) -> dict[str, ColumnExtent]:
    places: dict[str, ColumnExtent] = {}
    offset = 0
    for name, column in columns.items():
        places[name] = ColumnExtent(column.dtype.str, column.shape, offset)
        offset = align_offset(places[name].end_offset)
    return places


def align_offset(offset: int) -> int:
    return -(-offset // TENSOR_ALIGN_BYTES) * TENSOR_ALIGN_BYTES


def encode_header(header: ManifestHeader) -> bytes:
    """Returns the beginning of a manifest. The columns follow, each at a multiple of TENSOR_ALIGN_BYTES in the file."""
    encoded = msgspec.json.encode(header)
    return _PREFIX.pack(_MAGIC, VERSION, len(encoded), _compute_header_checksum(encoded)) + encoded


def _compute_header_checksum(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=32).digest()


def read_manifest_header(path: Path, file: ColumnArray) -> tuple[ManifestHeader, int]:
    """Returns the header, and where the columns begin. Raises ConfigError for a file that cannot be used."""
    if file.size < _PREFIX.size:
        raise build_unusable_error(path, "it is too short")
    magic, version, length, checksum = _PREFIX.unpack(file[: _PREFIX.size].tobytes())
    if magic != _MAGIC:
        raise build_unusable_error(path, "it is not a manifest")
    if version not in READABLE_VERSIONS:
        raise build_unusable_error(
            path, f"it has version {version}, but this streamd reads {' and '.join(map(str, READABLE_VERSIONS))}"
        )
    encoded = file[_PREFIX.size : _PREFIX.size + length].tobytes()
    # Only the header has a checksum. To check the columns, too, every process that maps the file would have to read all
    # of it.
    if _compute_header_checksum(encoded) != checksum:
        raise build_unusable_error(path, "its header is damaged")
    try:
        header = _header_decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise build_unusable_error(path, f"its header is of another kind: {error}") from error
    contradiction = _find_contradiction(header)
    if contradiction:
        raise build_unusable_error(path, f"its header contradicts itself: {contradiction}")
    start = align_offset(_PREFIX.size + length)
    # The mapping is as long as the file, and a slice beyond its end is silently cut. Without this check, a truncated
    # file would fail later, with NumPy's error about shapes.
    if start + max(place.end_offset for place in header.columns.values()) > file.size:
        raise build_unusable_error(path, f"it is truncated at {file.size} bytes")
    return header, start


def _find_contradiction(header: ManifestHeader) -> str:
    """Returns what in a header cannot be true; empty if all can. The values in the columns are not read.

    A checksum proves that a header is as it was written, and not that the program that wrote it was right.
    """
    for name, extent in header.columns.items():
        dtypes, width = _find_column_form(header, name)
        has_other_width = extent.shape[1:] != ((width,) if width else ())
        is_sized = bool(extent.shape) and min(extent.shape) >= 0 and extent.offset >= 0
        if not dtypes.fullmatch(extent.dtype) or has_other_width or not is_sized:
            return f"column {name!r} is {extent.dtype} {extent.shape} at {extent.offset}"
    for name, rows in _list_needed_columns(header).items():
        column = header.columns.get(name)
        if column is None or rows not in {None, column.shape[0]}:
            return f"column {name!r} has {'no' if column is None else column.shape[0]} rows"
    shards, arrays = header.shards, header.arrays
    if shards is not None and not len(shards.names) == len(shards.sizes) == len(shards.mtimes_ns):
        return f"{len(shards.names)} shards have {len(shards.sizes)} sizes and {len(shards.mtimes_ns)} mtimes"
    if arrays is None:
        return f"{len(header.image_arrays)} images are rows, and samples are not" if header.image_arrays else ""
    has_right_count = "rows" in header.columns or arrays.starts[-1:] == (header.samples,)
    if len(arrays.starts) != len(arrays.offsets) + 1 or not has_right_count:
        return f"{len(arrays.offsets)} files begin at rows {arrays.starts[:8]}, of {header.samples}"
    return find_array_contradiction(header.image_arrays, arrays.starts[-1])


def _find_column_form(header: ManifestHeader, name: str) -> tuple[re.Pattern[str], int]:
    """Returns the dtypes that a column may have, and its width: 0 for shape (n,)."""
    if name == "weights":
        return _DTYPES["float"], 0
    if is_frame_column(name):
        return _INTEGER_DTYPES, header.columns[name].shape[-1]
    spec = header.labels.get(name.removeprefix(LABEL_PREFIX)) if name.startswith(LABEL_PREFIX) else None
    rows = header.labels.get(name.removeprefix(ROWS_PREFIX)) if name.startswith(ROWS_PREFIX) else None
    if rows is not None:
        return _DTYPES["float"], rows.width
    if spec is None or spec.is_ragged:
        return _DTYPES["int"], 0
    return _DTYPES[spec.type], max(1, -(-spec.width // 8)) if spec.type == "tags" else spec.width


def _list_needed_columns(header: ManifestHeader) -> dict[str, int | None]:
    """Returns the columns that a manifest must have, with their numbers of rows; None where any number is right."""
    samples, columns = header.samples, header.columns
    files = samples if header.arrays is None else len(header.arrays.offsets)
    needed: dict[str, int | None] = {"names": None, "offsets": files + 1, "sizes": files}
    needed |= {"mtimes_ns": files} if header.shards is None else {"extra.shard": samples, "extra.offset": samples}
    needed |= {f"{LABEL_PREFIX}{name}": samples for name in header.labels}
    needed |= {f"{ROWS_PREFIX}{name}": None for name, spec in header.labels.items() if spec.is_ragged}
    needed |= {name: samples for name in columns if name in {"weights", "rows"} or name.startswith(ROW_FRAMES_PREFIX)}
    counts = {name: extent.shape[0] for name, extent in columns.items()}
    needed |= list_image_columns(header.images, samples, counts) | list_array_columns(header.image_arrays)
    if any(name.startswith(DISPLAY_PREFIX) for name in columns):
        needed |= {f"{DISPLAY_PREFIX}names": None, f"{DISPLAY_PREFIX}offsets": samples + 1}
    for prefix, names in (("", files), (DISPLAY_PREFIX, samples)):
        if f"{prefix}folder" in columns:
            needed |= {f"{prefix}folder": names, f"{prefix}folders": None, f"{prefix}folder_ends": None}
    return needed


def build_unusable_error(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the manifest {str(path)!r} cannot be used: {why}; remove it, and it will be built again from the data"
    )
