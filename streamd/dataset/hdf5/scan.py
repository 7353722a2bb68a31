"""`kind: hdf5`: images that are rows of an array in an HDF5 file of PyTables or h5py, with other arrays as labels.

Samples are in the order of the rows. Where rows lie in the file unchanged, workers copy them from there and need no
HDF5: the manifest has the offsets of the chunks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamd.core.text import format_count
from streamd.dataset.arrays.npy_scan import Images, find_arrays_in_file, list_npy_images
from streamd.dataset.arrays.pixels import (
    INSPECTED_IMAGES,
    can_copy_unconverted,
    can_hold_images,
    format_range_warning,
    inspect_image_array,
    is_plain_array,
)
from streamd.dataset.hdf5 import Hdf5Source
from streamd.dataset.hdf5 import arrays as hdf5array
from streamd.dataset.hdf5.arrays import LIBRARY_ERRORS, Hdf5Array, UnfitHdf5Error, import_h5py, open_hdf5_file
from streamd.dataset.hdf5.chunk_grid import CHUNK_OFFSETS, CHUNK_SHAPE, LIBRARY_STORE, ChunkGrid, CompressedArray
from streamd.dataset.labels import columns
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.manifest.columns import PACKED_IMAGES_ARRAY, PACKED_NAMES_ARRAY
from streamd.dataset.manifest.types import (
    ArrayFiles,
    ImageArrays,
    Int64s,
    ScannedSamples,
    StorageFormat,
    build_label_key,
)
from streamd.dataset.paths.confined import (
    ConfinedRoot,
    format_first_names,
    format_path,
    stat_files,
    translate_read_errors,
)
from streamd.dataset.sources import ArrayForm, LabelSource
from streamd.errors import ConfigError
from streamd.limits import MAX_CHUNK_BYTES, MIB

_log: Final = logging.getLogger("streamd.sources")

_SUFFIXES: Final = frozenset({".h5", ".hdf5", ".hdf", ".he5"})
CHUNK_STORE: Final = "chunks"  # the store that copies rows from their offsets in the file

LocatedImages = tuple[ArrayFiles, dict[str, Int64s]]


def scan_hdf5(
    stream: str,
    source: Hdf5Source,
    labels: Mapping[str, LabelSource],
    progress: Callable[[int], None],
    *,
    images: Images | None = None,
    raw: ArrayForm | None = None,
) -> ScannedSamples:
    """Lists the rows of an array in an HDF5 file.

    `images` are those of a sample; None means the source's own, which hold what `raw` says. Raises ConfigError.
    """
    key = f"streams.{stream}.source"
    # Links in the path of the user may lead anywhere.
    with translate_read_errors(source.path, f"{key}.path"):
        path = source.path.resolve(strict=True)
        if path.is_dir():
            there = sorted(os.fsencode(each.name) for each in path.iterdir() if each.suffix in _SUFFIXES)
            hint = ", and the folder holds none; correct the path"
            if there:
                hint = f"; give the path of one of those in it, such as {format_first_names(there)}"
            raise ConfigError(f"{key}.path: {format_path(path)} is a folder, but an HDF5 file is needed{hint}")
    names = [os.fsencode(path.name)]
    # The manifest gets the size and mtime from before the file is read. They are compared again after the last read.
    sizes, mtimes_ns, _ = stat_files(ConfinedRoot(os.fsencode(path.parent), f"{key}.path"), names, lambda _: None)
    with _open_unchanging_file(path, f"{key}.path", (int(sizes[0]), int(mtimes_ns[0]))) as file:
        own, inside, beside = find_arrays_in_file(stream, source.images, images, raw)
        where, extra = _locate_image_rows(
            hdf5array.find_array(file, own.name, path, own.key), source.range, own.key, own.form
        )
        count = where.starts[-1]
        located: dict[str, LocatedImages] = {}
        for name, each in inside.items():
            array = hdf5array.find_array(file, each.name, path, each.key)
            located[name] = _locate_image_rows(array, source.range, each.key, each.form)
            columns.check_row_count(each.key, array.display_name, array.shape[0], count)
        progress(count)
        # A label is one array, or those that are listed. Without `from`, the array has the label's name.
        found: dict[str, list[Column]] = {}
        for name, label in labels.items():
            label_key = build_label_key(stream, name)
            for called in () if label.file else label.list_columns(name):
                array = hdf5array.find_array(file, called, path, f"{label_key}.from", count)
                if array.column_names:
                    raise ConfigError(
                        f"{label_key}.from: {array.display_name} is a table; name one of its columns: "
                        f"{', '.join(array.column_names)}"
                    )
                if not array.has_texts:
                    columns.check_label_array(array.shape, array.dtype, array.display_name, f"{label_key}.from", count)
                values, where_in_file = array.read_values(f"{label_key}.from"), f"{path.name}:{array.name}"
                column = columns.build_array_column(values, path, where_in_file, label_key, count)
                found.setdefault(name, []).append(column)
        shown = _read_display_names(file, source, path, f"{key}.names", count)
    listed = {name: ImageArrays(each, names, sizes, mtimes_ns, None, more) for name, (each, more) in located.items()}
    listed |= list_npy_images(stream, beside, count, source.range, path.parent, progress)
    return ScannedSamples(
        path.parent,
        names,
        sizes,
        mtimes_ns,
        *convert_labels(labels, found | columns.read_label_files(stream, labels, count)),
        arrays=where,
        extra=extra,
        display_names=shown,
        image_arrays=listed,
    )


@contextmanager
def _open_unchanging_file(path: Path, key: str, seen: tuple[int, int]) -> Iterator[Any]:
    """Opens the h5py.File for the time of the context.

    Raises ConfigError unless the size and mtime are still those `seen` when all is read, and where the library finds
    damage within the context.
    """
    with translate_read_errors(path, key):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with open_hdf5_file(descriptor) as file:
            yield file
        found = os.fstat(descriptor)
    except UnfitHdf5Error as error:
        raise ConfigError(f"{key}: {format_path(path)}: {error}") from error
    except LIBRARY_ERRORS as error:
        raise ConfigError(
            f"{key}: {format_path(path)} is damaged: {error}; copy it again, or write it again"
        ) from error
    finally:
        os.close(descriptor)
    if (found.st_size, found.st_mtime_ns) != seen:
        raise ConfigError(f"{key}: {format_path(path)} is still being written; list it once it is complete")


def _read_display_names(file: Any, source: Hdf5Source, path: Path, key: str, images: int) -> list[bytes] | None:
    """Returns the names of the images, from the configured array or that of a pack; None if there is neither."""
    packed = (
        file.get(f"/{PACKED_NAMES_ARRAY}")
        if source.names is None and (source.images or "").strip("/") == PACKED_IMAGES_ARRAY
        else None
    )
    is_packed = isinstance(packed, import_h5py().Dataset) and packed.shape == (images,)
    if source.names is None and not is_packed:
        return None
    found = hdf5array.find_array(file, source.names or PACKED_NAMES_ARRAY, path, key, images)
    if not (found.has_texts or found.dtype.kind == "S"):
        if is_packed:
            return None
        raise ConfigError(
            f"{key}: {found.display_name} holds {found.dtype}, but names must be text; name another array"
        )
    columns.check_row_count(key, found.display_name, found.shape[0], images)
    names: list[bytes] = found.read_values(key, as_bytes=True).reshape(-1).tolist()
    return names


def _locate_image_rows(
    images: Hdf5Array, bounds: tuple[float, float] | None, key: str, raw: ArrayForm | None
) -> LocatedImages:
    """Returns what the images are, and the extra columns that say where they lie."""
    bounds = bounds if raw is None else None
    what = f"{key}: {images.display_name}"
    asked = StorageFormat(LIBRARY_STORE, images.name, range=bounds)
    try:
        first = partial(images.read_first_rows, INSPECTED_IMAGES)
        shape, stored = inspect_image_array(what, images.shape, images.dtype, asked, first, raw)
    except ConfigError as error:
        if raw is not None or can_hold_images(images.shape, images.dtype):
            raise
        raise ConfigError(f"{error}; {hdf5array.format_arrays(images.dataset.file)}") from error
    if bounds and (warning := format_range_warning(first(), bounds)):
        _log.warning("%s: %s", what, warning)
    where = ArrayFiles(shape, (0, images.shape[0]), (0,), stored)
    # Of an array that is not chunked, the library reads one row at a time where it converts it.
    whole = images.shape if images.has_numpy_number_format else (1, *images.shape[1:])
    grid = ChunkGrid(images.shape, images.chunk_shape or whole)
    extra = {CHUNK_SHAPE: np.array(grid.chunk_shape)}
    offsets = _find_chunk_offsets(images, grid)
    if offsets is None:
        packed = CompressedArray.from_manifest(where, extra.__getitem__)
        if packed is not None and packed.chunk_bytes > MAX_CHUNK_BYTES:
            raise ConfigError(
                f"{what} is stored in chunks of {format_count(packed.chunk_rows, 'image')}, "
                f"{packed.chunk_bytes // MIB:,} MiB, each of which is read whole; {MAX_CHUNK_BYTES // MIB} MiB is the "
                "limit: write it with a smaller chunkshape"
            )
        # A worker that keeps every chunk decompresses each once in any order, so there is nothing to warn of.
        if packed is not None and not packed.is_cacheable_whole:
            chunk = packed.compute_shuffle_chunk_samples(packed.rows)
            _log.warning(
                "%s is stored in chunks of %s, and a whole chunk is read and decompressed to get a single image; "
                "with shuffle: {kind: chunk, chunk: %d, buffer: %d}, which is the default here, this happens rarely; "
                "streamd pack writes the data in a faster format",
                what,
                format_count(packed.chunk_rows, "image"),
                chunk,
                packed.compute_shuffle_buffer_chunks(np.arange(packed.rows), chunk),
            )
        return where, extra
    # Workers copy the rows from a mapping that ends where the file does. A row beyond the end would fail there with
    # NumPy's error about sizes, so a file that is too short is refused here, with the reason.
    if offsets.max() + prod(grid.chunk_shape) * images.dtype.itemsize > images.dataset.file.id.get_filesize():
        raise ConfigError(f"{what} is damaged: it reaches beyond the end of the file; write it again")
    # In this form the rows lie as in an .npy file, and `NpyStore` gathers them with one NumPy call.
    if images.dataset.chunks is None and can_copy_unconverted(stored):
        plain = None if is_plain_array(stored) else replace(stored, store="npy")
        return ArrayFiles(shape, where.starts, (int(offsets[0]),), plain), {}
    return replace(where, stored=replace(stored, store=CHUNK_STORE)), {**extra, CHUNK_OFFSETS: offsets}


def _find_chunk_offsets(images: Hdf5Array, grid: ChunkGrid) -> Int64s | None:
    """Returns the offset of each chunk, in the order of the grid.

    Returns None unless all chunks are written, with numbers as in memory. An array that is not chunked is one chunk.
    Files with a user block are left to the library, since some versions of HDF5 count its bytes in the offsets and
    others do not.
    """
    dataset = images.dataset
    if not images.has_numpy_number_format:
        return None
    if dataset.file.userblock_size or dataset.id.get_create_plist().get_nfilters():
        return None
    if dataset.chunks is None:
        offset = dataset.id.get_offset()  # None if it lies among the file's headers, or is not written yet
        return None if offset is None else np.array([offset])
    if not hasattr(dataset.id, "chunk_iter"):  # HDF5 before 1.12.3
        return None
    offsets = np.full(grid.chunk_count, -1)
    dataset.id.chunk_iter(
        lambda chunk: offsets.__setitem__(grid.compute_chunk_number(chunk.chunk_offset), chunk.byte_offset)
    )
    return None if (offsets < 0).any() else offsets
