"""Inspects rows for `streamd check`: fills them as the rows of a batch, and counts what is odd about them.

The rows are in memory of this process, and not in a slot. The progress page shows the phase, as for a task of a batch.
Bad samples are drawn here, too, for the dashboard.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from streamd.core.display import build_shown_pixels
from streamd.core.sampler import Ids
from streamd.core.spec import ImageSpec
from streamd.dataset.arrays.store import SampleGeometries
from streamd.dataset.hdf5.library_store import Hdf5Store
from streamd.decode.boxes import find_odd_rows
from streamd.decode.class_numbers import read_class_numbers
from streamd.decode.decoders import BadImageError, decode_image, read_geometry
from streamd.decode.geometry import (
    SIDEWAYS,
    UPRIGHT,
    Size,
    are_in_proportion,
    compute_covering_size,
    find_leader,
)
from streamd.decode.pillow import find_orientation, parse_orientation, read_with_pillow
from streamd.decode.resize import build_pil_image
from streamd.decode.sniff import detect_format
from streamd.ipc.slots import ProgressPage, WorkerPhase
from streamd.ipc.worker_messages import (
    ClassPixels,
    FaultEffect,
    FillRows,
    GroupResult,
    InspectRows,
    OddBoxes,
    OddSizes,
    PictureOddity,
    SampleFault,
    SizeExample,
    format_error_reason,
)
from streamd.worker.array_records import ArrayRecords, find_image_arrays
from streamd.worker.fill_rows import TaskRunner, find_label_fits, find_label_geometry, read_label_rows
from streamd.worker.stream_reader import Blob, SampleBytes, StreamReader, UnreadFile
from streamd.worker.transforms import UnfitTransformError

_DIGEST_BYTES: Final = 16
_MAX_LOOKED_AT_PIXELS: Final = 1 << 24  # of a picture that is decoded once more to see whether it shows anything
_DARK_LEVEL: Final = 1  # what 16 bits of which the upper 8 are not used may round to


def inspect_rows(reader: StreamReader, task: InspectRows, page: ProgressPage) -> GroupResult:
    """Fills the rows of a task as those of a batch in the first epoch, and returns what is found in them.

    Raises MemoryError; the progress page then is at the phase that needed the memory.
    """
    ids, seen = np.array(task.ids, dtype=np.int64), GroupResult(task.stream, task.ids, pixel_id=reader.pixel_id)
    page.write_row_progress(task.number, 0, WorkerPhase.READING)
    # Rows of arrays are gathered together. Files are decoded one by one into the same row, so that no more than one
    # decoded picture and its file are in memory, beside the files that were read ahead.
    are_files, counted = reader.samples_are_files, frozenset(task.counted)
    at_once = 1 if are_files else ids.size
    blobs, seen.read_s = reader.read_files_timed(ids) if are_files else ([], 0.0)
    layout = reader.batch_layout(at_once)
    memory = np.empty(layout.size_bytes, np.uint8).data
    arrays = {name: each.build_array_in_memory(memory) for name, each in layout.arrays.items()}
    rows = np.arange(at_once, dtype=np.uint16)
    for start in range(0, ids.size, at_once):
        part = ids[start : start + at_once]
        fill = FillRows(task.number, task.stream, 0, layout.size_bytes, at_once, rows, part)
        runner = TaskRunner(reader, fill, memory, page, keep_geometries=True)
        if are_files:
            page.write_row_progress(task.number, 0, WorkerPhase.READING)
            early = blobs[start]
            unstored: Sequence[Blob] = [reader.read_sample(task.ids[start]) if early is UnreadFile.LATER else early]
        else:
            unstored = _gather_timed(runner, reader, part, seen)
        started_s = time.monotonic()
        runner.decode_rows(unstored, 0, len(unstored))
        if runner.geometries:
            seen.decode_s += time.monotonic() - started_s
        for each in runner.unfilled_rows:
            effect: FaultEffect = "verdict" if each.lasting else "retry"
            seen.faults.append(SampleFault(each.sample_id, each.reason, effect, each.of_this_host))
        if reader.transform is not None:
            runner.write_labels()
        # What is found of a sample before its transform, which changes its row. A decoder is at work here, too.
        for place, landed in sorted(runner.geometries.items()):
            if are_files:
                page.write_row_progress(task.number, place, WorkerPhase.DECODING)
            sample_id, blob = int(part[place]), unstored[place] if are_files else None
            files = (blob,) if isinstance(blob, bytes) else blob if isinstance(blob, tuple) else ()
            content = _list_all_files(files) if are_files else (values[place].data for values in arrays.values())
            digest = hashlib.blake2b(b"".join(content), digest_size=_DIGEST_BYTES).hexdigest()
            sizes = _count_oddities(seen, sample_id, landed, files, reader, is_counted=sample_id in counted)
            if reader.transform is None or _transform_row_or_add_fault(seen, sample_id, place, runner):
                seen.digests.append(digest)
                if are_files:
                    first = next(iter(sizes.values()))
                    _count_format_and_size(seen, next(_list_all_files(files)), first, reader.spec.image)
    page.write_row_progress(task.number, 0, WorkerPhase.IDLE)
    if seen.digests and not are_files:
        seen.sizes[f"{reader.spec.image.height}x{reader.spec.image.width}"] = len(seen.digests)
    return seen


def _gather_timed(runner: TaskRunner, reader: StreamReader, ids: Ids, seen: GroupResult) -> Sequence[Blob]:
    """Gathers rows of arrays and adds the time to `seen`; returns why some of them cannot be gathered, if any."""
    started_s = time.monotonic()
    chunks, unpack_s = _lookup_decompression_totals(reader.store)
    is_filled = runner.gather_stored_rows()
    seen.read_s = time.monotonic() - started_s
    chunks_after, unpack_after_s = _lookup_decompression_totals(reader.store)
    seen.unpacked, seen.unpack_s = chunks_after - chunks, unpack_after_s - unpack_s
    return [] if is_filled else reader.read_files(ids)


def _lookup_decompression_totals(store: object) -> tuple[int, float]:
    """Returns how many chunks a store has decompressed so far, and the seconds that this took."""
    if isinstance(store, ArrayRecords):
        totals = [_lookup_decompression_totals(each) for each in store.stores.values()]
        return sum(chunks for chunks, _ in totals), sum(seconds for _, seconds in totals)
    return store.decompression_totals if isinstance(store, Hdf5Store) else (0, 0.0)


def _count_oddities(
    seen: GroupResult,
    sample_id: int,
    landed: SampleGeometries,
    files: SampleBytes,
    reader: StreamReader,
    *,
    is_counted: bool,
) -> dict[str, Size]:
    """Adds what is odd about a sample, which has no `files` if it is of arrays; returns the sizes of its images.

    Views and clips of arrays have no size. The class numbers of its masks are added if `is_counted`.
    """
    images = reader.spec.images
    _count_odd_boxes(seen, sample_id, landed, reader)
    sizes = {name: geometry.source for name, geometry in landed.items()}
    if files:
        _count_odd_pictures(seen, sample_id, files, images)
        # The upright (height, width) of each image of a sample. Images with views land in several ways, and clips have
        # several files, of which the first one counts.
        sizes = {
            name: sizes[name]
            if name in sizes
            else read_geometry(data if isinstance(data, bytes) else data[0], image).source
            for (name, image), data in zip(images.items(), files, strict=True)
        }
    count_odd_sizes(seen, sample_id, sizes, images)
    if is_counted and files:
        count_class_pixels(seen, files, images)
    elif is_counted:
        count_array_class_pixels(seen, sample_id, reader)
    return sizes


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


def _transform_row_or_add_fault(seen: GroupResult, sample_id: int, place: int, runner: TaskRunner) -> bool:
    """Transforms a sample and returns True, or adds a fault to `seen` and returns False."""
    started_s, known = time.monotonic(), len(runner.unfilled_rows)
    try:
        runner.transform_rows(place, place + 1)
    except UnfitTransformError as error:
        # The cause alone: the runner adds the file, which the findings name, and advice for a daemon that runs.
        seen.faults.append(SampleFault(sample_id, format_error_reason(error.__cause__ or error), "stop"))
        return False
    if len(runner.unfilled_rows) > known:
        seen.faults.append(SampleFault(sample_id, runner.unfilled_rows[-1].reason, "transform"))
        return False
    seen.decode_s += time.monotonic() - started_s
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
            if store.stores[name].gather(np.array([sample_id], np.int64), {name: row})[0].all():
                _add_class_numbers(result, name, row)


def _add_class_numbers(result: GroupResult, name: str, numbers: npt.NDArray[Any]) -> None:
    counts = np.bincount(numbers.ravel())  # no number is above 65,535, or the sample would be bad
    found = np.flatnonzero(counts)
    pixels = ClassPixels(1, dict(zip(found.tolist(), counts[found].tolist(), strict=True)))
    result.class_pixels[name] = result.class_pixels.get(name, ClassPixels()).add_class_pixels(pixels)


# --- Thumbnails of bad samples, for the dashboard.

_THUMBNAIL_PIXELS: Final = 160  # of its longer side
_THUMBNAIL_QUALITY: Final = 80


def draw_thumbnail(reader: StreamReader, sample_id: int) -> bytes:
    """Returns the JPEG of as much of a sample as is sound.

    It is empty if nothing can be seen, and if the sample is gone or is no longer the listed one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they concern damage, which is expected
            return _draw_sound_part(reader, sample_id)
    except Exception:  # noqa: BLE001 - a damaged file may raise anything
        return b""


