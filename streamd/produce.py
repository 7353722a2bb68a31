"""One task: rows gathered from a store, or files read in one thread hop and decoded into them; labels beside them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

import numpy as np

from streamd.confined import UnfitFileError, read_file
from streamd.decode import BadImageError, decode_into
from streamd.decode.identity import pixel_id
from streamd.errors import ConfigError
from streamd.layout import Layout, layout
from streamd.limits import READ_AHEAD_BYTES
from streamd.manifest import Manifest
from streamd.plan import PAD_ID, Ids
from streamd.spec import PixelId, StreamSpec, identity
from streamd.stores import Mask, Store
from streamd.stores.cache import DecodedCache
from streamd.stores.cachefile import UnfitCacheError
from streamd.stores.npy import ArrayStore
from streamd.tasks import BadSample, OpenStream, Task, short_reason
from streamd.whereabouts import Phase, Track

_LASTING_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR})

_QUICK_FILE_S: Final = 50e-6  # a read from the page cache takes a fifth of this; the fastest disk, twice as long
_QUICK_GROUPS: Final = 8  # in a row, before reading ahead is given up


CHANGED: Final = "its file has changed since it was listed; restart with --rescan to list it anew"


class Unread(Enum):
    """In the place of a file's bytes."""

    LATER = "read it right before its row is decoded, if the store does not fill it"


Blob = bytes | BadSample | Unread | None


