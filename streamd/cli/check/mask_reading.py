"""What a reading process finds out about masks: sizes that do not fit their pictures, and class numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.cli.check.masks import compare_sizes, find_leader
from streamd.cli.check.reader_messages import ClassPixels, GroupResult, OddSizes
from streamd.core.spec import ImageSpec
from streamd.decode.class_numbers import read_class_numbers
from streamd.decode.geometry import Size
from streamd.decode.sniff import detect_format
from streamd.worker.array_records import ArrayRecords, find_image_arrays
from streamd.worker.sample_files import SampleBytes
from streamd.worker.stream_reader import StreamReader


def count_odd_sizes(
    result: GroupResult, sample_id: int, sizes: Mapping[str, Size], images: Mapping[str, ImageSpec]
) -> None:
    """Adds the images of a sample whose size, (height, width), is not that of the image to which they belong."""
    for name, size in sizes.items():
        leader = find_leader(name, images)
        leader_size = None if leader is None else sizes.get(leader)  # the frames of arrays have no size here
        if leader_size is not None and size != leader_size:
            found = compare_sizes(sample_id, size, leader_size)
            result.odd_sizes[name] = result.odd_sizes.get(name, OddSizes()).add_odd_sizes(found)


def count_class_pixels(result: GroupResult, files: SampleBytes, images: Mapping[str, ImageSpec]) -> None:
    """Adds the class numbers of the masks among the files of a sample, which were decoded before without an error."""
    for of_image, (name, image) in zip(files, images.items(), strict=True):
        if image.mode == "index":
            for data in (of_image,) if isinstance(of_image, bytes) else of_image:
                _add_class_numbers(result, name, read_class_numbers(data, detect_format(data)))


def count_array_class_pixels(result: GroupResult, sample_id: int, reader: StreamReader) -> None:
    """Adds the class numbers of the masks of a sample that are rows of arrays."""
    images, store = reader.spec.images, reader.store
    if not isinstance(store, ArrayRecords):
        return  # one image of numbers other than classes
    arrays = find_image_arrays(reader.manifest, images)
    for name, image in images.items():
        if image.mode == "index":
            row = np.empty((1, *arrays[name].shape), arrays[name].served_dtype)
            if store.stores[name].gather_rows(np.array([sample_id], np.int64), row).all():
                _add_class_numbers(result, name, row)


def _add_class_numbers(result: GroupResult, name: str, numbers: npt.NDArray[Any]) -> None:
    counts = np.bincount(numbers.ravel())  # no number is above 65,535, or the sample would be bad
    found = np.flatnonzero(counts)
    pixels = ClassPixels(1, dict(zip(found.tolist(), counts[found].tolist(), strict=True)))
    result.class_pixels[name] = result.class_pixels.get(name, ClassPixels()).add_class_pixels(pixels)
