"""`hdf5`: one file, which h5py, PyTables and other programs can read.

    /images          uint8 (n, height, width, channels), in one piece and unfiltered: it is mapped, or read by offset
    /images/NAME     the same for each of several images a sample, of its own dtype; (n, height, width) in mode index
    /labels/NAME     one entry for each row, as in `label_cells`; texts in UTF-8 of one width; weights: /labels/weight;
                     boxes (n, max, 5) and points (n, max, 3) in pixels of the delivered image, as in `box_values`
    /numbers/NAME    int64: the numbers of a category's classes, if these are texts
    /classes/NAME    the classes of a category, of tags or of boxes
    /names           the original name of each sample

The library writes everything in one pass, images, boxes and points as they come and the other labels at the end. It
leaves an unusable file when its process is killed, so such a pack begins again. It cannot shorten a dataset in one
piece either: where samples were left out, the rows are copied once more, into a file of the size that they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamd.cli.pack.batches import (
    PackedRows,
    PackJob,
    PackWriter,
    WholeShards,
    build_read_mismatch_error,
    combine_checksums,
    compute_box_bytes,
    compute_row_checksums,
    drop_from_page_cache,
)
from streamd.cli.pack.label_cells import (
    CellValues,
    build_class_array,
    build_decoded_pack_settings,
    build_fixed_boxes,
    collect_sample_cells,
    is_only_image,
)
from streamd.core.sampler import Ids, Words
from streamd.core.spec import ONLY_IMAGE, StreamSpec
from streamd.dataset.manifest.columns import PACKED_IMAGES_ARRAY, PACKED_NAMES_ARRAY, choose_name_key, choose_unused_key
from streamd.errors import MissingExtraError
from streamd.limits import MIB

try:
    import h5py
except ModuleNotFoundError as error:
    raise MissingExtraError("h5py", "hdf5", "streamd pack --format hdf5") from error

_MIN_ALIGNED_BYTES: Final = 16384  # objects from this size on begin at a whole MiB, so that they can be mapped
_EXTRA_SAMPLE_BYTES: Final = 128  # for each sample, mostly for its name


class Hdf5Writer(PackWriter):
    """Writes `hdf5`."""

    def __init__(self, job: PackJob) -> None:
        super().__init__(job)
        spec = self._spec
        self._datasets = choose_dataset_names(spec)
        # The datasets that are written as the rows come: their shapes and dtypes, in the order of a row's arrays.
        self._row_datasets: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            self._datasets[name]: (image.shape, np.dtype(image.dtype).newbyteorder("<"))
            for name, image in spec.images.items()
        }
        for name, label in spec.labels.items():
            if label.is_ragged:
                width = label.width + (label.type == "points")  # a point has its visibility beside it
                self._row_datasets[f"labels/{name}"] = (label.rows, width), np.dtype("<f4")
        self._row_bytes = spec.sample_bytes + sum(compute_box_bytes(spec).values())
        self._file: Any = None

    def _open_product(self) -> None:
        if not self.whole_shards.files:
            self._file = self._create_file(self._job.product_path, self._spec.samples)

    def _create_file(self, path: Path, rows: int) -> Any:
        """Creates a file with the datasets of images, boxes and points, in one piece and not yet filled."""
        # The size of the file and the place of its images are part of the content id, so they stay as they always were.
        aligned = {"alignment_threshold": _MIN_ALIGNED_BYTES, "alignment_interval": MIB}
        file = h5py.File(path, "w", **aligned)
        for name, (shape, dtype) in self._row_datasets.items():
            made = {"shape": (rows, *shape), "dtype": dtype, "fill_time": "never"}
            # Few bytes of images are one chunk of more rows than there are, which is large enough to be aligned.
            chunk_rows = -(-_MIN_ALIGNED_BYTES // (dtype.itemsize * prod(shape)))
            if chunk_rows > rows and name in self._datasets.values():
                made |= {"chunks": (chunk_rows, *shape), "maxshape": (None, *shape)}
            # The library takes the space of a dataset when it is first written to.
            file.create_dataset(name, **made)[:1] = 0
        return file

    def append_rows(self, rows: PackedRows) -> Words:
        stop = self._row_count + rows.ids.size
        boxes = {name: build_fixed_boxes(self._manifest.labels[name], each) for name, each in rows.boxes.items()}
        written = PackedRows(rows.ids, rows.images, boxes)
        for name, array in zip(self._row_datasets, written.iterate_arrays(), strict=True):
            self._file[name][self._row_count : stop] = array
        self._row_count = stop
        return written.compute_checksums()

    def sync_to_disk(self) -> None:
        self._file.flush()
        drop_from_page_cache(self._job.product_path)

    def finish_pack(self, bad_ids: Ids) -> None:
        if self._row_count < self._spec.samples:
            # Some samples were left out: the rows are copied into a file of the size that they need.
            smaller = self._create_file(self._job.scratch_path, self._row_count)
            for name in self._row_datasets:
                for block in self._iterate_row_blocks(self._row_bytes):
                    smaller[name][block] = self._file[name][block]
            self.close()
            self._file = smaller
            self._job.scratch_path.replace(self._job.product_path)
        for name, spec in self._spec.labels.items():
            if spec.classes:
                self._file[f"classes/{name}"] = _encode_text_values(build_class_array(spec))
        # Texts have the width of the longest, which is known after one look at all of them.
        columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for _, name, values in self._iterate_column_blocks(bad_ids):
            shape, dtype = (self._row_count, *values.shape[1:]), values.dtype
            columns[name] = shape, max(dtype, columns.get(name, (shape, dtype))[1], key=lambda each: each.itemsize)
        for name, (shape, dtype) in columns.items():
            self._file.create_dataset(name, shape, dtype)
        for rows, name, values in self._iterate_column_blocks(bad_ids):
            self._file[name][rows] = values
        self.close()
        self.whole_shards = WholeShards(self._row_count, 1)

    def _iterate_column_blocks(self, bad_ids: Ids) -> Iterator[tuple[slice, str, CellValues]]:
        """Yields the columns beside the images, some rows at a time: the rows, the column's name, and its values."""
        manifest = self._manifest
        names = choose_name_key(manifest.labels)
        for rows, ids in self._job.iterate_kept_rows(bad_ids):
            for name, values in collect_sample_cells(manifest, ids).items():
                key = PACKED_NAMES_ARRAY if name == names else f"labels/{name}"
                yield rows, key, _encode_text_values(values)
                spec = manifest.labels.get(name)
                if spec is not None and spec.type == "category" and values.dtype.kind == "U":
                    yield rows, f"numbers/{name}", manifest.gather_label(name, ids)

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        drop_from_page_cache(self._job.product_path)
        with h5py.File(self._job.product_path) as file:
            for rows, name, values in self._iterate_column_blocks(bad_ids):
                if not np.array_equal(file[name][rows], values):
                    raise build_read_mismatch_error(self._job.product_path)
            for block in self._iterate_row_blocks(self._row_bytes):
                yield combine_checksums([compute_row_checksums(file[name][block]) for name in self._row_datasets])

    def estimate_bytes(self) -> int:
        alignment_bytes = (len(self._row_datasets) + 1) * MIB
        return alignment_bytes + self._spec.samples * (self._row_bytes + _EXTRA_SAMPLE_BYTES)

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec, source = self._spec, {"kind": "hdf5", "path": str(pack_path)}
        if is_only_image(spec):
            only = {**source, "images": f"/{PACKED_IMAGES_ARRAY}"}
            return build_decoded_pack_settings(only, spec, "/labels/{}")
        named = {**source, "names": f"/{PACKED_NAMES_ARRAY}"}
        places = {name: f"/{dataset}" for name, dataset in self._datasets.items()}
        return build_decoded_pack_settings(named, spec, "/labels/{}", places)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


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


def _encode_text_values(values: CellValues) -> CellValues:
    """Encodes texts in UTF-8, with a dtype that says so; returns numbers as they are."""
    if values.dtype.kind != "U":
        return values
    encoded = np.char.encode(values, "utf-8")
    return encoded.view(h5py.string_dtype("utf-8", max(encoded.dtype.itemsize, 1)))