@dataclass(frozen=True, slots=True)
class Source:
    """A stream as a worker sees it: its manifest, its root, its spec, and what need not be decoded any more."""

    spec: StreamSpec
    manifest: Manifest
    root: int
    store: Store | None = None
    cache: DecodedCache | None = None  # the store, if it takes what is decoded
    _layouts: dict[int, Layout] = field(default_factory=dict)

    @staticmethod
    def open(spec: StreamSpec, manifest_path: Path) -> Source:
        """Raises ConfigError when the manifest is damaged, or not the daemon's, OSError when the root is gone.

        Files that hold arrays are opened here, and must be those that were listed.
        """
        manifest = Manifest.open(manifest_path)
        if manifest.content_id != spec.content_id:
            raise ConfigError(
                f"{str(manifest_path)!r} was listed anew by another streamd since this one began: restart this one, or "
                "give each a state directory of its own"
            )
        root = os.open(manifest.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            store = None if manifest.arrays is None else ArrayStore(manifest, manifest.arrays, root)
        except BaseException:
            os.close(root)
            raise
        return Source(spec, manifest, root, store)

    def layout(self, rows: int) -> Layout:
        """Of a batch of `rows`."""
        if rows not in self._layouts:
            self._layouts[rows] = layout(self.spec, rows)
        return self._layouts[rows]

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        os.close(self.root)
        self.manifest.close()

    @property
    def pixel_id(self) -> PixelId:
        """The identity of the pixels: of what decoders make here, or of those that are stored as they are."""
        if self.manifest.arrays is not None:
            return PixelId(identity("streamd stored pixels 1", *self.spec.image_shape))
        return pixel_id(self.spec.image)

    def read_timed(self, ids: Ids) -> tuple[list[Blob], float]:
        """The files of `ids`, and the seconds that reading them took."""
        started_s = time.monotonic()
        blobs = self.read(ids)
        return blobs, time.monotonic() - started_s

    def read(self, ids: Ids) -> list[Blob]:
        """The files of `ids` but for what a store holds, up to READ_AHEAD_BYTES; None for rows that hold no sample."""
        if self.manifest.arrays is not None:  # the store holds them all until a file changes
            return [None if each == PAD_ID else BadSample(each, CHANGED, lasting=False) for each in ids.tolist()]
        sizes, mtimes_ns = self.manifest.sizes[ids], self.manifest.mtimes_ns[ids]
        lacking = self.lacking(ids)
        fits = lacking & (np.cumsum(np.where(lacking, sizes, 0)) <= READ_AHEAD_BYTES)
        rows = zip(ids.tolist(), sizes.tolist(), mtimes_ns.tolist(), fits.tolist(), strict=True)
        return [
            None if sample_id == PAD_ID else self._read(sample_id, size, mtime_ns) if fit else Unread.LATER
            for sample_id, size, mtime_ns, fit in rows
        ]

    @property
    def has_files(self) -> bool:
        """Whether samples are files, to be read and decoded."""
        return self.manifest.arrays is None

    def lacking(self, ids: Ids) -> Mask:
        """Which samples have to be read and decoded, (n,)."""
        present: Mask = ids != PAD_ID
        return present if self.store is None else np.greater(present, self.store.held(ids))

    def expect(self, ids: Ids) -> None:
        """A task of these comes soon: what a store holds of them, and has not in memory, may be read meanwhile."""
        if self.store is not None:
            self.store.expect(ids)

    def read_one(self, sample_id: int) -> bytes | BadSample:
        """The file of one sample, however large."""
        return self._read(sample_id, int(self.manifest.sizes[sample_id]), int(self.manifest.mtimes_ns[sample_id]))

    def _read(self, sample_id: int, size: int, mtime_ns: int) -> bytes | BadSample:
        try:
            return read_file(self.root, self.manifest.file(sample_id), size, mtime_ns)
        except UnfitFileError as error:
            return BadSample(sample_id, short_reason(error), lasting=True)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            return BadSample(sample_id, reason, lasting=error.errno in _LASTING_ERRORS)


def opened(command: OpenStream) -> tuple[Source, str]:
    """A stream as its daemon wants it, and why it does without its cache, if so. Raises as Source.open."""
    source = Source.open(command.spec, Path(command.manifest))
    if command.cache is None:
        return source, ""
    try:
        cache = DecodedCache.open(command.cache, source.spec, source.manifest, source.pixel_id)
    except UnfitCacheError as error:
        return source, f"nothing is kept: {error}"
    return replace(source, store=cache, cache=cache), ""


class ReadPace:
    """Whether files are read ahead in a thread, or right before they are decoded.

    Reading ahead hides a disk. Files that come from the page cache have nothing to hide, and the hop to a thread and
    back costs as much as a dozen of them, so after some groups that took no time the hop is left out; a single group
    that took time brings it back.
    """

    def __init__(self) -> None:
        self._quick_groups = 0

    @property
    def ahead(self) -> bool:
        """Whether the next group is to be read ahead."""
        return self._quick_groups < _QUICK_GROUPS

    def note(self, files: int, seconds: float) -> None:
        """Learns from a group that was read; one without files says nothing."""
        if files:
            self._quick_groups = self._quick_groups + 1 if seconds <= files * _QUICK_FILE_S else 0


class Filling:
    """The rows of one task, filled one by one so that the caller may look up in between.

    The track says at which row it is, and at none between two calls.
    """

    def __init__(self, source: Source, task: Task, memory: memoryview, track: Track) -> None:
        self._source = source
        self._task = task
        self._layout = source.layout(task.batch_rows)
        self._images = self._layout.images.view(memory)
        self._memory = memory
        self._track = track
        self._rows: list[int] = task.rows.tolist()
        self._run = _run(self._rows)
        self._gathered = [False] * len(self._rows)
        self._decoded: list[int] = []
        self.bad: list[BadSample] = []

    def gather(self) -> bool:
        """Copies what the stream's store holds into its rows; whether nothing is left to be read and decoded."""
        store, ids, rows = self._source.store, self._task.ids, self._rows
        if store is None:
            return False
        if self._run is not None:
            self._gathered = store.gather(ids, self._images[self._run]).tolist()
        else:
            parts = ((ids[place : place + 1], self._images[row : row + 1]) for place, row in enumerate(rows))
            self._gathered = [bool(store.gather(*part)[0]) for part in parts]
        whole = all(self._gathered)
        if whole:
            self._track.at(self._task.number, 0, Phase.ELSEWHERE)
        return whole

    def decode(self, blobs: Sequence[Blob], start: int, stop: int) -> None:
        """Decodes the rows from `start` to `stop` that were not gathered. MemoryError leaves the track at the row."""
        for place in range(start, min(stop, len(blobs))):
            blob = blobs[place]
            if not self._gathered[place]:
                self._fill(place, self._read(place) if blob is Unread.LATER else blob)
        self._track.at(self._task.number, stop, Phase.ELSEWHERE)

    def _read(self, place: int) -> bytes | BadSample:
        self._track.at(self._task.number, place, Phase.READING)
        return self._source.read_one(int(self._task.ids[place]))

    def _fill(self, place: int, blob: bytes | BadSample | None) -> None:
        row = self._images[self._rows[place]]
        if isinstance(blob, bytes):
            self._track.at(self._task.number, place, Phase.DECODING)
            try:
                decode_into(blob, row, self._source.spec.image)
            except BadImageError as error:
                self.bad.append(BadSample(int(self._task.ids[place]), short_reason(error), lasting=True))
            else:
                self._decoded.append(place)
        elif blob is None:
            row[...] = 0
        else:
            self.bad.append(blob)

    @property
    def gathered(self) -> int:
        """Rows that needed no decoding."""
        return sum(self._gathered)

    def keep(self, cache: DecodedCache) -> None:
        """Gives the cache what was decoded."""
        for place in self._decoded:
            cache.keep(int(self._task.ids[place]), self._images[self._rows[place]])

    def write_labels(self) -> None:
        """Writes ids, weights and labels of the task's rows; zeros where a row holds no sample."""
        ids, manifest = self._task.ids, self._source.manifest
        rows = self._task.rows if self._run is None else self._run
        absent = ids == PAD_ID
        whole = not absent.any()
        known = ids if whole else np.where(absent, 0, ids)
        self._layout.sample_ids.view(self._memory)[rows] = ids
        self._layout.weights.view(self._memory)[rows] = 1 if whole else ~absent
        for name, tensor in self._layout.labels.items():
            values = manifest.label_rows(name, known)
            if not whole:
                values[absent] = np.zeros((), values.dtype)  # of bytes, no bytes
            tensor.view(self._memory)[rows] = values


def _run(rows: Sequence[int]) -> slice | None:
    """Rows that follow each other, as nearly all tasks' do: written in one piece."""
    run = slice(rows[0], rows[0] + len(rows))
    return run if rows == list(range(run.start, run.stop)) else None
