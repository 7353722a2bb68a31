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

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from streamd.cli.pack.batches import (
    BoxRows,
    NumberedFiles,
    PackedRows,
    PackJob,
    PackWriter,
    WholeShards,
    compute_blob_checksums,
    drop_from_page_cache,
)
from streamd.cli.pack.label_cells import (
    build_encoded_image_settings,
    build_label_reading_settings,
    collect_delivered_boxes,
    collect_sample_cells,
    is_only_image,
    list_upright_boxes,
)
from streamd.core.host import count_processors
from streamd.core.sampler import BadSample, Ids, Words
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.manifest.columns import choose_unused_key
from streamd.dataset.manifest.manifest import Manifest
from streamd.decode.boxes import align_label_rows
from streamd.decode.decoders import read_geometry
from streamd.decode.sniff import detect_format
from streamd.errors import PackError
from streamd.worker.stream_reader import StreamReader

# --- The members of a pack of kind tar: their names, their headers, and images as encoded files. Pure.
#
# Headers are made here since the library would take ten times as long.

KEY_DIGITS: Final = 9
END_BLOCKS: Final = bytes(2 * tarfile.BLOCKSIZE)
LABEL_SUFFIXES: Final = ("cls", "json")
_BLOCK_BYTES: Final = tarfile.BLOCKSIZE
_FORMAT_SUFFIXES: Final = {
    "JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp", "PPM": "ppm",
    "AVIF": "avif",
}  # fmt: skip
_USUAL_SUFFIXES: Final = {"jpeg": "jpg", "jfif": "jpg", "tiff": "tif"}
_KNOWN_SUFFIXES: Final = frozenset({*_FORMAT_SUFFIXES.values(), "pgm", "pbm", "pnm", "npy"})
_SIZE_FIELD: Final = slice(124, 135)
_CHECKSUM_FIELD: Final = slice(148, 156)

Image = npt.NDArray[Any]


def choose_image_suffixes(spec: StreamSpec, manifest: Manifest) -> dict[str, str]:
    """Returns the suffix of each of several images: its name, with the ending that all of its files have, if they have.

    Shards name the images of every sample alike, while the source may have JPEGs beside PNGs.
    """
    suffixes: dict[str, str] = {}
    for name, image in spec.images.items():
        # Rows of an array get files of the kind that `encode_image` makes.
        made = "npy" if image.mode == "raw" else "png"
        ending = _find_common_ending(manifest, name) if manifest.arrays is None else made
        plain = name.lower().lstrip(".") or "image"
        suffixes[name] = choose_unused_key(
            f"{plain}.{ending}" if ending else plain, {*suffixes.values(), *LABEL_SUFFIXES}
        )
    return suffixes


def _find_common_ending(manifest: Manifest, image: str) -> str:
    """Returns the ending of the names of an image's files, as in jpg; empty if they differ, or are no image's."""
    listed = manifest.images.get(image)
    look_up = manifest.file_name if listed is None else listed.file_name
    found = ""
    for sample_id in range(manifest.samples):
        ending = PurePosixPath(look_up(sample_id).decode(errors="replace")).suffix[1:].lower()
        usual = _USUAL_SUFFIXES.get(ending, ending)
        if usual not in _KNOWN_SUFFIXES or found not in {"", usual}:
            return ""
        found = usual
    return found


def encode_image(image: Image, spec: ImageSpec) -> bytes:
    """Encodes a row of an array without loss: numbers of mode raw as .npy, pixels and class numbers as PNG."""
    if spec.mode == "raw":
        file = io.BytesIO()
        np.save(file, image)
        return file.getvalue()
    shown = image[:, :, _BLUE_FIRST[spec.channels]] if image.ndim > 2 else image  # noqa: PLR2004 - height and width
    done, data = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 1])  # little compression is fast
    if not done:
        raise PackError(f"an image of {image.shape[1]}x{image.shape[0]} cannot be written as a PNG; use --format npy")
    return data.tobytes()


_BLUE_FIRST: Final = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}  # as the library wants them


# --- samples in shards


