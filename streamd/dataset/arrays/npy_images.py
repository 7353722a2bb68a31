"""Arrays of images in .npy files: those that a source names, and further images of samples that are rows of arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.dataset.arrays.pixels import (
    INSPECTED_IMAGES,
    ImageShape,
    PixelRange,
    format_range_warning,
    inspect_image_array,
    is_plain_array,
)
from streamd.dataset.files.beside import build_images_key
from streamd.dataset.labels import npy_columns
from streamd.dataset.manifest.types import ArrayFiles, ImageArrays, StorageFormat
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import format_path
from streamd.dataset.paths.patterns import NPY_SUFFIX, MatchedFiles, NpyHeader
from streamd.dataset.sources import ArrayForm, ImageSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")

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
class OwnArray:
    """The array in a file that gives the samples their rows: its name, the configuration key, and what it must hold.

    `inside` are the further images in the same file, and `beside` those in .npy files.
    """

    name: str
    key: str
    form: ArrayForm | None
    inside: Images
    beside: Images


def find_own_array(stream: str, named: str | None, images: Images | None, raw: ArrayForm | None) -> OwnArray:
    """Returns the array of the samples where the source has `named` one, or one of the images is it."""
    form, others = split_own_image(images, raw)
    beside = {name: image for name, image in others.items() if is_npy_place(image)}
    inside = {name: image for name, image in others.items() if name not in beside}
    own = None if images is None else _find_own_image(images)
    if images is None or own is None or images[own].place is None:
        return OwnArray(str(named), f"streams.{stream}.source.images", form, inside, beside)
    return OwnArray(str(images[own].place), build_images_key(stream, own), form, inside, beside)


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
        npy_columns.check_row_count(key, format_path(str(image.place)), arrays.starts[-1], rows)
        own_root = None if files.root == root else files.root
        found[name] = ImageArrays(arrays, files.names, files.sizes, files.mtimes_ns, own_root)
    return found


def build_array_files(
    files: MatchedFiles, bounds: PixelRange | None, key: str, raw: ArrayForm | None = None
) -> ArrayFiles:
    """Describes the arrays in the files. Raises ConfigError unless all of them hold images of one kind."""
    bounds = bounds if raw is None else None
    headers = [patterns.read_npy_header(files.file_path(number), key) for number in range(len(files.names))]
    kinds = [
        _read_image_format(header, files.file_path(number), bounds, key, raw) for number, header in enumerate(headers)
    ]
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


def _read_image_format(
    header: NpyHeader, path: Path, bounds: PixelRange | None, key: str, raw: ArrayForm | None
) -> tuple[ImageShape, StorageFormat]:
    """Returns the shape and the format of an array's images. Raises ConfigError when it holds none."""
    what, stored = f"{key}: {format_path(path)}", StorageFormat("npy", range=bounds)
    return inspect_image_array(
        what, header.shape, header.dtype, stored, lambda: _read_images_to_inspect(header, path), raw
    )


def _read_images_to_inspect(header: NpyHeader, path: Path) -> npt.NDArray[Any]:
    """Reads the first images of an array."""
    return np.array(np.memmap(path, header.dtype, "r", header.offset, header.shape)[:INSPECTED_IMAGES])


def _format_image_layout(shape: ImageShape, stored: StorageFormat) -> str:
    order = ", channels first" if stored.channels_first else ""
    return (
        f"{_format_shape(shape)}{order}"
        if stored.dtype == "|u1"
        else f"{_format_shape(shape)} {np.dtype(stored.dtype)}{order}"
    )


def _format_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
