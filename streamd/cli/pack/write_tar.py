"""`tar`: a folder of WebDataset shards, 000000.tar and so on.

    000000012.jpg    the encoded image, byte for byte as it was; a PNG for a row of an array
    000000012.cls    the number of its class, if the stream has exactly one category
    000000012.json   {"name": ..., LABEL: ..., "weight": ...}, as in `label_cells`; tags as a list of classes

Like the images of all formats, each has been decoded before, so the pack has none that a trainer cannot read.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final

import cv2
import msgspec
import numpy as np

from streamd.cli.pack.checksums import compute_blob_checksums
from streamd.cli.pack.config_snippet import build_encoded_image_settings
from streamd.cli.pack.label_cells import CellValues, build_label_reading_settings, collect_sample_cells
from streamd.cli.pack.row_files import drop_from_page_cache, write_all_at
from streamd.cli.pack.writer import PackJob
from streamd.core.permutation import Ids, Words
from streamd.dataset.arrays.store import Pixels
from streamd.decode.sniff import detect_format
from streamd.errors import PackError
from streamd.ipc.worker_messages import UnfilledRow
from streamd.worker.stream_reader import StreamReader

_BLOCK_BYTES: Final = tarfile.BLOCKSIZE
_END_BLOCKS: Final = bytes(2 * _BLOCK_BYTES)
_FORMAT_SUFFIXES: Final = {
    "JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp", "PPM": "ppm",
    "AVIF": "avif",
}  # fmt: skip
_EXTRA_SAMPLE_BYTES: Final = 6 * _BLOCK_BYTES  # for three headers, two small members, and the padding of the image
_FILE_MODE: Final = 0o644
_KEY_DIGITS: Final = 9
_SIZE_FIELD: Final = slice(124, 135)
_CHECKSUM_FIELD: Final = slice(148, 156)


class TarWriter:
    """Writes `tar`. A shard ends when it has at least `shard_bytes`."""

    def __init__(self, job: PackJob, shard_bytes: int) -> None:
        self._job, self._shard_bytes = job, shard_bytes
        stream = job.stream
        self._reader = StreamReader.open(stream.spec, stream.manifest_path)
        categories = [name for name, label in stream.spec.labels.items() if label.type == "category"]
        self._class_label = categories[0] if len(categories) == 1 else None
        self._png_threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "png")
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

    def append_rows(self, ids: Ids, images: Pixels) -> Words:
        return compute_blob_checksums(
            map(self._write_sample, self._iterate_encoded_images(ids, images), self._iterate_label_members(ids))
        )

    def _write_sample(self, blob: bytes, members: Mapping[str, bytes]) -> bytes:
        """Writes a sample and returns its bytes."""
        if self._shard_offset >= self._shard_bytes:
            self._finish_shard()
        record = self._encode_sample({_FORMAT_SUFFIXES[detect_format(blob)]: blob, **members})
        write_all_at(self._descriptor, record, self._shard_offset)
        self._shard_offset += len(record)
        self._row_count += 1
        return record

    def _encode_sample(self, members: Mapping[str, bytes]) -> bytes:
        """Returns the members of one sample as they are stored in a shard."""
        key = b"%0*d" % (_KEY_DIGITS, self._row_count)
        parts = (
            (_encode_tar_header(b"%b.%b" % (key, suffix.encode()), len(data)), data) for suffix, data in members.items()
        )
        return b"".join(header + data + bytes(-len(data) % _BLOCK_BYTES) for header, data in parts)

    def _iterate_encoded_images(self, ids: Ids, images: Pixels) -> Iterator[bytes]:
        if self._reader.manifest.arrays:
            return self._png_threads.map(_encode_png, images)
        return map(self._read_encoded_image, ids.tolist())

    def _read_encoded_image(self, sample_id: int) -> bytes:
        found = self._reader.read_sample(sample_id)
        if isinstance(found, bytes):
            return found
        name = self._job.stream.format_file_name(sample_id)
        why = found.reason if isinstance(found, UnfilledRow) else "it has several images"
        raise PackError(f"{name} was decoded, but cannot be read again: {why}")

    def _iterate_label_members(self, ids: Ids) -> Iterator[dict[str, bytes]]:
        """Yields the small members of each sample, by suffix."""
        manifest = self._reader.manifest
        columns = {
            name: self._convert_to_json_values(name, values)
            for name, values in collect_sample_cells(manifest, ids).items()
        }
        numbers = None if self._class_label is None else manifest.gather_label(self._class_label, ids).tolist()
        for row in range(ids.size):
            known = {} if numbers is None else {"cls": b"%d" % numbers[row]}
            yield {**known, "json": msgspec.json.encode({name: column[row] for name, column in columns.items()})}

    def _convert_to_json_values(self, name: str, values: CellValues) -> Sequence[Any]:
        label = self._job.stream.spec.labels.get(name)
        if label is None or label.type != "tags":
            return list(values.tolist())
        return [[label.classes[tag] for tag in np.flatnonzero(row)] for row in values]

    def _finish_shard(self) -> None:
        write_all_at(self._descriptor, _END_BLOCKS, self._shard_offset)
        self.sync_to_disk()
        os.close(self._descriptor)
        self._shard_number, self._shard_offset = self._shard_number + 1, 0
        self._open_shard()

    def sync_to_disk(self) -> dict[str, int]:
        os.fdatasync(self._descriptor)
        return {"shard": self._shard_number, "bytes": self._shard_offset}

    def finish_pack(self, bad_ids: Ids) -> None:
        del bad_ids
        write_all_at(self._descriptor, _END_BLOCKS, self._shard_offset)

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        del bad_ids
        for shard in range(self._shard_number + 1):
            drop_from_page_cache(self._build_shard_path(shard))
            with self._build_shard_path(shard).open("rb") as file:
                yield compute_blob_checksums(_iterate_shard_samples(file))

    def estimate_bytes(self) -> int:
        spec = self._job.stream.spec
        held = int(self._reader.manifest.lookup_sample_bytes(np.arange(spec.samples)).sum())
        return held + spec.samples * _EXTRA_SAMPLE_BYTES

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec = self._job.stream.spec
        return {
            "source": {"kind": "tar", "path": str(pack_path)},
            **build_label_reading_settings(spec, "json:{}"),
            "image": build_encoded_image_settings(spec.image),
        }

    def close(self) -> None:
        self._png_threads.shutdown()
        self._reader.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _build_header_template() -> bytes:
    """Builds a header without name, size and checksum."""
    member = tarfile.TarInfo()
    member.mode = _FILE_MODE
    header = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    header[_SIZE_FIELD], header[_CHECKSUM_FIELD] = bytes(11), bytes(8)
    return bytes(header)


_HEADER_TEMPLATE: Final = _build_header_template()
_HEADER_TEMPLATE_SUM: Final = sum(_HEADER_TEMPLATE) + 8 * ord(" ")  # the checksum counts as blanks


def _encode_tar_header(name: bytes, size: int) -> bytes:
    """Returns the header that the library would make in ten times as long."""
    digits = b"%011o" % size
    header = bytearray(_HEADER_TEMPLATE)
    header[: len(name)] = name
    header[_SIZE_FIELD] = digits
    header[_CHECKSUM_FIELD] = b"%06o\0 " % (_HEADER_TEMPLATE_SUM + sum(name) + sum(digits))
    return bytes(header)


def _encode_png(image: Pixels) -> bytes:
    """Encodes an image with little compression, which is fast."""
    shown = image[:, :, ::-1] if image.shape[2] > 1 else image  # the library wants blue first
    done, data = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    if not done:
        raise PackError(f"an image of {image.shape[1]}x{image.shape[0]} cannot be written as a PNG; use --format npy")
    return data.tobytes()


def _iterate_shard_samples(file: BinaryIO) -> Iterator[bytes]:
    """Yields the members of each sample as they are stored in a shard."""
    key, parts = b"", list[bytes]()
    while (header := file.read(_BLOCK_BYTES)).strip(b"\0"):
        size = int(header[_SIZE_FIELD] or b"0", 8)
        if header[:_KEY_DIGITS] != key and parts:
            yield b"".join(parts)
            parts = []
        key = header[:_KEY_DIGITS]
        parts += [header, file.read(size + -size % _BLOCK_BYTES)]
    if parts:
        yield b"".join(parts)
