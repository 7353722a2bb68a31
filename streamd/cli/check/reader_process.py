"""A process that reads and decodes as a worker does: `python -m streamd.cli.check.reader_process TRACK`.

It is apart because a hostile image may crash a decoder; the page, whose descriptor is TRACK, says at which one it
was. Every line on its standard
input and output is one JSON value: it is told the streams, says `true`, or why one cannot be read, and from then on
answers every Group with what it Saw. It ends with its input.

What a stream's transform has against a sample, as check finds it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import time
import warnings
from io import BytesIO
from itertools import compress
from typing import BinaryIO, Final, cast

import msgspec
import numpy as np
from PIL import Image

from streamd.cli.check.reader_messages import Fault, Group, Seen, Told
from streamd.core.sample_rng import build_generators
from streamd.core.spec import ImageSpec
from streamd.dataset.arrays.store import SampleStore
from streamd.dataset.hdf5.library_store import Hdf5Store
from streamd.decode.decoders import BadImageError, decode_image
from streamd.decode.exif import SIDEWAYS, parse_orientation
from streamd.decode.random_crop import CropDraw, compute_crop_draws
from streamd.decode.resize import Row, compute_covering_size
from streamd.decode.sniff import detect_format
from streamd.errors import ConfigError, format_open_failure
from streamd.ipc.parent_death import die_with_parent
from streamd.ipc.progress_page import ProgressPage, WorkerPhase
from streamd.ipc.worker_messages import OpenStream, UnfilledRow, format_reason
from streamd.worker.main import apply_worker_limits, exit_out_of_memory, open_inherited_page
from streamd.worker.stream_reader import FILE_CHANGED, StreamReader, UnreadFile, open_reader
from streamd.worker.transforms.call import RNG_PURPOSE, FailedTransformError, UnfitTransformError

_DIGEST_BYTES: Final = 16
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_streams: Final = msgspec.json.Decoder(list[Told])
_group: Final = msgspec.json.Decoder(Group)


def objection(source: StreamReader, sample_id: int, row: Row) -> Fault | None:
    """Transforms a sample as a worker does in the first epoch, in place; why none of it can be used, if so."""
    if source.transform is None:
        return None
    ids = np.array([sample_id], np.int64)
    specs = source.spec.labels.items()
    labels = {name: source.manifest.gather_label(name, ids).astype(spec.dtype) for name, spec in specs}
    (rng,) = build_generators(source.spec.seed, 0, ids, RNG_PURPOSE)
    try:
        source.transform.call.transform_row(row, labels, 0, rng)
    except FailedTransformError as error:
        return Fault(sample_id, format_reason(error), "transform")
    except UnfitTransformError as error:
        return Fault(sample_id, format_reason(error), "stop")
    return None


def look(source: StreamReader, group: Group, track: ProgressPage) -> Seen:
    """Reads and decodes the files of a group. Raises MemoryError, with the track at the file."""
    seen = Seen(group.stream, group.ids)
    track.write_row(0, 0, WorkerPhase.READING)
    if source.manifest.arrays is not None and source.store is not None:
        _gather(seen, source, source.store, track)
        return seen
    blobs, seen.read_s = source.read_files_timed(np.array(group.ids, dtype=np.int64))
    row = np.empty(source.spec.image_shape, dtype=np.uint8)
    drawn = compute_crop_draws(source.spec.image, source.spec.seed, 0, np.array(group.ids, dtype=np.int64))
    for place, (sample_id, early) in enumerate(zip(group.ids, blobs, strict=True)):
        track.write_row(0, place, WorkerPhase.READING)
        blob = source.read_sample(sample_id) if early is UnreadFile.LATER else early
        if isinstance(blob, UnfilledRow):
            seen.faults.append(Fault(sample_id, blob.reason, "verdict" if blob.lasting else "retry"))
        elif blob is not None:
            track.write_row(0, place, WorkerPhase.DECODING)
            if _decode(seen, sample_id, blob, row, source.spec.image, drawn[place]):
                digest = _digest(blob)
                track.write_row(0, place, WorkerPhase.TRANSFORMING)
                if _transform(seen, sample_id, row, source):
                    seen.digests.append(digest)
                    _note_picture(seen, blob, source.spec.image)
    track.write_row(0, 0, WorkerPhase.IDLE)
    return seen


def _gather(seen: Seen, source: StreamReader, store: SampleStore, track: ProgressPage) -> None:
    """Reads rows of arrays, of which nothing has to be decoded."""
    image = source.spec.image
    images = np.empty((len(seen.ids), *image.shape), dtype=np.uint8)
    started_s = time.monotonic()
    chunks, unpack_s = _unpacked(store)
    held = store.gather_rows(np.array(seen.ids, dtype=np.int64), images)
    seen.read_s = time.monotonic() - started_s
    seen.unpacked, seen.unpack_s = _unpacked(store)[0] - chunks, _unpacked(store)[1] - unpack_s
    for sample_id in compress(seen.ids, ~held):
        fault = store.find_fault(sample_id)
        seen.faults.append(Fault(sample_id, fault or FILE_CHANGED, "verdict" if fault else "retry"))
    for place in np.flatnonzero(held).tolist():
        digest = _digest(images[place].data)
        track.write_row(0, place, WorkerPhase.TRANSFORMING)
        if _transform(seen, seen.ids[place], images[place], source):
            seen.digests.append(digest)
    track.write_row(0, 0, WorkerPhase.IDLE)
    if seen.digests:
        file, _, _ = source.manifest.file_name(seen.ids[0]).rpartition(b"[")
        kind = file.rpartition(b".")[2].decode(errors="replace").upper()  # in the place of a picture's format
        seen.formats[kind] = seen.sizes[f"{image.width}x{image.height}"] = len(seen.digests)


def _unpacked(store: SampleStore) -> tuple[int, float]:
    """How many chunks a store has decompressed so far, and the seconds that it took."""
    return store.unpack_totals if isinstance(store, Hdf5Store) else (0, 0.0)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _decode(seen: Seen, sample_id: int, blob: bytes, row: Row, image: ImageSpec, draw: CropDraw | None) -> bool:
    """Whether a file becomes an image."""
    started_s = time.monotonic()
    try:
        decode_image(blob, row, image, draw)
    except BadImageError as error:
        seen.faults.append(Fault(sample_id, format_reason(error), "verdict"))
        return False
    seen.decode_s += time.monotonic() - started_s
    return True


def _transform(seen: Seen, sample_id: int, row: Row, source: StreamReader) -> bool:
    """Whether the stream's transform can use a sample."""
    started_s = time.monotonic()
    fault = objection(source, sample_id, row)
    if fault is not None:
        seen.faults.append(fault)
        return False
    seen.decode_s += time.monotonic() - started_s
    return True