def encode_sample(number: int, members: Mapping[str, bytes]) -> bytes:
    """Returns the members of one sample, by suffix, as they are stored in a shard."""
    key = b"%0*d" % (KEY_DIGITS, number)
    parts = (
        (_encode_tar_header(b"%b.%b" % (key, suffix.encode()), len(data)), data) for suffix, data in members.items()
    )
    return b"".join(header + data + bytes(-len(data) % _BLOCK_BYTES) for header, data in parts)


def iterate_shard_samples(file: BinaryIO) -> Iterator[bytes]:
    """Yields the members of each sample as they are stored in a shard."""
    key, parts = b"", list[bytes]()
    while (header := file.read(_BLOCK_BYTES)).strip(b"\0"):
        size = int(header[_SIZE_FIELD] or b"0", 8)
        if header[:KEY_DIGITS] != key and parts:
            yield b"".join(parts)
            parts = []
        key = header[:KEY_DIGITS]
        parts += [header, file.read(size + -size % _BLOCK_BYTES)]
    if parts:
        yield b"".join(parts)


def _build_header_template() -> bytes:
    """Builds a header without name, size and checksum."""
    member = tarfile.TarInfo()
    member.mode = 0o644
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


# --- `tar`: a folder of WebDataset shards, 000000.tar and so on.

_EXTRA_IMAGE_BYTES: Final = 2 * tarfile.BLOCKSIZE  # for the header of an image, and the padding behind it
_EXTRA_SAMPLE_BYTES: Final = 4 * tarfile.BLOCKSIZE  # for the two small members
_BOX_TEXT_BYTES: Final = 64  # of a box or a point in a .json


