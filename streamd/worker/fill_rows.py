"""One task: rows gathered from a store, or files that were read in one thread hop decoded into them; labels beside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamd.core.sample_rng import generators
from streamd.core.sampler import PAD_ID
from streamd.dataset.cache.store import DecodedCache
from streamd.decode.decoders import BadImageError, decode_into
from streamd.decode.random_crop import draws
from streamd.ipc.progress_page import Phase, Track
from streamd.ipc.worker_messages import BadSample, FillRows, short_reason
from streamd.worker.stream_reader import Blob, Source, Unread
from streamd.worker.transforms.call import PURPOSE, Columns, FailedTransformError, Transform, UnfitTransformError


class Filling:
    """The rows of one task, filled one by one so that the caller may look up in between.

    The track says at which row it is, and at none between two calls.
    """

    def __init__(self, source: Source, task: FillRows, memory: memoryview, track: Track) -> None:
        self._source = source
        self._task = task
        self._layout = source.layout(task.batch_rows)
        self._images = self._layout.images.view(memory)
        self._memory = memory
        self._track = track
        self._draws = draws(source.spec.image, source.spec.seed, task.epoch, task.ids)
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
                decode_into(blob, row, self._source.spec.image, self._draws[place])
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

    def transform(self, start: int, stop: int) -> None:
        """Has the stream's transform at the rows from `start` to `stop` that hold a sample; labels are written before.

        What it raises is that sample's fault. Raises UnfitTransformError, and MemoryError with the track at the row.
        """
        transform, spec, ids = self._source.transform, self._source.spec, self._task.ids[start:stop]
        if transform is None:
            return
        columns = {name: tensor.view(self._memory) for name, tensor in self._layout.labels.items()}
        for place, rng in enumerate(generators(spec.seed, self._task.epoch, ids, PURPOSE), start):
            if self._gathered[place] or place in self._decoded:
                self._track.at(self._task.number, place, Phase.TRANSFORMING)
                self._apply(transform.call, place, columns, rng)
        self._track.at(self._task.number, stop, Phase.ELSEWHERE)

    def _apply(self, transform: Transform, place: int, columns: Columns, rng: np.random.Generator) -> None:
        row, sample_id = self._rows[place], int(self._task.ids[place])
        try:
            transform.apply(self._images[row], columns, row, rng)
        except FailedTransformError as error:
            self.bad.append(BadSample(sample_id, short_reason(error), lasting=True))
        except UnfitTransformError as error:
            file = self._source.manifest.file(sample_id).decode(errors="backslashreplace")
            raise UnfitTransformError(f"{error}; the sample: {file}; mend it and send SIGHUP") from error

    def write_labels(self) -> None:
        """Writes ids, weights and labels of the task's rows; zeros where a row holds no sample."""
        ids, manifest = self._task.ids, self._source.manifest
        rows = self._task.rows if self._run is None else self._run
        absent = ids == PAD_ID
        whole = not absent.any()
        known = ids if whole else np.where(absent, 0, ids)
        self._layout.sample_ids.view(self._memory)[rows] = ids
        self._layout.weights.view(self._memory)[rows] = manifest.weights(known) * ~absent
        for name, tensor in self._layout.labels.items():
            values = manifest.label_rows(name, known)
            if not whole:
                values[absent] = np.zeros((), values.dtype)  # of bytes, no bytes
            tensor.view(self._memory)[rows] = values


def _run(rows: Sequence[int]) -> slice | None:
    """Rows that follow each other, as nearly all tasks' do: written in one piece."""
    run = slice(rows[0], rows[0] + len(rows))
    return run if rows == list(range(run.start, run.stop)) else None
