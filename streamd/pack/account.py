"""What a pack holds so far: every batch is taken in its turn, and now and then all of it is made safe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from streamd.limits import PACK_SYNC_BYTES, PACK_SYNC_S
from streamd.pack import journal as journals
from streamd.pack.decoded import Decoded
from streamd.pack.journal import Bad, Journal
from streamd.pack.writer import Writer
from streamd.plan import Ids


class Account:
    """Begins where `begun` ends. One thread at a time; everything raises OSError when the disk refuses."""

    def __init__(self, begun: Journal, path: Path, writer: Writer) -> None:
        self._journal, self._path, self._writer = begun, path, writer
        self.begun_at = self.done = begun.done
        self.tally = begun.tally
        self.bad: list[Bad] = list(begun.bad)
        self._unsafe_bytes = 0
        self._saved_s = time.monotonic()
        writer.resume(begun.tally.rows, begun.place)

    @property
    def next_batch(self) -> int:
        """The first batch that is not in it."""
        return -(-self.done // self._journal.batch_rows)

    @property
    def bad_ids(self) -> Ids:
        return np.array([each.sample_id for each in self.bad], dtype=np.int64)

    def take(self, batch: Decoded) -> None:
        """Writes a batch."""
        if batch.ids.size:
            self.tally = self.tally.plus(self._writer.append(batch.ids, batch.images))
        self.bad += [Bad(each.sample_id, each.file, each.reason) for each in batch.bad]
        self.done += batch.ids.size + len(batch.bad)
        self._unsafe_bytes += batch.images.nbytes
        if self._unsafe_bytes >= PACK_SYNC_BYTES or time.monotonic() >= self._saved_s + PACK_SYNC_S:
            self.save()

    def save(self) -> None:
        """Makes what there is safe, then says so in the journal."""
        place = self._writer.sync()
        self._journal = Journal(
            identity=self._journal.identity,
            samples=self._journal.samples,
            batch_rows=self._journal.batch_rows,
            done=self.done,
            tally=self.tally,
            bad=tuple(self.bad),
            place=place,
        )
        journals.write(self._path, self._journal)
        self._unsafe_bytes, self._saved_s = 0, time.monotonic()

    @contextmanager
    def kept_when_cut_short(self) -> Iterator[None]:
        """Saves what there is when somebody stops the run."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, OSError):  # a disk that refused a row refuses the journal
                self.save()
            raise
