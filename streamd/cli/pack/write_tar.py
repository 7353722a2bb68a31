"""`tar`: a folder of WebDataset shards, 000000.tar and so on.

    000000012.jpg       the encoded image, byte for byte as it was; a PNG for a row of an array
    000000012.mask.png  each of several images, by name; the numbers of mode raw in arrays become .npy
    000000012.cls       the number of its class, if the stream has exactly one category
    000000012.json      {"name": ..., LABEL: ..., "weight": ...}, as in `label_cells`; tags as a list of classes

Like the images of all formats, each has been decoded before, so the pack has none that a trainer cannot read. Boxes
and points in the .json are those of the upright pictures where files are kept as they are, else those of the delivered
images.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from streamd.cli.pack.config_snippet import build_encoded_image_settings, is_only_image
from streamd.cli.pack.label_cells import (
    BoxLists,
    CellValues,
    build_label_reading_settings,
    collect_sample_cells,
    list_delivered_boxes,
    list_upright_boxes,
)
from streamd.cli.pack.packed_rows import BoxRows, PackedRows, compute_blob_checksums
from streamd.cli.pack.row_files import PackJob, drop_from_page_cache, write_all_at
from streamd.cli.pack.tar_members import (
    END_BLOCKS,
    choose_format_suffix,
    choose_image_suffixes,
    encode_image,
    encode_sample,
    iterate_shard_samples,
)
from streamd.core.host import count_processors
from streamd.core.permutation import Ids, Words
from streamd.core.spec import LabelSpec
from streamd.dataset.arrays.store import Pixels
from streamd.decode.boxes import align_label_rows
from streamd.decode.decoders import read_geometry
from streamd.errors import PackError
from streamd.ipc.worker_messages import UnfilledRow
from streamd.worker.stream_reader import StreamReader

_EXTRA_IMAGE_BYTES: Final = 2 * tarfile.BLOCKSIZE  # for the header of an image, and the padding behind it
_EXTRA_SAMPLE_BYTES: Final = 4 * tarfile.BLOCKSIZE  # for the two small members
_BOX_TEXT_BYTES: Final = 64  # of a box or a point in a .json
_FILE_MODE: Final = 0o644


class TarWriter:
    """Writes `tar`. A shard ends when it has at least `shard_bytes`."""

    def __init__(self, job: PackJob, shard_bytes: int) -> None:
        self._job, self._shard_bytes = job, shard_bytes
        stream, spec = job.stream, job.stream.spec
        self._reader = StreamReader.open(spec, stream.manifest_path)
        categories = [name for name, label in spec.labels.items() if label.type == "category"]
        self._class_label = categories[0] if len(categories) == 1 else None
        self._suffixes = (
            None if is_only_image(spec) and spec.image.mode != "raw" else choose_image_suffixes(spec, stream.manifest)
        )
        self._png_threads = ThreadPoolExecutor(min(4, count_processors()), "png")
        self._shard_number = self._shard_offset = self._row_count = 0
        self._descriptor = -1

    def _build_shard_path(self, shard: int) -> Path:
        return self._job.product_path / f"{shard:06}.tar"

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        self._job.product_path.mkdir(exist_ok=True)
        self._row_count = rows
        self._shard_number, self._shard_offset = position.get("shard", 0), position.get("bytes", 0)
        beyond = self._shard_number
        while (path := self._build_shard_path(beyond := beyond + 1)).exists():
            path.unlink()
        self._open_shard()
        os.ftruncate(self._descriptor, self._shard_offset)

    def _open_shard(self) -> None:
        self._descriptor = os.open(
            self._build_shard_path(self._shard_number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE
        )

    def append_rows(self, rows: PackedRows) -> Words:
        return compute_blob_checksums(
            map(self._write_sample, self._iterate_image_members(rows), self._iterate_label_members(rows))
        )

    def _write_sample(self, images: Mapping[str, bytes], labels: Mapping[str, bytes]) -> bytes:
        """Writes a sample and returns its bytes."""
        if self._shard_offset >= self._shard_bytes:
            self._finish_shard()
        record = encode_sample(self._row_count, {**images, **labels})
        write_all_at(self._descriptor, record, self._shard_offset)
        self._shard_offset += len(record)
        self._row_count += 1
        return record

    def _iterate_image_members(self, rows: PackedRows) -> Iterator[dict[str, bytes]]:
        """Yields the encoded images of each sample, by suffix."""
        blobs = (
            self._png_threads.map(self._encode_images, zip(*rows.images.values(), strict=True))
            if self._reader.manifest.arrays
            else map(self._read_encoded_images, rows.ids.tolist())
        )
        for several in blobs:
            if self._suffixes is None:
                yield {choose_format_suffix(several[0]): several[0]}
            else:
                yield dict(zip(self._suffixes.values(), several, strict=True))

    def _encode_images(self, images: Sequence[Pixels]) -> tuple[bytes, ...]:
        specs = self._job.stream.spec.images.values()
        return tuple(encode_image(image, spec) for image, spec in zip(images, specs, strict=True))

    def _read_encoded_images(self, sample_id: int) -> tuple[bytes, ...]:
        """Reads the files of a sample, in the order of the stream's images."""
        found = self._reader.read_sample(sample_id)
        if isinstance(found, UnfilledRow):
            name = self._job.stream.format_file_name(sample_id)
            raise PackError(f"{name} was decoded, but cannot be read again: {found.reason}")
        files = (found,) if isinstance(found, bytes) else found
        return tuple(each for each in files if isinstance(each, bytes))  # a stream of clips is not packed

    def _iterate_label_members(self, rows: PackedRows) -> Iterator[dict[str, bytes]]:
        """Yields the small members of each sample, by suffix."""
        manifest, ids = self._reader.manifest, rows.ids
        columns: dict[str, Sequence[Any]] = {
            name: self._convert_to_json_values(name, values)
            for name, values in collect_sample_cells(manifest, ids).items()
        }
        columns |= {name: self._list_boxes(name, ids, boxes) for name, boxes in rows.boxes.items()}
        numbers = None if self._class_label is None else manifest.gather_label(self._class_label, ids).tolist()
        for row in range(ids.size):
            known = {} if numbers is None else {"cls": b"%d" % numbers[row]}
            yield {**known, "json": msgspec.json.encode({name: column[row] for name, column in columns.items()})}

    def _list_boxes(self, name: str, ids: Ids, delivered: BoxRows) -> BoxLists:
        if self._reader.manifest.arrays is None:
            label = self._job.stream.spec.labels[name]
            return list_upright_boxes(label, (self._read_upright_boxes(label, each) for each in ids.tolist()))
        return list_delivered_boxes(self._reader.manifest, name, ids, delivered)

    def _read_upright_boxes(self, label: LabelSpec, sample_id: int) -> BoxRows:
        """Returns the boxes or points of a sample for its upright picture, since a pack does not keep other sizes."""
        manifest, images = self._reader.manifest, self._job.stream.spec.images
        found = manifest.ragged_column(label.name).read_sample(sample_id)
        if not len(found) or (drawn := manifest.lookup_drawn_size(sample_id)) is None:
            return found
        name = label.image or next(iter(images))
        file = self._read_encoded_images(sample_id)[list(images).index(name)]
        return align_label_rows(found, label, drawn, read_geometry(file, images[name]))

    def _convert_to_json_values(self, name: str, values: CellValues) -> Sequence[Any]:
        label = self._job.stream.spec.labels.get(name)
        if label is None or label.type != "tags":
            return list(values.tolist())
        return [[label.classes[tag] for tag in np.flatnonzero(row)] for row in values]

    def _finish_shard(self) -> None:
        write_all_at(self._descriptor, END_BLOCKS, self._shard_offset)
        self.sync_to_disk()
        os.close(self._descriptor)
        self._shard_number, self._shard_offset = self._shard_number + 1, 0
        self._open_shard()

    def sync_to_disk(self) -> dict[str, int]:
        os.fdatasync(self._descriptor)
        return {"shard": self._shard_number, "bytes": self._shard_offset}

    def finish_pack(self, bad_ids: Ids) -> None:
        del bad_ids
        write_all_at(self._descriptor, END_BLOCKS, self._shard_offset)

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        del bad_ids
        for shard in range(self._shard_number + 1):
            drop_from_page_cache(self._build_shard_path(shard))
            with self._build_shard_path(shard).open("rb") as file:
                yield compute_blob_checksums(iterate_shard_samples(file))

    def estimate_bytes(self) -> int:
        spec, manifest = self._job.stream.spec, self._reader.manifest
        held = int(manifest.lookup_sample_bytes(np.arange(spec.samples)).sum())
        boxes = sum(len(manifest.ragged_column(name).numbers) for name, label in spec.labels.items() if label.is_ragged)
        extra = len(spec.images) * _EXTRA_IMAGE_BYTES + _EXTRA_SAMPLE_BYTES
        return held + spec.samples * extra + boxes * _BOX_TEXT_BYTES

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec, is_delivered = self._job.stream.spec, self._reader.manifest.arrays is not None
        return {
            "source": {"kind": "tar", "path": str(pack_path)},
            **build_label_reading_settings(spec, "json:{}", is_delivered=is_delivered),
            **build_encoded_image_settings(spec, self._suffixes, is_delivered=is_delivered),
        }

    def close(self) -> None:
        self._png_threads.shutdown()
        self._reader.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
