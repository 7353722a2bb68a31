"""A process that draws bad samples as far as they can be read: `python -m streamd.worker.thumbnail_process`.

Its input is what is Asked, as JSON; for each sample it answers a LENGTH and a JPEG of so many bytes.
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

from streamd.decode.pil_image import picture_of
from streamd.decode.sniff import format_of
from streamd.errors import StreamdError
from streamd.ipc.parent_death import end_with
from streamd.ipc.thumbnail_messages import LENGTH, Asked
from streamd.worker.main import confine_process
from streamd.worker.stream_reader import Source

_LONGEST: Final = 160  # pixels
_QUALITY: Final = 80


_asked: Final = msgspec.json.Decoder(Asked)


def thumbnails(asked: Asked) -> Iterator[bytes]:
    """A JPEG for each sample, empty where nothing can be seen. Raises as Source.open."""
    source = Source.open(asked.spec, Path(asked.manifest))
    for sample_id in asked.ids:
        yield _thumbnail(source, sample_id)
    source.close()


def _thumbnail(source: Source, sample_id: int) -> bytes:
    try:
        picture = _stored(source, sample_id) if source.manifest.arrays is not None else _decoded(source, sample_id)
        if picture is None:
            return b""
        picture.thumbnail((_LONGEST, _LONGEST))
        file = BytesIO()
        picture.convert("RGB").save(file, "JPEG", quality=_QUALITY)
    except Exception:  # noqa: BLE001 - the file is damaged, and there is no telling how; nothing is to be seen, then
        return b""
    return file.getvalue()


def _stored(source: Source, sample_id: int) -> Image.Image | None:
    """A row of an array."""
    image = np.empty((1, *source.spec.image_shape), np.uint8)
    if source.store is None or not source.store.gather(np.array([sample_id]), image)[0]:
        return None
    return picture_of(image[0])


def _decoded(source: Source, sample_id: int) -> Image.Image | None:
    """A file that is still the one listed, as far as its pixels go."""
    data = source.read_one(sample_id)
    if not isinstance(data, bytes):
        return None
    picture = Image.open(BytesIO(data), formats=(format_of(data),))
    picture.draft("RGB", (2 * _LONGEST, 2 * _LONGEST))
    picture.load()
    return ImageOps.exif_transpose(picture)


def draw(asked: bytes, answers: BinaryIO) -> None:
    """Answers what is asked."""
    for picture in thumbnails(_asked.decode(asked)):
        answers.write(LENGTH.pack(len(picture)) + picture)
        answers.flush()


def main() -> None:
    """Confined as a worker is."""
    end_with(os.getppid())
    confine_process()
    warnings.simplefilter("ignore")  # about damaged files
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    with suppress(StreamdError, OSError):  # the list is another by now, or its folder is gone: nothing is to be seen
        draw(sys.stdin.buffer.read(), sys.stdout.buffer)


if __name__ == "__main__":
    main()
