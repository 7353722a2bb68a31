"""`hdf5`: one file, which h5py, PyTables and other programs can read.

    /images          uint8 (n, height, width, channels), in one piece and unfiltered: it is mapped, or read by offset
    /images/NAME     the same for each of several images a sample, of its own dtype; (n, height, width) in mode index
    /labels/NAME     one entry for each row, as in `label_cells`; texts in UTF-8 of one width; weights: /labels/weight;
                     boxes (n, max, 5) and points (n, max, 3) in pixels of the delivered image, as in `box_values`
    /numbers/NAME    int64: the numbers of a category's classes, if these are texts
    /classes/NAME    the classes of a category, of tags or of boxes
    /names           the original name of each sample

The library does not write the images, because it leaves an unusable file when its process is killed. The rows are
written after a gap, those of each image in a region that has room for all samples. At the end, the library creates a
scratch file of the same shape without the images, and all other bytes of it are copied around the rows. If this is
interrupted, it is done again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamd.cli.pack.config_snippet import build_decoded_pack_settings, is_only_image
from streamd.cli.pack.label_cells import CellValues, build_class_array, build_fixed_boxes, collect_sample_cells
from streamd.cli.pack.row_files import (
    PackJob,
    RowFiles,
    RowFilesWriter,
    build_read_mismatch_error,
    drop_from_page_cache,
    write_all_at,
)
from streamd.core.permutation import Ids, Words
from streamd.core.spec import ONLY_IMAGE, ImageSpec, StreamSpec
from streamd.dataset.manifest.columns import (
    PACKED_IMAGES_ARRAY,
    PACKED_NAMES_ARRAY,
    choose_name_key,
    choose_unused_key,
)
from streamd.errors import MissingExtraError, PackError
from streamd.limits import MIB

try:
    import h5py
except ModuleNotFoundError as error:
    raise MissingExtraError("h5py", "hdf5", "streamd pack --format hdf5") from error

_GAP_BYTES: Final = MIB  # before the rows
_MIN_ALIGNED_BYTES: Final = 16384  # larger objects begin at a multiple of the gap; the library's metadata is smaller
_HEADER_ROOM_BYTES: Final = 65536  # behind the rows of an image: the library may put some kilobytes of headers there
_ONE_FILE: Final = 1 << 62  # rows in the one file
_EXTRA_SAMPLE_BYTES: Final = 128  # for each sample, mostly for its name


class Hdf5Writer(RowFilesWriter):
    """Writes `hdf5`."""

    def __init__(self, job: PackJob) -> None:
        spec = job.stream.spec
        self._datasets = choose_dataset_names(spec)
        self._regions = plan_regions(spec)
        files = {
            name: RowFiles(lambda _: job.product_path, start, spec.images[name].row_bytes, _ONE_FILE, is_shared=True)
            for name, start in self._regions.items()
        }
        super().__init__(job, files)

    def finish_pack(self, bad_ids: Ids) -> None:
        self.close()
        self._job.scratch_path.unlink(missing_ok=True)
        self._write_scratch_file(bad_ids)
        with self._job.scratch_path.open("rb") as scratch, self._job.product_path.open("r+b") as product:
            end = os.fstat(scratch.fileno()).st_size
            product.truncate(end)
            for offsets in self._list_ranges_around_rows(end):
                _copy_byte_range(scratch.fileno(), product.fileno(), offsets)
        self._job.scratch_path.unlink()

    def _list_ranges_around_rows(self, end: int) -> list[range]:
        """Returns the offsets of all bytes of a file that hold no rows."""
        images = self._job.stream.spec.images
        starts = [0, *(self._find_rows_end(images[name], start) for name, start in self._regions.items())]
        return list(map(range, starts, [*self._regions.values(), end]))

    def _find_rows_end(self, image: ImageSpec, start: int) -> int:
        return start + _count_chunk_rows(image, self._row_count) * image.row_bytes

    def _write_scratch_file(self, bad_ids: Ids) -> None:
        """Writes a file of the pack's shape, without its images."""
        aligned = {"alignment_threshold": _MIN_ALIGNED_BYTES, "alignment_interval": _GAP_BYTES}
        with h5py.File(self._job.scratch_path, "w", **aligned) as file:
            self._create_image_datasets(file)
            for name, spec in self._job.stream.spec.labels.items():
                if spec.classes:
                    file[f"classes/{name}"] = _encode_text_values(build_class_array(spec))
            for name, shape, dtype in self._find_column_shapes(bad_ids):
                file.create_dataset(name, shape, dtype)
            for rows, name, values in self._iterate_column_blocks(bad_ids):
                file[name][rows] = values

    def _create_image_datasets(self, file: h5py.File) -> None:
        """Creates the dataset of each image, whose rows begin where its region does."""
        images = self._job.stream.spec.images
        if len(images) > 1:
            file.create_group(PACKED_IMAGES_ARRAY)
        made = {name: self._create_images_dataset(file, name) for name in self._regions}
        gaps = {name: gap for name, gap in self._find_gaps().items() if gap}
        fillers = {name: file.create_dataset(f"filler {name}", (gap,), np.uint8) for name, gap in gaps.items()}
        # The library puts one large object behind the other. Each gets its space only now, in the order of the regions:
        # so no header comes between two of them.
        for name, start in self._regions.items():
            if name in fillers:
                fillers[name][:1] = 0
            h5py.Dataset(made[name])[:1] = 0
            _check_rows_offset(made[name], start)
        for filler in fillers.values():
            del file[filler.name]

    def _find_gaps(self) -> dict[str, int]:
        """Returns the bytes to take before the rows of each image, so that they do not lie before their region."""
        gaps, end = dict.fromkeys(self._regions, 0), 0
        for name, start in self._regions.items():
            free = start - _align_up(end)
            gaps[name] = free - _HEADER_ROOM_BYTES if end and free else 0
            end = self._find_rows_end(self._job.stream.spec.images[name], start)
        return gaps

    def _create_images_dataset(self, file: h5py.File, name: str) -> h5py.h5d.DatasetID:
        """Creates the dataset of an image, which takes no space until it is written to."""
        rows, image = self._row_count, self._job.stream.spec.images[name]
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_obj_track_times(False)  # the same samples make the same file
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        most: tuple[int, ...] = (rows, *image.shape)
        chunk_rows = _count_chunk_rows(image, rows)
        if chunk_rows > rows:
            settings.set_chunk((chunk_rows, *image.shape))
            most = (h5py.h5s.UNLIMITED, *image.shape)
        space = h5py.h5s.create_simple((rows, *image.shape), most)
        dtype = h5py.h5t.py_create(np.dtype(image.dtype).newbyteorder("<"))
        return h5py.h5d.create(file.id, self._datasets[name].encode(), dtype, space, settings)

    def _find_column_shapes(self, bad_ids: Ids) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        """Returns name, shape and dtype of each column beside the images; texts have the width of the longest."""
        found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for _, name, values in self._iterate_column_blocks(bad_ids):
            shape, dtype = (self._row_count, *values.shape[1:]), values.dtype
            found[name] = shape, max(dtype, found.get(name, (shape, dtype))[1], key=lambda each: each.itemsize)
        return [(name, *shape_and_dtype) for name, shape_and_dtype in found.items()]

    def _iterate_column_blocks(self, bad_ids: Ids) -> Iterator[tuple[slice, str, CellValues]]:
        """Yields the columns beside the images, some rows at a time: the rows, the column's name, and its values."""
        manifest = self._job.stream.manifest
        names = choose_name_key(manifest.labels)
        for kept in self.iterate_kept_rows(bad_ids):
            for name, values in collect_sample_cells(manifest, kept.ids).items():
                key = PACKED_NAMES_ARRAY if name == names else f"labels/{name}"
                yield kept.rows, key, _encode_text_values(values)
                spec = manifest.labels.get(name)
                if spec is not None and spec.type == "category" and values.dtype.kind == "U":
                    yield kept.rows, f"numbers/{name}", manifest.gather_label(name, kept.ids)
            for name, boxes in kept.boxes.items():
                yield kept.rows, f"labels/{name}", build_fixed_boxes(manifest.labels[name], boxes)

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        drop_from_page_cache(self._job.product_path)
        with h5py.File(self._job.product_path) as file:
            for rows, name, values in self._iterate_column_blocks(bad_ids):
                if not np.array_equal(file[name][rows], values):
                    raise build_read_mismatch_error(self._job.product_path)
        yield from self.read_row_checksums()

    def estimate_bytes(self) -> int:
        spec = self._job.stream.spec
        gaps = len(spec.images) * _GAP_BYTES
        return gaps + spec.samples * (self._job.row_bytes + _EXTRA_SAMPLE_BYTES) + self._estimate_box_bytes()

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec, source = self._job.stream.spec, {"kind": "hdf5", "path": str(pack_path)}
        if is_only_image(spec):
            only = {**source, "images": f"/{PACKED_IMAGES_ARRAY}"}
            return build_decoded_pack_settings(only, spec, "/labels/{}")
        named = {**source, "names": f"/{PACKED_NAMES_ARRAY}"}
        places = {name: f"/{dataset}" for name, dataset in self._datasets.items()}
        return build_decoded_pack_settings(named, spec, "/labels/{}", places)


