"""Encoded images, through the function by which a worker decodes them, with a worker's limit of memory."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final

import cv2
import numpy as np
import tifffile
from PIL import Image

from fuzz.mutations import INTERESTING
from fuzz.structures import repair_png
from fuzz.target import FuzzTarget, RunCase
from streamd.core.spec import ImageSpec, PixelType
from streamd.decode.decoders import BadImageError, decode_image
from streamd.decode.geometry import compute_random_crop_draws
from streamd.decode.sniff import detect_format
from streamd.limits import MAX_RAW_CHANNELS, MIB, ROW_DEADLINE_S, WORKER_DATA_BYTES

_GOLDEN: Final = Path(__file__).resolve().parents[2] / "tests" / "decode" / "golden"
_SPECS: Final = (
    ImageSpec(24, 32, 3),
    ImageSpec(9, 13, 3, "crop"),
    ImageSpec(40, 7, 1, "pad"),
    ImageSpec(16, 16, 3, "random_crop"),
    ImageSpec(64, 64, 1, "stretch", exact=True),
    ImageSpec(24, 32, 1, "random_crop", exact=True),
)
_SEEN_LEVELS: Final = 16
_FOUND_FORM: Final = re.compile(r"it holds (\d+) channels? of (\w+),")
_FORMATS: Final = {  # the name of each target: Pillow's name
    "jpeg": "JPEG",
    "png": "PNG",
    "gif": "GIF",
    "bmp": "BMP",
    "tiff": "TIFF",
    "webp": "WEBP",
    "avif": "AVIF",
    "pnm": "PPM",
}
_TIFF_HEAD: Final = re.compile(rb"II\*\0|MM\0\*")
_MAX_ENTRIES: Final = 100  # of a directory; the seeds have fewer than twenty
_TIFF_TAGS: Final = (
    *(254, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 317, 320, 322, 323, 324, 325, 338, 339, 347),
    *(512, 513, 529, 530, 532, 700, 33432, 34665, 34675, 37724),
)


def _draw_picture(size: tuple[int, int], mode: str) -> Image.Image:
    """Returns a small picture of noise over a slope, which no encoder reduces to nothing."""
    rng = np.random.default_rng(size[0])
    levels = (np.arange(size[1])[:, None, None] * 5 + rng.integers(0, 60, (size[1], size[0], 3))) % 256
    return Image.fromarray(levels.astype(np.uint8)).convert(mode)


def _encode_pictures(name: str) -> Iterator[bytes]:
    """Yields files of a format in the modes and with the options that lead to other code."""
    modes: dict[str, tuple[str, ...]] = {
        "JPEG": ("RGB", "L", "CMYK"),
        "PNG": ("RGB", "RGBA", "LA", "P", "1", "I;16"),
        "GIF": ("P", "L"),
        "BMP": ("RGB", "RGBA", "P", "1"),
        "TIFF": ("RGB", "RGBA", "L", "P", "1", "CMYK", "F", "I;16", "LAB", "YCbCr"),
        "WEBP": ("RGB", "RGBA"),
        "AVIF": ("RGB", "RGBA", "L"),
        "PPM": ("RGB", "L", "1", "I;16", "F"),
    }
    options: dict[str, tuple[dict[str, Any], ...]] = {
        "JPEG": ({}, {"progressive": True}, {"restart_marker_blocks": 1, "subsampling": 0}, {"exif": _make_exif()}),
        "PNG": ({}, {"exif": _make_exif()}),
        "TIFF": ({}, *({"compression": each} for each in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"))),
        "WEBP": ({}, {"lossless": True}, {"exif": _make_exif()}),
    }
    for mode in modes[name]:
        for option in options.get(name, ({},)):
            file = io.BytesIO()
            try:
                picture = _draw_picture((29, 21), "L" if mode in {"I;16", "F"} else mode)
                (picture.convert(mode) if picture.mode != mode else picture).save(file, name, **option)
            except (OSError, ValueError, KeyError):  # a mode that this compression or format cannot hold
                continue
            yield file.getvalue()


def _make_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


@cache
def list_image_seeds(name: str) -> list[bytes]:
    """Returns small files of a format, by Pillow's name: some made here, and those by which pixels are tested."""
    golden = [path.read_bytes() for path in sorted(_GOLDEN.iterdir())]
    return [*_encode_pictures(name), *(data for data in golden if detect_format(data) == name)]


def edit_tiff(rng: Random, data: bytes) -> bytes:
    """Changes an entry of the first directory of a TIFF, or of EXIF data, which are one: tag, type, count or value."""
    found = _TIFF_HEAD.search(data)
    if found is None:
        return data
    order = ">" if found[0].startswith(b"M") else "<"
    start = found.start() + int(struct.unpack_from(f"{order}I", data + bytes(8), found.start() + 4)[0])
    count = int(struct.unpack_from(f"{order}H", data + bytes(2), min(start, len(data)))[0])
    if not 0 < count < _MAX_ENTRIES or start + 2 + 12 * count > len(data):
        return data
    entry, at = struct.Struct(f"{order}HHII"), start + 2 + 12 * rng.randrange(count)
    tag, kind, length, value = entry.unpack_from(data, at)
    match rng.randrange(5):
        case 0:
            tag = rng.choice(_TIFF_TAGS)
        case 1:
            kind = rng.randrange(20)
        case 2:
            length = rng.choice(INTERESTING) & 0xFFFFFFFF
        case 3:
            value = rng.choice((rng.choice(INTERESTING) & 0xFFFFFFFF, rng.randrange(len(data)), rng.randrange(70)))
        case _:
            value ^= 1 << rng.randrange(32)
    return data[:at] + entry.pack(tag, kind, length, value) + data[at + entry.size :]