def _note_picture(seen: Seen, blob: bytes, image: ImageSpec) -> None:
    stored = _stored(blob)
    if stored is None:
        return
    name, height, width = stored
    size = f"{width}x{height}"
    seen.formats[name] = seen.formats.get(name, 0) + 1
    seen.sizes[size] = seen.sizes.get(size, 0) + 1
    covering = compute_covering_size(height, width, image)
    seen.enlarged += covering[0] > height or covering[1] > width


def _stored(blob: bytes) -> tuple[str, int, int] | None:
    """Format, height and width of an image that was decoded, from its header; None when Pillow cannot tell."""
    try:
        name = detect_format(blob)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata
            with Image.open(BytesIO(blob), formats=(name,)) as picture:
                exif = picture.info.get("exif")  # as far as it comes before the pixels
                width, height = picture.size
        turned = isinstance(exif, bytes) and parse_orientation(exif) >= SIDEWAYS
    except (BadImageError, OSError, ValueError, SyntaxError, struct.error):
        return None
    return (name, width, height) if turned else (name, height, width)


def serve(track: ProgressPage, lines: BinaryIO, answers: BinaryIO) -> None:
    """Answers groups until the input ends."""

    def say(value: object) -> None:
        answers.write(msgspec.json.encode(value) + b"\n")
        answers.flush()

    streams = _streams.decode(next(lines))
    try:
        sources = [_opened(number, told, track) for number, told in enumerate(streams)]
    except ConfigError as error:
        say(str(error))
        return
    say(True)
    for line in lines:
        group = _group.decode(line)
        try:
            seen = look(sources[group.stream], group, track)
        except MemoryError:
            exit_out_of_memory()
        say(seen)


def _opened(number: int, told: Told, track: ProgressPage) -> StreamReader:
    try:
        return open_reader(OpenStream(number, told.manifest, told.spec, None, told.transform), track)[0]
    except ConfigError as error:
        raise ConfigError(format_open_failure(told.spec.name, str(error))) from error


def _set_apart(descriptor: int, mode: str, instead: int) -> BinaryIO:
    """The file behind a standard descriptor, which a transform that prints or asks finds to be `instead`."""
    file = cast("BinaryIO", os.fdopen(os.dup(descriptor), mode))
    os.dup2(instead, descriptor)
    return file


def main() -> None:
    """One reading process, confined as a worker is."""
    die_with_parent(os.getppid())  # a transform of the user's may never return
    apply_worker_limits()
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    serve(open_inherited_page(sys.argv[1]), _set_apart(_STDIN, "rb", nothing), _set_apart(_STDOUT, "wb", _STDERR))


if __name__ == "__main__":
    main()