def choose_dataset_names(spec: StreamSpec) -> dict[str, str]:
    """Returns the dataset of each image: images for the only one, else images/NAME."""
    if is_only_image(spec):
        return {ONLY_IMAGE: PACKED_IMAGES_ARRAY}
    names: dict[str, str] = {}
    for name in spec.images:
        # A dot alone means the group itself.
        key = choose_unused_key("dot" if name == "." else name, {*spec.images, *names.values()} - {name})
        names[name] = key
    return {name: f"{PACKED_IMAGES_ARRAY}/{key}" for name, key in names.items()}


def plan_regions(spec: StreamSpec) -> dict[str, int]:
    """Returns where the rows of each image begin, with room for all samples and for headers behind them."""
    starts: dict[str, int] = {}
    start = _GAP_BYTES
    for name, image in spec.images.items():
        starts[name] = start
        start = _align_up(start + _count_chunk_rows(image, spec.samples) * image.row_bytes + _HEADER_ROOM_BYTES)
    return starts


def _count_chunk_rows(image: ImageSpec, rows: int) -> int:
    """Returns the rows of the one chunk of an image: more than there are if these are too few bytes to be aligned."""
    return max(rows, -(-_MIN_ALIGNED_BYTES // image.row_bytes))


def _align_up(offset: int) -> int:
    return -(-offset // _GAP_BYTES) * _GAP_BYTES


def _check_rows_offset(images: h5py.h5d.DatasetID, start: int) -> None:
    """Raises PackError unless the rows of a dataset begin there."""
    is_whole = images.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    offset = images.get_offset() if is_whole else images.get_chunk_info(0).byte_offset
    if offset != start:
        raise PackError(f"this HDF5 library puts images at {offset}, not at {start}; use --format npy")


def _encode_text_values(values: CellValues) -> CellValues:
    """Encodes texts in UTF-8, with a dtype that says so; returns numbers as they are."""
    if values.dtype.kind != "U":
        return values
    encoded = np.char.encode(values, "utf-8")
    return encoded.view(h5py.string_dtype("utf-8", max(encoded.dtype.itemsize, 1)))


def _copy_byte_range(source: int, target: int, offsets: range) -> None:
    """Copies the bytes at these offsets from one file to the other."""
    for offset in range(offsets.start, offsets.stop, MIB):
        write_all_at(target, os.pread(source, min(MIB, offsets.stop - offset), offset), offset)