@contextmanager
def _open_decoder() -> Iterator[RunCase]:
    rows = [np.zeros(spec.shape, np.uint8) for spec in _SPECS]
    draws = [compute_random_crop_draws(spec, 3, 0, np.arange(_SEEN_LEVELS)) for spec in _SPECS]

    def run_image(data: bytes) -> str:
        digest = zlib.crc32(data)
        number = digest % len(_SPECS)
        decode_image(data, rows[number], _SPECS[number], draws[number][digest % _SEEN_LEVELS])
        return f"decoded {_SPECS[number].resize} {_SPECS[number].channels}"

    yield run_image


def _make_seed_lister(name: str) -> Callable[[], list[bytes]]:
    return lambda: list_image_seeds(name)


_RAW_TYPES: Final[dict[str, PixelType]] = {"uint8": "uint8", "uint16": "uint16", "float32": "float32"}
_RAW_FORMS: Final = tuple((channels, dtype) for dtype in _RAW_TYPES.values() for channels in (1, 2, 3, 4, 5))


@cache
def list_raw_seeds(name: str) -> list[bytes]:
    """Returns small files of numbers in every depth: `png`, `tiff` or `npy`."""
    rng = np.random.default_rng(7)
    seeds = []
    for channels, dtype in _RAW_FORMS:
        numbers = (rng.random((13, 17, channels)) * 250).astype(dtype)
        file = io.BytesIO()
        if name == "npy":
            np.save(file, numbers)
            seeds.append(file.getvalue())
        elif name == "tiff":
            seeds.extend(_encode_raw_tiffs(numbers))
    if name == "png":
        deep = rng.integers(0, 65536, (13, 17)).astype(np.uint16)
        for picture in (Image.fromarray(deep), *(_draw_picture((17, 13), mode) for mode in ("L", "LA", "RGB", "RGBA"))):
            file = io.BytesIO()
            picture.save(file, "PNG")
            seeds.append(file.getvalue())
        encoded, colours = cv2.imencode(".png", rng.integers(0, 65536, (13, 17, 4)).astype(np.uint16))
        seeds += [colours.tobytes()] if encoded else []
    return seeds


def _encode_raw_tiffs(numbers: Any) -> Iterator[bytes]:
    options: tuple[dict[str, Any], ...] = (
        {"rowsperstrip": 4},
        {"tile": (16, 16), "compression": "lzw", "predictor": True},
        {"rowsperstrip": 5, "compression": "zlib", "bigtiff": True},
        {"compression": "packbits", "byteorder": ">"},
    )
    for option in options:
        file = io.BytesIO()
        shape: dict[str, Any] = {} if numbers.shape[2] == 1 else {"planarconfig": "contig"}
        stored = numbers if shape else numbers[:, :, 0]
        tifffile.imwrite(file, stored, photometric="minisblack", metadata=None, **shape, **option)
        yield file.getvalue()


@contextmanager
def _open_raw_reader() -> Iterator[RunCase]:
    def run_numbers(data: bytes) -> str:
        channels, dtype = _RAW_FORMS[zlib.crc32(data) % len(_RAW_FORMS)]
        image = ImageSpec(9, 13, channels, ("stretch", "crop", "pad")[len(data) % 3], mode="raw", dtype=dtype)
        row = np.zeros(image.shape, dtype)
        # The form that the file has, so that most cases get beyond its check: it is the message that says it.
        try:
            decode_image(data, row, image)
        except BadImageError as error:
            found = _FOUND_FORM.match(str(error))
            if found is None or found[2] not in _RAW_TYPES or int(found[1]) > MAX_RAW_CHANNELS:
                raise
            image = replace(image, channels=int(found[1]), dtype=_RAW_TYPES[found[2]])
            decode_image(data, np.zeros(image.shape, image.dtype), image)
        return f"read {image.dtype} {min(image.channels, 6)}"

    yield run_numbers


_RAW_TARGETS: Final = {
    f"raw_{name}": FuzzTarget(
        f"raw_{name}",
        f"numbers of {name} files, for mode raw",
        partial(list_raw_seeds, name),
        _open_raw_reader,
        (BadImageError,),
        edit_tiff if name == "tiff" else None,
        repair_png if name == "png" else None,
        deadline_s=ROW_DEADLINE_S,
        data_bytes=WORKER_DATA_BYTES,
        growth_bytes=256 * MIB,
    )
    for name in ("png", "tiff", "npy")
}

TARGETS: Final = _RAW_TARGETS | {
    name: FuzzTarget(
        name,
        f"images of the format {pillow_name}",
        _make_seed_lister(pillow_name),
        _open_decoder,
        (BadImageError,),
        edit_tiff,
        repair_png if name == "png" else None,
        deadline_s=ROW_DEADLINE_S,
        data_bytes=WORKER_DATA_BYTES,
        growth_bytes=256 * MIB,
    )
    for name, pillow_name in _FORMATS.items()
}
