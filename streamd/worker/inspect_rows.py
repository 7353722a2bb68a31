"""Inspects rows for `streamd check`: reads and decodes them as the rows of a batch, and counts what is odd about them.

Nothing is written to a slot. The progress page names the row at work, as for a task of a batch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Container, Iterator, Mapping
from io import BytesIO
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamd.core.permutation import build_generators
from streamd.core.spec import ImageSpec
from streamd.dataset.hdf5.library_store import Hdf5Store
from streamd.decode.boxes import find_odd_rows
from streamd.decode.class_numbers import read_class_numbers
from streamd.decode.decoders import BadImageError, decode_image, decode_sample, read_geometry
from streamd.decode.geometry import (
    SIDEWAYS,
    UPRIGHT,
    Draw,
    Geometry,
    Size,
    are_in_proportion,
    compute_covering_size,
    compute_sample_draws,
    find_leader,
)
from streamd.decode.pillow import find_orientation, parse_orientation, read_with_pillow
from streamd.decode.resize import Row
from streamd.decode.sniff import detect_format
from streamd.ipc.progress_page import ProgressPage, WorkerPhase
from streamd.ipc.worker_messages import (
    ClassPixels,
    FaultEffect,
    GroupResult,
    InspectRows,
    OddBoxes,
    OddSizes,
    PictureOddity,
    SampleFault,
    SizeExample,
    UnfilledRow,
    format_error_reason,
)
from streamd.worker.array_records import ArrayRecords, SampleGeometries, find_image_arrays
from streamd.worker.fill_rows import (
    build_box_label,
    find_label_fits,
    find_label_geometry,
    gather_samples,
    read_label_rows,
)
from streamd.worker.stream_reader import FILE_CHANGED, SampleBytes, StreamReader, UnreadFile
from streamd.worker.transforms import RNG_PURPOSE, FailedTransformError, UnfitTransformError

_DIGEST_BYTES: Final = 16
_MAX_LOOKED_AT_PIXELS: Final = 1 << 24  # of a picture that is decoded once more to see whether it shows anything
_DARK_LEVEL: Final = 1  # what 16 bits of which the upper 8 are not used may round to


def transform_sample_row(
    reader: StreamReader, sample_id: int, rows: Mapping[str, Row], landed: SampleGeometries | None = None
) -> SampleFault | None:
    """Transforms the images of a sample in place, as a worker does in the first epoch; returns the fault, if any."""
    if reader.transform is None:
        return None
    ids = np.array([sample_id], np.int64)
    specs = reader.spec.labels.items()
    labels = {
        name: build_box_label(reader, spec, ids, {} if landed is None else {0: landed})
        if spec.is_ragged
        else reader.manifest.gather_label(name, ids).astype(spec.dtype)
        for name, spec in specs
    }
    (rng,) = build_generators(reader.spec.seed, 0, ids, RNG_PURPOSE)
    try:
        reader.transform.call.transform_row(rows, labels, 0, rng)
    except FailedTransformError as error:
        return SampleFault(sample_id, format_error_reason(error), "transform")
    except UnfitTransformError as error:
        return SampleFault(sample_id, format_error_reason(error), "stop")
    return None


def inspect_rows(reader: StreamReader, group: InspectRows, page: ProgressPage) -> GroupResult:
    """Reads and decodes the files of a group. Raises MemoryError; the progress page then names the file."""
    seen = GroupResult(group.stream, group.ids, pixel_id=reader.pixel_id)
    page.write_row_progress(group.number, 0, WorkerPhase.READING)
    if reader.manifest.arrays is not None and reader.store is not None:
        _read_array_rows(seen, reader, page, frozenset(group.counted))
        return seen
    blobs, seen.read_s = reader.read_files_timed(np.array(group.ids, dtype=np.int64))
    rows = {name: np.empty(image.shape, image.dtype) for name, image in reader.spec.images.items()}
    drawn = compute_sample_draws(reader.spec.images, reader.spec.seed, 0, np.array(group.ids, dtype=np.int64))
    counted = frozenset(group.counted)
    for place, (sample_id, early) in enumerate(zip(group.ids, blobs, strict=True)):
        page.write_row_progress(group.number, place, WorkerPhase.READING)
        blob = reader.read_sample(sample_id) if early is UnreadFile.LATER else early
        if isinstance(blob, UnfilledRow):
            effect: FaultEffect = "verdict" if blob.lasting else "retry"
            seen.faults.append(SampleFault(sample_id, blob.reason, effect, blob.of_this_host))
        elif blob is not None:
            page.write_row_progress(group.number, place, WorkerPhase.DECODING)
            files = blob if isinstance(blob, tuple) else (blob,)
            draws = {name: numbers[place] for name, numbers in drawn.items()}
            landed = _decode_sample_or_add_fault(seen, sample_id, files, rows, reader, draws)
            if landed is not None:
                digest = _compute_content_digest(b"".join(_list_all_files(files)))
                _count_odd_boxes(seen, sample_id, landed, reader)
                _count_odd_pictures(seen, sample_id, files, reader.spec.images)
                # The upright (height, width) of each image of a sample. Images with views land in several ways, and
                # clips have several files, of which the first one counts.
                sizes = {
                    name: landed[name].source
                    if name in landed
                    else read_geometry(data if isinstance(data, bytes) else data[0], image).source
                    for (name, image), data in zip(reader.spec.images.items(), files, strict=True)
                }
                count_odd_sizes(seen, sample_id, sizes, reader.spec.images)
                if sample_id in counted:
                    count_class_pixels(seen, files, reader.spec.images)
                page.write_row_progress(group.number, place, WorkerPhase.TRANSFORMING)
                if _transform_row_or_add_fault(seen, sample_id, rows, landed, reader):
                    seen.digests.append(digest)
                    size = next(iter(sizes.values()))
                    _count_format_and_size(seen, next(_list_all_files(files)), size, reader.spec.image)
    page.write_row_progress(group.number, 0, WorkerPhase.IDLE)
    return seen


def _read_array_rows(result: GroupResult, reader: StreamReader, page: ProgressPage, counted: Container[int]) -> None:
    """Reads rows of arrays, which need no decoding, and adds them to `result`."""
    store, spec, ids = reader.store, reader.spec, np.array(result.ids, dtype=np.int64)
    assert store is not None  # noqa: S101 - the caller has asked
    rows = {name: np.empty((ids.size, *image.shape), image.dtype) for name, image in spec.images.items()}
    started_s = time.monotonic()
    chunks, unpack_s = _lookup_decompression_totals(store)
    draws = compute_sample_draws(spec.images, spec.seed, 0, ids)
    held, landed = gather_samples(store, spec.images, ids, rows, draws)
    result.read_s = time.monotonic() - started_s
    chunks_after, unpack_after_s = _lookup_decompression_totals(store)
    result.unpacked, result.unpack_s = chunks_after - chunks, unpack_after_s - unpack_s
    for sample_id in compress(result.ids, ~held):
        fault = store.find_permanent_fault(sample_id)
        result.faults.append(SampleFault(sample_id, fault or FILE_CHANGED, "verdict" if fault else "retry"))
    for place in np.flatnonzero(held).tolist():
        sample = {name: each[place] for name, each in rows.items()}
        digest = _compute_content_digest(b"".join(each.data for each in sample.values()))
        _count_odd_boxes(result, result.ids[place], landed[place], reader)
        sizes = {name: geometry.source for name, geometry in landed[place].items()}
        count_odd_sizes(result, result.ids[place], sizes, spec.images)
        if result.ids[place] in counted:
            count_array_class_pixels(result, result.ids[place], reader)
        page.write_row_progress(InspectRows.number, place, WorkerPhase.TRANSFORMING)
        if _transform_row_or_add_fault(result, result.ids[place], sample, landed[place], reader):
            result.digests.append(digest)
    page.write_row_progress(InspectRows.number, 0, WorkerPhase.IDLE)
    if result.digests:
        result.sizes[f"{spec.image.height}x{spec.image.width}"] = len(result.digests)


def _lookup_decompression_totals(store: object) -> tuple[int, float]:
    """Returns how many chunks a store has decompressed so far, and the seconds that this took."""
    if isinstance(store, ArrayRecords):
        totals = [_lookup_decompression_totals(each) for each in store.stores.values()]
        return sum(chunks for chunks, _ in totals), sum(seconds for _, seconds in totals)
    return store.decompression_totals if isinstance(store, Hdf5Store) else (0, 0.0)


def _compute_content_digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _decode_sample_or_add_fault(
    result: GroupResult,
    sample_id: int,
    files: SampleBytes,
    rows: Mapping[str, Row],
    reader: StreamReader,
    draws: Mapping[str, Draw | None],
) -> dict[str, Geometry] | None:
    """Decodes all images of a sample into `rows` and returns where they lie there. Adds a fault to `result` instead."""
    started_s = time.monotonic()
    try:
        landed = decode_sample(files, rows, reader.spec.images, draws)
        find_label_fits(reader, sample_id, landed)
    except BadImageError as error:
        result.faults.append(SampleFault(sample_id, reader.format_bad_image(sample_id, error), "verdict"))
        return None
    result.decode_s += time.monotonic() - started_s
    return landed


def _count_odd_boxes(result: GroupResult, sample_id: int, landed: SampleGeometries, reader: StreamReader) -> None:
    """Adds the boxes of a sample that have no area, reach out of the picture, or were drawn on another size."""
    fits = find_label_fits(reader, sample_id, landed)
    for label in reader.spec.labels.values():
        if label.is_ragged:
            geometry = find_label_geometry(reader, label, landed)
            odd = find_odd_rows(read_label_rows(reader, label, sample_id, geometry), label, geometry.source)
            odd |= {fits[label.name]: 1} if label.name in fits else {}
            result.odd_boxes[label.name] = result.odd_boxes.get(label.name, OddBoxes()).add_sample(sample_id, odd)


def _list_all_files(files: SampleBytes) -> Iterator[bytes]:
    """Yields the files of all images of a sample, those of clips one by one."""
    return (each for image in files for each in ((image,) if isinstance(image, bytes) else image))


def _count_odd_pictures(
    result: GroupResult, sample_id: int, files: SampleBytes, images: Mapping[str, ImageSpec]
) -> None:
    """Adds the sample to the oddities of its pictures that are shown in RGB or grey, and that were decoded before."""
    found: set[PictureOddity] = set()
    for of_image, image in zip(files, images.values(), strict=True):
        for data in (of_image,) if isinstance(of_image, bytes) else of_image:
            header = _parse_image_header(data) if image.mode in {"RGB", "L"} else None
            if header is None:
                continue
            if header.is_unturned:
                found.add("unturned")
            if header.height * header.width > _MAX_LOOKED_AT_PIXELS:
                continue
            if header.is_transparent:
                pixels = np.empty((header.height, header.width, 4), np.uint8)
                decode_image(data, pixels, ImageSpec(header.height, header.width, 4, mode="RGBA"))
                if not pixels[:, :, 3].any():
                    found.add("invisible")
            elif header.is_deep:
                levels = np.empty((header.height, header.width, 1), np.uint8)
                decode_image(data, levels, ImageSpec(header.height, header.width, 1, mode="L"))
                if levels.max() <= _DARK_LEVEL:
                    found.add("dark")
    for oddity in found:
        result.odd_pictures.setdefault(oddity, []).append(sample_id)


def _transform_row_or_add_fault(
    result: GroupResult, sample_id: int, rows: Mapping[str, Row], landed: SampleGeometries, reader: StreamReader
) -> bool:
    """Transforms a sample and returns True, or adds a fault to `result` and returns False."""
    started_s = time.monotonic()
    fault = transform_sample_row(reader, sample_id, rows, landed)
    if fault is not None:
        result.faults.append(fault)
        return False
    result.decode_s += time.monotonic() - started_s
    return True


def _count_format_and_size(result: GroupResult, blob: bytes, size: Size, image: ImageSpec) -> None:
    """Adds the file of an image of upright `size`, unless Pillow cannot read its header: arrays have no format."""
    header = _parse_image_header(blob)
    if header is None:
        return
    result.transparent += header.is_transparent
    shown = f"{size[0]}x{size[1]}"  # as the configuration has it
    result.formats[header.format] = result.formats.get(header.format, 0) + 1
    result.sizes[shown] = result.sizes.get(shown, 0) + 1
    covering = compute_covering_size(*size, image)
    result.enlarged += covering[0] > size[0] or covering[1] > size[1]


class _ImageHeader(NamedTuple):
    """What the header of a decoded image says; height and width are those of the upright image.

    `is_deep`: it has 16 bits per channel. `is_unturned`: its EXIF data cannot be read.
    """

    format: str
    height: int
    width: int
    is_transparent: bool
    is_deep: bool
    is_unturned: bool


def _parse_image_header(blob: bytes) -> _ImageHeader | None:
    """Returns what a decoded image says of itself; None if Pillow cannot read the header."""
    try:
        name = detect_format(blob)
        return read_with_pillow(blob, name, lambda data: _read_image_header(data, name))
    except BadImageError:
        return None


def _read_image_header(data: bytes, name: str) -> _ImageHeader:
    with Image.open(BytesIO(data), formats=(name,)) as picture:
        width, height = picture.size
        exif = picture.info.get("exif")  # only if it precedes the pixels
        is_deep = picture.mode.startswith("I;16") or ";16" in str(picture.tile[:1])
        orientation = find_orientation(exif) if isinstance(exif, bytes) and exif else UPRIGHT
        if isinstance(exif, bytes) and parse_orientation(exif) >= SIDEWAYS:
            height, width = width, height
        return _ImageHeader(name, height, width, picture.has_transparency_data, is_deep, orientation is None)


# --- What is found out about masks: sizes that do not fit their pictures, and class numbers.


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


def compare_sizes(sample_id: int, size: Size, leader_size: Size) -> OddSizes:
    """Counts a sample whose image has another size than its leader, both (height, width)."""
    example = SizeExample(sample_id, size, leader_size)
    if are_in_proportion(size, leader_size):
        return OddSizes(scaled=1, scaled_example=example)
    return OddSizes(skewed=1, skewed_example=example)


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