def _draw_sound_part(reader: StreamReader, sample_id: int) -> bytes:
    # A row of an array; images that are cropped at random show their middle.
    if reader.manifest.arrays is not None:
        images, ids = reader.spec.images, np.array([sample_id])
        rows = {name: np.empty((1, *image.shape), image.dtype) for name, image in images.items()}
        if reader.store is None or not reader.store.gather(ids, rows, {name: [None] for name in images})[0][0]:
            return b""
        pixels, spec = next(iter(rows.values()))[0], reader.spec.image
        picture = build_pil_image(build_shown_pixels(pixels[0] if spec.pictures else pixels, spec))
    # A file: the first image stands for the sample, and its first frame for a clip.
    else:
        data = reader.read_sample(sample_id)
        while isinstance(data, tuple):
            data = data[0]
        if not isinstance(data, bytes):
            return b""
        picture = ImageOps.exif_transpose(_decode_sound_part(data))
    picture.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
    file = BytesIO()
    picture.convert("RGB").save(file, "JPEG", quality=_THUMBNAIL_QUALITY)
    return file.getvalue()


def _decode_sound_part(data: bytes) -> Image.Image:
    """Decodes what is left of an image, at a reduced scale if it is large. Nothing else is decoded meanwhile."""
    # Only here is the switch on: pixels of batches would be invented.
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        encoded = Image.open(BytesIO(data), formats=(detect_format(data),))
        # A large JPEG is decoded at a reduced scale, still at least twice as large as the thumbnail.
        encoded.draft("RGB", (2 * _THUMBNAIL_PIXELS, 2 * _THUMBNAIL_PIXELS))
        encoded.load()
        return encoded
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
