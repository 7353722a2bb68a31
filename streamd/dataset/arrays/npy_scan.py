"""`kind: npy`: images that are rows of arrays, with labels from a table (one row an image) or from other arrays.

Samples are in the order of the rows. Several files are sorted by the bytes of their names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.dataset.arrays import NpySource
from streamd.dataset.arrays.pixels import (
    INSPECTED_IMAGES,
    ImageShape,
    PixelRange,
    format_range_warning,
    inspect_image_array,
    is_plain_array,
)
from streamd.dataset.files import table
from streamd.dataset.labels import cells, columns
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.labels.encode import raise_collected_faults
from streamd.dataset.manifest.columns import PACKED_TABLE, is_packed_name_key
from streamd.dataset.manifest.types import ArrayFiles, ImageArrays, ScannedSamples, StorageFormat
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import format_path
from streamd.dataset.paths.patterns import NPY_SUFFIX, MatchedFiles, NpyHeader
from streamd.dataset.sources import ArrayForm, ImageSource, LabelSource, build_images_key
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")


def scan_npy(
    stream: str,
    source: NpySource,
    labels: Mapping[str, LabelSource],
    progress: Callable[[int], None],
    group_column: str | None = None,
    *,
    images: Images | None = None,
    raw: ArrayForm | None = None,
) -> ScannedSamples:
    """Lists the rows of arrays.

    `group_column` is the column of the table by which the stream is split. `images` are those of a sample; None means
    the source's own, which hold what `raw` says. Raises ConfigError.
    """
    key = f"streams.{stream}.source.path"
    form, others = split_own_image(images, raw)
    excluded = [file for label in labels.values() if (file := label.file)]
    # Files of further images are none of a folder or pattern of images; a file is what it is.
    if not Path(source.path).is_file():
        excluded += [path for image in others.values() for path in patterns.glob_files(str(image.place))]
    files = patterns.find_files(source.path, key, excluded, progress)
    arrays = build_array_files(files, source.range, key, form)
    rows = arrays.starts[-1]
    progress(rows)
    more = list_npy_images(stream, others, rows, source.range, files.root, progress)
    # The columns that describe the samples: those of labels, of groups, and of names. The last is the configured one,
    # or the one that streamd pack writes.
    by, names_key, named = f"streams.{stream}.split.by", f"streams.{stream}.source.names", source.names
    opened = None if source.table is None else columns.read_table_header(source.table, f"streams.{stream}.source.table")
    if opened is not None and opened.path.name == PACKED_TABLE and is_packed_name_key(opened.column_names[0]):
        named = named or opened.column_names[0]
    group = [] if group_column is None else [columns.ColumnRequest(group_column, by, by)]
    names = [] if named is None or opened is None else [columns.ColumnRequest(named, names_key, names_key)]
    clips = table.collect_clip_requests(stream, images or {})
    with raise_collected_faults() as faults:
        read = table.read_sample_columns(
            stream, opened, [*group, *names], labels, source.where or {}, clips, faults, rows
        )
    groups = [text for ask in group for text in cells.encode_texts(cells.convert_to_nonempty_texts(read.own[ask]))]
    shown = [cells.build_path_column(cells.convert_to_texts(read.own[ask])) for ask in names]
    selected = read.selected_rows
    return ScannedSamples(
        files.root,
        files.names,
        files.sizes,
        files.mtimes_ns,
        *convert_labels(labels, read.labels),
        groups if group else None,
        arrays,
        read.kept,
        display_names=shown[0] if shown else None,
        image_arrays=more,
        row_frames={name: places if selected is None else selected[places] for name, places in read.frames.items()},
    )


# --- Arrays of images in .npy files: those that a source names, and further images of samples that are rows of arrays.


Images = Mapping[str, ImageSource]


def is_npy_place(image: ImageSource) -> bool:
    """Returns whether an image lies in .npy files of its own, whatever the kind of its source."""
    return image.place is not None and image.place.endswith(NPY_SUFFIX)


def split_own_image(images: Images | None, raw: ArrayForm | None) -> tuple[ArrayForm | None, Images]:
    """Returns what the source's own array must hold, and the further images. Without `images`, `raw` is the former."""
    if images is None:
        return raw, {}
    own = _find_own_image(images)
    return images[own].form, {name: image for name, image in images.items() if name != own}


