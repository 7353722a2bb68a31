"""One task: files read in one thread hop, decoded into their rows of the slot, labels beside them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import numpy as np

from streamd.confined import UnfitFileError, read_file
from streamd.decode import BadImageError, decode_into
from streamd.errors import ConfigError
from streamd.layout import layout
from streamd.limits import READ_AHEAD_BYTES
from streamd.manifest import Manifest
from streamd.plan import PAD_ID, Ids
from streamd.spec import StreamSpec
from streamd.tasks import BadSample, Task, short_reason
from streamd.whereabouts import Phase, Track

_LASTING_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR})

_QUICK_FILE_S: Final = 50e-6  # a read from the page cache takes a fifth of this; the fastest disk, twice as long
_QUICK_GROUPS: Final = 8  # in a row, before reading ahead is given up


class Unread(Enum):
    """In the place of a file's bytes."""

    LATER = "read it right before its row is decoded"


Blob = bytes | BadSample | Unread | None


@dataclass(frozen=True, slots=True)
class Source:
    """A stream as a worker sees it: its manifest, its root, its spec."""

    spec: StreamSpec
    manifest: Manifest
    root: int

    @staticmethod
    def open(spec: StreamSpec, manifest_path: Path) -> Source:
        """Raises ConfigError when the manifest is damaged, or not the daemon's, OSError when the root is gone."""
        manifest = Manifest.open(manifest_path)
        if manifest.content_id != spec.content_id:
            raise ConfigError(
                f"{str(manifest_path)!r} was listed anew by another streamd since this one began: restart this one, or "
                "give each a state directory of its own"
            )
        return Source(spec, manifest, os.open(manifest.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def close(self) -> None:
        os.close(self.root)
        self.manifest.close()

    def read_timed(self, ids: Ids) -> tuple[list[Blob], float]:
        """The files of `ids`, and the seconds that reading them took."""
        started_s = time.monotonic()
        blobs = self.read(ids)
        return blobs, time.monotonic() - started_s

    def read(self, ids: Ids) -> list[Blob]:
        """The files of `ids`, up to READ_AHEAD_BYTES of them; None for rows that hold no sample."""
        sizes, mtimes_ns = self.manifest.sizes[ids], self.manifest.mtimes_ns[ids]
        fits = np.cumsum(np.where(ids == PAD_ID, 0, sizes)) <= READ_AHEAD_BYTES
        rows = zip(ids.tolist(), sizes.tolist(), mtimes_ns.tolist(), fits.tolist(), strict=True)
        return [
            None if sample_id == PAD_ID else self._read(sample_id, size, mtime_ns) if fit else Unread.LATER
            for sample_id, size, mtime_ns, fit in rows
        ]

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
        """Learns from a group that was read."""
        self._quick_groups = self._quick_groups + 1 if seconds <= files * _QUICK_FILE_S else 0


class Filling:
    """The rows of one task, filled one by one so that the caller may look up in between.

    The track says at which row it is, and at none between two calls.
    """

    def __init__(self, source: Source, task: Task, memory: memoryview, track: Track) -> None:
        self._source = source
        self._task = task
        self._layout = layout(source.spec, task.batch_rows)
        self._images = self._layout.images.view(memory)
        self._memory = memory
        self._track = track
        self._rows: list[int] = task.rows.tolist()
        self.bad: list[BadSample] = []

    def decode(self, blobs: Sequence[Blob], start: int, stop: int) -> None:
        """Decodes the task's rows from `start` to `stop`. Raises MemoryError, with the track at the row."""
        for place in range(start, min(stop, len(blobs))):
            blob = blobs[place]
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
        elif blob is None:
            row[...] = 0
        else:
            self.bad.append(blob)

    def write_labels(self) -> None:
        """Writes ids, weights and labels of the task's rows; zeros where a row holds no sample."""
        rows, ids = self._task.rows, self._task.ids
        present = ids != PAD_ID
        self._layout.sample_ids.view(self._memory)[rows] = ids
        self._layout.weights.view(self._memory)[rows] = present.astype(np.float32)
        known = np.where(present, ids, 0)
        for name, tensor in self._layout.labels.items():
            values = self._source.manifest.label_rows(name, known)
            values[~present] = np.zeros((), values.dtype)  # of bytes, no bytes
            tensor.view(self._memory)[rows] = values
