"""A process that reads and decodes as a worker does: `python -m streamd.check.reading TRACK`, a page's descriptor.

It is apart because a hostile image may crash a decoder; the page says at which one it was. Every line on its standard
input and output is one JSON value: it is told the streams, says `true`, and from then on answers every Group with what
it Saw. It ends with its input.
"""

from __future__ import annotations

import hashlib
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from io import BytesIO
from itertools import compress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from PIL import Image

from streamd.check.records import Fault, Group, Seen, Told
from streamd.decode import BadImageError, decode_into
from streamd.decode.content import format_of
from streamd.decode.orientation import SIDEWAYS, orientation_of
from streamd.decode.resize import Row, covering_size
from streamd.opened import CHANGED, Source, Unread
from streamd.spec import ImageSpec
from streamd.stores import Store
from streamd.tasks import BadSample, short_reason
from streamd.whereabouts import Phase, Track
from streamd.worker import confine_process, inherited_track, leave_out_of_memory

_DIGEST_BYTES: Final = 16
_ARRAY: Final = "NPY"  # in the place of a picture's format


def look(source: Source, group: Group, track: Track) -> Seen:
    """Reads and decodes the files of a group. Raises MemoryError, with the track at the file."""
    seen = Seen(group.stream, group.ids)
    track.at(0, 0, Phase.READING)
    if source.manifest.arrays is not None and source.store is not None:
        _gather(seen, source.store, source.spec.image)
        return seen
    blobs, seen.read_s = source.read_timed(np.array(group.ids, dtype=np.int64))
    row = np.empty(source.spec.image_shape, dtype=np.uint8)
    for place, (sample_id, early) in enumerate(zip(group.ids, blobs, strict=True)):
        track.at(0, place, Phase.READING)
        blob = source.read_one(sample_id) if early is Unread.LATER else early
        if isinstance(blob, BadSample):
            seen.faults.append(Fault(sample_id, blob.reason, "verdict" if blob.lasting else "retry"))
        elif blob is not None:
            track.at(0, place, Phase.DECODING)
            _decode(seen, sample_id, blob, row, source.spec.image)
    track.at(0, 0, Phase.ELSEWHERE)
    return seen


def _gather(seen: Seen, store: Store, image: ImageSpec) -> None:
    """Reads rows of arrays, of which nothing has to be decoded."""
    images = np.empty((len(seen.ids), *image.shape), dtype=np.uint8)
    started_s = time.monotonic()
    held = store.gather(np.array(seen.ids, dtype=np.int64), images)
    seen.read_s = time.monotonic() - started_s
    seen.faults += [Fault(sample_id, CHANGED, "retry") for sample_id in compress(seen.ids, ~held)]
    seen.digests += [_digest(row.data) for row in images[held]]
    if seen.digests:
        seen.formats[_ARRAY] = seen.sizes[f"{image.width}x{image.height}"] = len(seen.digests)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _decode(seen: Seen, sample_id: int, blob: bytes, row: Row, image: ImageSpec) -> None:
    started_s = time.monotonic()
    try:
        decode_into(blob, row, image)
    except BadImageError as error:
        seen.faults.append(Fault(sample_id, short_reason(error), "verdict"))
    else:
        seen.decode_s += time.monotonic() - started_s
        _note_picture(seen, blob, image)


def _note_picture(seen: Seen, blob: bytes, image: ImageSpec) -> None:
    seen.digests.append(_digest(blob))
    stored = _stored(blob)
    if stored is None:
        return
    name, height, width = stored
    size = f"{width}x{height}"
    seen.formats[name] = seen.formats.get(name, 0) + 1
    seen.sizes[size] = seen.sizes.get(size, 0) + 1
    covering = covering_size(height, width, image)
    seen.enlarged += covering[0] > height or covering[1] > width


def _stored(blob: bytes) -> tuple[str, int, int] | None:
    """Format, height and width of an image that was decoded, from its header; None when Pillow cannot tell."""
    try:
        name = format_of(blob)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata
            with Image.open(BytesIO(blob), formats=(name,)) as picture:
                exif = picture.info.get("exif")  # as far as it comes before the pixels
                width, height = picture.size
        turned = isinstance(exif, bytes) and orientation_of(exif) >= SIDEWAYS
    except (BadImageError, OSError, ValueError, SyntaxError, struct.error):
        return None
    return (name, width, height) if turned else (name, height, width)


def _lines() -> Iterator[bytes]:
    yield from iter(sys.stdin.buffer.readline, b"")


def _say(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def serve(track: Track) -> None:
    """Answers groups until the input ends."""
    lines = _lines()
    streams = msgspec.json.decode(next(lines), type=list[Told])
    sources = [Source.open(told.spec, Path(told.manifest)) for told in streams]
    _say(True)
    for line in lines:
        group = msgspec.json.decode(line, type=Group)
        try:
            seen = look(sources[group.stream], group, track)
        except MemoryError:
            leave_out_of_memory()
        _say(seen)


def main() -> None:
    """One reading process, confined as a worker is."""
    confine_process()
    serve(inherited_track(sys.argv[1]))


if __name__ == "__main__":
    main()
