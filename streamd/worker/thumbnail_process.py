"""Draws bad samples as far as they can be read, in a process of its own: `python -m streamd.worker.thumbnail_process`.

It reads a ThumbnailRequest as JSON from standard input. For each sample it writes LENGTH_PREFIX, and a JPEG of that
many bytes.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
from PIL import Image, ImageFile, ImageOps

from streamd.core.display import build_shown_pixels
from streamd.decode.resize import build_pil_image
from streamd.decode.sniff import detect_format
from streamd.errors import StreamdError
from streamd.ipc.inherited_state import die_with_parent
from streamd.ipc.worker_messages import LENGTH_PREFIX, ThumbnailRequest
from streamd.worker.main import apply_worker_limits
from streamd.worker.stream_reader import StreamReader

_LONGEST: Final = 160  # pixels of a thumbnail's longer side
_QUALITY: Final = 80


_request_decoder: Final = msgspec.json.Decoder(ThumbnailRequest)


def draw_thumbnails(request: ThumbnailRequest) -> Iterator[bytes]:
    """Yields a JPEG for each sample, empty where nothing can be seen. Raises as StreamReader.open."""
    source = StreamReader.open(request.spec, Path(request.manifest))
    for sample_id in request.ids:
        try:
            picture = _draw_thumbnail(source, sample_id)
        except Exception:  # noqa: BLE001 - a damaged file may raise anything; its thumbnail is empty
            picture = b""
        yield picture
    source.close()


def _draw_thumbnail(reader: StreamReader, sample_id: int) -> bytes:
    """Returns the JPEG of as much of a sample as is sound; empty if it is gone, or is no longer the listed one."""
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
        encoded = Image.open(BytesIO(data), formats=(detect_format(data),))
        # Decodes a large JPEG at a reduced scale, still at least twice as large as the thumbnail.
        encoded.draft("RGB", (2 * _LONGEST, 2 * _LONGEST))
        encoded.load()
        picture = ImageOps.exif_transpose(encoded)
    picture.thumbnail((_LONGEST, _LONGEST))
    file = BytesIO()
    picture.convert("RGB").save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def answer_request(request: bytes, answers: BinaryIO) -> None:
    """Writes the thumbnails that `request` names to `answers`."""
    for picture in draw_thumbnails(_request_decoder.decode(request)):
        # Flushed one by one: a later sample may crash this process, and the finished thumbnails must not be lost.
        answers.write(LENGTH_PREFIX.pack(len(picture)) + picture)
        answers.flush()


def main() -> None:
    """Answers the request on standard input, under the limits of a worker."""
    die_with_parent(os.getppid())
    apply_worker_limits()
    warnings.simplefilter("ignore")  # they concern damaged files, which are expected here
    # Shows what is left of a truncated file. Workers never set this: it would invent pixels of batches.
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    with suppress(StreamdError, OSError):  # the list was replaced or its folder is gone: nothing can be drawn
        answer_request(sys.stdin.buffer.read(), sys.stdout.buffer)


if __name__ == "__main__":
    main()
