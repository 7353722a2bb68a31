"""Finds whether all pictures of some streams have one size. Reads their heads alone."""

from __future__ import annotations

import io
import os
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import BinaryIO, Final

from PIL import Image

from streamd.core.host import open_regular_descriptor
from streamd.dataset.manifest.types import ScannedSamples
from streamd.decode.geometry import SIDEWAYS
from streamd.decode.pillow import parse_orientation
from streamd.decode.resize import BadImageError
from streamd.decode.sniff import detect_format

_THREADS: Final = 16  # a network disk serves many reads at once
_BLOCK_PICTURES: Final = 512  # read between two reports
_HEAD_BYTES: Final = 1024  # by which the format of a file is detected
_BUFFER_BYTES: Final = 8192  # read at a time: most heads are no longer
_SHARD_HEAD_BYTES: Final = 1 << 16
_GREY_MODES: Final = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F"})


@dataclass(frozen=True, slots=True)
class PictureHead:
    """The size and kind of one picture, turned upright."""

    height: int
    width: int
    is_grey: bool


ReadHead = Callable[[], PictureHead | None]


@dataclass(frozen=True, slots=True)
class SizeFindings:
    """The common `size` (height, width) of all pictures; None where two differ or none can be read.

    `seen` counts the pictures that were tried: all of them, or as many as it took to find two that differ.
    """

    size: tuple[int, int] | None
    seen: int
    is_grey: bool
    unreadable: int = 0


def find_common_size(samples: Iterable[ScannedSamples], progress: Callable[[int], None]) -> SizeFindings:
    """Reads heads of pictures until two differ in size. Calls `progress` with the number of each few.

    Ignores pictures that cannot be read, which are bad samples when they are served. Raises OSError for files that
    cannot be opened.
    """
    sizes: set[tuple[int, int]] = set()
    seen = unreadable = 0
    is_grey = True
    # The pool is closed before the stack, so shards stay open until no thread reads from them.
    with ExitStack() as stack, ThreadPoolExecutor(_THREADS, "streamd-sizes") as pool:
        pictures = (each for scanned in samples for each in _iterate_pictures(scanned, stack))
        # The first block is small, since data of several sizes mostly show them within a few pictures.
        while len(sizes) < 2 and (block := list(islice(pictures, _BLOCK_PICTURES if seen else _THREADS))):  # noqa: PLR2004 - two that differ
            heads = [*pool.map(lambda read_head: read_head(), block)]
            readable = [head for head in heads if head is not None]
            sizes.update((head.height, head.width) for head in readable)
            is_grey = is_grey and all(head.is_grey for head in readable)
            seen, unreadable = seen + len(heads), unreadable + len(heads) - len(readable)
            progress(len(heads))
    return SizeFindings(sizes.pop() if len(sizes) == 1 else None, seen, is_grey and seen > unreadable, unreadable)


def _iterate_pictures(scanned: ScannedSamples, stack: ExitStack) -> Iterator[ReadHead]:
    """Yields a function for each picture that reads its head; shards stay open until the stack closes."""
    if scanned.shards is None:
        root = os.fsencode(scanned.root)
        for name in scanned.files:
            yield partial(_read_file_head, os.path.join(root, name))  # noqa: PTH118 - names are bytes, which pathlib does not take
        return
    shard_paths = [os.path.join(os.fsencode(scanned.root), name) for name in scanned.shards.names]  # noqa: PTH118 - as above
    opened = -1
    descriptor = -1
    places = zip(scanned.extra["shard"].tolist(), scanned.extra["offset"].tolist(), scanned.sizes.tolist(), strict=True)
    for number, offset, size in places:
        if number != opened:
            descriptor, opened = open_regular_descriptor(shard_paths[number]), number
            stack.callback(os.close, descriptor)
        yield partial(_read_shard_head, descriptor, offset, size)


def _read_file_head(path: bytes) -> PictureHead | None:
    with os.fdopen(open_regular_descriptor(path), "rb", _BUFFER_BYTES) as file:
        return read_picture_head(file)


def _read_shard_head(descriptor: int, offset: int, size: int) -> PictureHead | None:
    """Reads the head of a picture in a shard; reads the whole picture only if its beginning is not enough."""
    for length in dict.fromkeys((min(size, _SHARD_HEAD_BYTES), size)):
        head = read_picture_head(io.BytesIO(os.pread(descriptor, length, offset)))
        if head is not None:
            return head
    return None


def read_picture_head(file: BinaryIO) -> PictureHead | None:
    """Returns the size and kind of a picture without decoding it; None if it is no picture, or is damaged."""
    try:
        name = detect_format(file.read(_HEAD_BYTES))
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata
            with Image.open(file, formats=(name,)) as picture:
                exif = picture.info.get("exif")  # EXIF data after the pixels are not read
                width, height = picture.size
                is_grey = picture.mode in _GREY_MODES
        turned = isinstance(exif, bytes) and parse_orientation(exif) >= SIDEWAYS
    except (BadImageError, OSError, ValueError, SyntaxError, EOFError, struct.error):
        return None
    return PictureHead(width, height, is_grey) if turned else PictureHead(height, width, is_grey)