class TarWriter(PackWriter):
    """Writes `tar`. A shard ends when it has at least `shard_bytes`."""

    def __init__(self, job: PackJob, shard_bytes: int) -> None:
        super().__init__(job)
        stream, spec = job.stream, self._spec
        self._shard_bytes, self._shard_offset = shard_bytes, 0
        self._shards = NumberedFiles(lambda shard: job.product_path / f"{shard:06}.tar")
        self._files = [self._shards]
        self._reader = StreamReader.open(spec, stream.manifest_path)
        categories = [name for name, label in spec.labels.items() if label.type == "category"]
        self._class_label = categories[0] if len(categories) == 1 else None
        self._suffixes = (
            None if is_only_image(spec) and spec.image.mode != "raw" else choose_image_suffixes(spec, stream.manifest)
        )
        self._png_threads = ThreadPoolExecutor(min(4, count_processors()), "png")

    def _open_product(self) -> None:
        self._job.product_path.mkdir(exist_ok=True)
        self._shards.remove_from(self.whole_shards.files)

    def append_rows(self, rows: PackedRows) -> Words:
        return compute_blob_checksums(
            map(self._write_sample, self._iterate_image_members(rows), self._iterate_label_members(rows))
        )

    def _write_sample(self, images: Mapping[str, bytes], labels: Mapping[str, bytes]) -> bytes:
        """Writes a sample and returns its bytes."""
        record = encode_sample(self._row_count, {**images, **labels})
        self._shards.write_at(self.whole_shards.files, record, self._shard_offset)
        self._shard_offset += len(record)
        self._row_count += 1
        if self._shard_offset >= self._shard_bytes:
            self._finish_shard()
        return record

    def _finish_shard(self) -> None:
        self._shards.write_at(self.whole_shards.files, END_BLOCKS, self._shard_offset)
        self._shards.sync_to_disk()
        self._shards.close()
        self._shard_offset = 0
        self.whole_shards = WholeShards(self._row_count, self.whole_shards.files + 1)

    def finish_pack(self, bad_ids: Ids) -> None:
        del bad_ids
        if self._shard_offset:
            self._finish_shard()

    def _iterate_image_members(self, rows: PackedRows) -> Iterator[dict[str, bytes]]:
        """Yields the encoded images of each sample, by suffix."""
        specs = list(self._spec.images.values())

        def encode_images(images: Sequence[Pixels]) -> tuple[bytes, ...]:
            return tuple(encode_image(image, spec) for image, spec in zip(images, specs, strict=True))

        blobs = (
            self._png_threads.map(encode_images, zip(*rows.images.values(), strict=True))
            if self._reader.manifest.arrays
            else map(self._read_encoded_images, rows.ids.tolist())
        )
        for several in blobs:
            if self._suffixes is None:
                yield {_FORMAT_SUFFIXES[detect_format(several[0])]: several[0]}
            else:
                yield dict(zip(self._suffixes.values(), several, strict=True))

    def _read_encoded_images(self, sample_id: int) -> tuple[bytes, ...]:
        """Reads the files of a sample, in the order of the stream's images."""
        found = self._reader.read_sample(sample_id)
        if isinstance(found, BadSample):
            name = self._job.stream.format_file_name(sample_id)
            raise PackError(f"{name} was decoded, but cannot be read again: {found.reason}")
        files = (found,) if isinstance(found, bytes) else found
        return tuple(each for each in files if isinstance(each, bytes))  # a stream of clips is not packed

    def _iterate_label_members(self, rows: PackedRows) -> Iterator[dict[str, bytes]]:
        """Yields the small members of each sample, by suffix."""
        manifest, ids = self._reader.manifest, rows.ids
        columns: dict[str, Sequence[Any]] = {}
        for name, values in collect_sample_cells(manifest, ids).items():
            label = manifest.labels.get(name)
            columns[name] = (
                values.tolist()
                if label is None or label.type != "tags"
                else [[label.classes[tag] for tag in np.flatnonzero(row)] for row in values]
            )
        for name, boxes in rows.boxes.items():
            # Files are kept as they are, with the boxes of their upright pictures.
            if manifest.arrays is None:
                label = self._spec.labels[name]
                columns[name] = list_upright_boxes(
                    label, (self._read_upright_boxes(label, each) for each in ids.tolist())
                )
            else:
                columns[name] = collect_delivered_boxes(manifest, name, ids, boxes).tolist()
        numbers = None if self._class_label is None else manifest.gather_label(self._class_label, ids).tolist()
        for row in range(ids.size):
            known = {} if numbers is None else {"cls": b"%d" % numbers[row]}
            yield {**known, "json": msgspec.json.encode({name: column[row] for name, column in columns.items()})}

    def _read_upright_boxes(self, label: LabelSpec, sample_id: int) -> BoxRows:
        """Returns the boxes or points of a sample for its upright picture, since a pack does not keep other sizes."""
        manifest, images = self._reader.manifest, self._spec.images
        found = manifest.ragged_column(label.name).read_sample(sample_id)
        if not len(found) or (drawn := manifest.lookup_drawn_size(sample_id)) is None:
            return found
        name = label.image or next(iter(images))
        file = self._read_encoded_images(sample_id)[list(images).index(name)]
        return align_label_rows(found, label, drawn, read_geometry(file, images[name]))

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        del bad_ids
        for shard in range(self.whole_shards.files):
            path = self._shards.build_path(shard)
            drop_from_page_cache(path)
            with path.open("rb") as file:
                yield compute_blob_checksums(iterate_shard_samples(file))

    def estimate_bytes(self) -> int:
        spec, manifest = self._spec, self._reader.manifest
        held = int(manifest.lookup_sample_bytes(np.arange(spec.samples)).sum())
        boxes = sum(len(manifest.ragged_column(name).numbers) for name, label in spec.labels.items() if label.is_ragged)
        extra = len(spec.images) * _EXTRA_IMAGE_BYTES + _EXTRA_SAMPLE_BYTES
        return held + spec.samples * extra + boxes * _BOX_TEXT_BYTES

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec, is_delivered = self._spec, self._reader.manifest.arrays is not None
        return {
            "source": {"kind": "tar", "path": str(pack_path)},
            **build_label_reading_settings(spec, "json:{}", is_delivered=is_delivered),
            **build_encoded_image_settings(spec, self._suffixes, is_delivered=is_delivered),
        }

    def close(self) -> None:
        self._png_threads.shutdown()
        self._reader.close()
        super().close()
