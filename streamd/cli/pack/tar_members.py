"""The members of a pack of kind tar: their names, their headers, and images as encoded files. Pure.

Headers are made here since the library would take ten times as long.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final

import cv2
import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec, StreamSpec
from streamd.dataset.manifest.columns import choose_unused_key
from streamd.dataset.manifest.manifest import Manifest
from streamd.decode.sniff import detect_format
from streamd.errors import PackError

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
_FILE_MODE: Final = 0o644
_SIZE_FIELD: Final = slice(124, 135)
_CHECKSUM_FIELD: Final = slice(148, 156)

Image = npt.NDArray[Any]


def choose_image_suffixes(spec: StreamSpec, manifest: Manifest) -> dict[str, str]:
    """Returns the suffix of each of several images: its name, with the ending that all of its files have, if they have.

    Shards name the images of every sample alike, while the source may have JPEGs beside PNGs.
    """
    suffixes: dict[str, str] = {}
    for name, image in spec.images.items():
        ending = choose_encoded_suffix(image) if manifest.arrays is not None else _find_common_ending(manifest, name)
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


def choose_encoded_suffix(image: ImageSpec) -> str:
    """Returns the ending of the files that `encode_image` makes of rows of an array."""
    return "npy" if image.mode == "raw" else "png"


def choose_format_suffix(blob: bytes) -> str:
    """Returns the suffix of an encoded image, by its content."""
    return _FORMAT_SUFFIXES[detect_format(blob)]


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
