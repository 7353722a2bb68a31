"""`tar`: a folder of WebDataset shards, 000000.tar and so on.

    000000012.jpg    the encoded image, byte for byte as it was; of an array, a PNG
    000000012.cls    the number of its class, where the stream has one category
    000000012.json   {"name": ..., LABEL: ..., "weight": ...}, as `label_cells` has them; tags as a list of classes

Each image was decoded on the way, like those of all formats, so that none is in it that a trainer cannot read.
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

from streamd.cli.pack.checksums import blob_sums
from streamd.cli.pack.config_snippet import for_files
from streamd.cli.pack.label_cells import Values, read_as, values_of
from streamd.cli.pack.row_files import drop_from_memory, write_at
from streamd.cli.pack.writer import Subject
from streamd.core.permutation import Ids, Words
from streamd.dataset.arrays.store import Pixels
from streamd.decode.sniff import detect_format
from streamd.errors import PackError
from streamd.ipc.worker_messages import UnfilledRow
from streamd.worker.stream_reader import StreamReader

_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = bytes(2 * _BLOCK)
_SUFFIXES: Final = {
    "JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp", "PPM": "ppm",
    "AVIF": "avif",
}  # fmt: skip
_BYTES_BESIDE: Final = 6 * _BLOCK  # of a sample: three headers, two small members, what fills a block
_MODE: Final = 0o644
_KEY_DIGITS: Final = 9
_SIZE: Final = slice(124, 135)
_CHECKSUM: Final = slice(148, 156)


class TarWriter:
    """See Writer. `shard_bytes` is the size at which a shard ends."""

    def __init__(self, subject: Subject, shard_bytes: int) -> None:
        self._subject, self._shard_bytes = subject, shard_bytes
        stream = subject.stream
        self._source = StreamReader.open(stream.spec, stream.manifest_path)
        categories = [name for name, label in stream.spec.labels.items() if label.type == "category"]
        self._class = categories[0] if len(categories) == 1 else None
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "png")
        self._shard = self._offset = self._rows = 0
        self._descriptor = -1

    def _path(self, shard: int) -> Path:
        return self._subject.product / f"{shard:06}.tar"

    def resume(self, rows: int, place: Mapping[str, int]) -> None:
        self._subject.product.mkdir(exist_ok=True)
        self._rows, self._shard, self._offset = rows, place.get("shard", 0), place.get("bytes", 0)
        beyond = self._shard
        while (path := self._path(beyond := beyond + 1)).exists():
            path.unlink()
        self._open()
        os.ftruncate(self._descriptor, self._offset)

    def _open(self) -> None:
        self._descriptor = os.open(self._path(self._shard), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def append(self, ids: Ids, images: Pixels) -> Words:
        return blob_sums(map(self._write, self._blobs(ids, images), self._beside(ids)))

    def _write(self, blob: bytes, members: Mapping[str, bytes]) -> bytes:
        """Writes a sample; what was written."""
        if self._offset >= self._shard_bytes:
            self._end_shard()
        record = self._record({_SUFFIXES[detect_format(blob)]: blob, **members})
        write_at(self._descriptor, record, self._offset)
        self._offset += len(record)
        self._rows += 1
        return record

    def _record(self, members: Mapping[str, bytes]) -> bytes:
        """The members of one sample as they lie in a shard."""
        key = b"%0*d" % (_KEY_DIGITS, self._rows)
        parts = ((_header(b"%b.%b" % (key, suffix.encode()), len(data)), data) for suffix, data in members.items())
        return b"".join(header + data + bytes(-len(data) % _BLOCK) for header, data in parts)

    def _blobs(self, ids: Ids, images: Pixels) -> Iterator[bytes]:
        """The encoded images."""
        return self._threads.map(_png, images) if self._source.manifest.arrays else map(self._file, ids.tolist())

    def _file(self, sample_id: int) -> bytes:
        found = self._source.read_sample(sample_id)
        if isinstance(found, UnfilledRow):
            name = self._subject.stream.format_file_name(sample_id)
            raise PackError(f"{name} was decoded and cannot be read again: {found.reason}")
        return found

    def _beside(self, ids: Ids) -> Iterator[dict[str, bytes]]:
        """The small members of each sample, by suffix."""
        manifest = self._source.manifest
        columns = {name: self._plain(name, values) for name, values in values_of(manifest, ids).items()}
        numbers = None if self._class is None else manifest.gather_label(self._class, ids).tolist()
        for row in range(ids.size):
            known = {} if numbers is None else {"cls": b"%d" % numbers[row]}
            yield {**known, "json": msgspec.json.encode({name: column[row] for name, column in columns.items()})}

    def _plain(self, name: str, values: Values) -> Sequence[Any]:
        label = self._subject.stream.spec.labels.get(name)
        if label is None or label.type != "tags":
            plain: list[Any] = values.tolist()
            return plain
        return [[label.classes[tag] for tag in np.flatnonzero(row)] for row in values]

    def _end_shard(self) -> None:
        write_at(self._descriptor, _END, self._offset)
        self.sync()
        os.close(self._descriptor)
        self._shard, self._offset = self._shard + 1, 0
        self._open()

    def sync(self) -> dict[str, int]:
        os.fdatasync(self._descriptor)
        return {"shard": self._shard, "bytes": self._offset}

    def finish(self, bad: Ids) -> None:
        del bad
        write_at(self._descriptor, _END, self._offset)

    def sums(self, bad: Ids) -> Iterator[Words]:
        del bad
        for shard in range(self._shard + 1):
            drop_from_memory(self._path(shard))
            with self._path(shard).open("rb") as file:
                yield blob_sums(_records(file))

    def expected_bytes(self) -> int:
        spec = self._subject.stream.spec
        held = int(self._source.manifest.lookup_sample_bytes(np.arange(spec.samples)).sum())
        return held + spec.samples * _BYTES_BESIDE

    def serving(self, place: Path) -> dict[str, object]:
        spec = self._subject.stream.spec
        source = {"kind": "tar", "path": str(place)}
        return {"source": source, **read_as(spec, "json:{}"), "image": for_files(spec.image)}

    def close(self) -> None:
        self._threads.shutdown()
        self._source.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _template() -> bytes:
    """A header without a name, a size and a checksum."""
    member = tarfile.TarInfo()
    member.mode = _MODE
    header = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    header[_SIZE], header[_CHECKSUM] = bytes(11), bytes(8)
    return bytes(header)


_TEMPLATE: Final = _template()
_TEMPLATE_SUM: Final = sum(_TEMPLATE) + 8 * ord(" ")  # the checksum counts as blanks


def _header(name: bytes, size: int) -> bytes:
    """What the library makes of it in ten times as long."""
    digits = b"%011o" % size
    header = bytearray(_TEMPLATE)
    header[: len(name)] = name
    header[_SIZE] = digits
    header[_CHECKSUM] = b"%06o\0 " % (_TEMPLATE_SUM + sum(name) + sum(digits))
    return bytes(header)


def _png(image: Pixels) -> bytes:
    """Encoded quickly: without loss it is the decoder that counts."""
    shown = image[:, :, ::-1] if image.shape[2] > 1 else image  # the library wants blue first
    done, data = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    if not done:
        raise PackError(f"an image of {image.shape[1]}x{image.shape[0]} cannot be made a PNG; use --format npy")
    return data.tobytes()


def _records(file: BinaryIO) -> Iterator[bytes]:
    """The members of each sample, as they lie in a shard."""
    key, parts = b"", list[bytes]()
    while (header := file.read(_BLOCK)).strip(b"\0"):
        size = int(header[_SIZE] or b"0", 8)
        if header[:_KEY_DIGITS] != key and parts:
            yield b"".join(parts)
            parts = []
        key = header[:_KEY_DIGITS]
        parts += [header, file.read(size + -size % _BLOCK)]
    if parts:
        yield b"".join(parts)