def _find_own_image(images: Images) -> str:
    """Returns the image that gives the samples their rows: the source's own, or else the first array of its file."""
    own = next((name for name, image in images.items() if image.place is None), None)
    return own or next(name for name, image in images.items() if not is_npy_place(image))


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """An array in a file that holds one image of every sample: its name, the configuration key, what it must hold."""

    name: str
    key: str
    form: ArrayForm | None


def find_arrays_in_file(
    stream: str, named: str | None, images: Images | None, raw: ArrayForm | None
) -> tuple[ArrayRequest, dict[str, ArrayRequest], Images]:
    """Returns the array that gives the samples their rows, those of further images in its file, and images beside it.

    The first is the array that the source has `named`, or else that of an image. Images beside it lie in .npy files.
    """
    form, others = split_own_image(images, raw)
    own = ArrayRequest(str(named), f"streams.{stream}.source.images", form)
    if images is not None and (place := images[name := _find_own_image(images)].place) is not None:
        own = ArrayRequest(place, build_images_key(stream, name), form)
    beside = {name: image for name, image in others.items() if is_npy_place(image)}
    inside = {
        name: ArrayRequest(str(image.place), build_images_key(stream, name), image.form)
        for name, image in others.items()
        if name not in beside
    }
    return own, inside, beside


def list_npy_images(
    stream: str,
    images: Images,
    rows: int,
    bounds: PixelRange | None,
    root: Path,
    progress: Callable[[int], None],
) -> dict[str, ImageArrays]:
    """Returns the further images that lie in .npy files of their own, each of so many `rows`. Raises ConfigError."""
    found: dict[str, ImageArrays] = {}
    for name, image in images.items():
        key = build_images_key(stream, name)
        files = patterns.find_files(str(image.place), key, (), progress)
        arrays = build_array_files(files, bounds, key, image.form)
        columns.check_row_count(key, format_path(str(image.place)), arrays.starts[-1], rows)
        own_root = None if files.root == root else files.root
        found[name] = ImageArrays(arrays, files.names, files.sizes, files.mtimes_ns, own_root)
    return found


def build_array_files(
    files: MatchedFiles, bounds: PixelRange | None, key: str, raw: ArrayForm | None = None
) -> ArrayFiles:
    """Describes the arrays in the files. Raises ConfigError unless all of them hold images of one kind."""
    bounds = bounds if raw is None else None
    headers = [patterns.read_npy_header(files.file_path(number), key) for number in range(len(files.names))]
    kinds: list[tuple[ImageShape, StorageFormat]] = []
    for number, header in enumerate(headers):
        path = files.file_path(number)
        read_first = partial(_read_images_to_inspect, header, path)
        what, asked = f"{key}: {format_path(path)}", StorageFormat("npy", range=bounds)
        kinds.append(inspect_image_array(what, header.shape, header.dtype, asked, read_first, raw))
    other = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise ConfigError(
            f"{key}: {format_path(files.names[other])} holds images of {_format_image_layout(*kinds[other])}, and "
            f"{format_path(files.names[0])} of {_format_image_layout(*kinds[0])}; all images of a stream must have "
            "the same layout: name only files that belong together, such as images-*.npy"
        )
    if bounds and (warning := format_range_warning(_read_images_to_inspect(headers[0], files.file_path(0)), bounds)):
        _log.warning("%s: %s: %s", key, format_path(files.names[0]), warning)
    starts = accumulate((header.shape[0] for header in headers), initial=0)
    shape, stored = kinds[0]
    offsets = tuple(header.offset for header in headers)
    return ArrayFiles(shape, tuple(starts), offsets, None if is_plain_array(stored) else stored)


def _read_images_to_inspect(header: NpyHeader, path: Path) -> npt.NDArray[Any]:
    """Reads the first images of an array."""
    return np.array(np.memmap(path, header.dtype, "r", header.offset, header.shape)[:INSPECTED_IMAGES])


def _format_image_layout(shape: ImageShape, stored: StorageFormat) -> str:
    order = ", channels first" if stored.channels_first else ""
    dtype = "" if stored.dtype == "|u1" else f" {np.dtype(stored.dtype)}"
    return f"{'x'.join(map(str, shape))}{dtype}{order}"
