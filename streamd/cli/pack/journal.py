"""How far a pack has come: one small file, replaced whole each time that what it says is safe on the disk.

What a pack holds so far: every batch is taken in its turn, and now and then all of it is made safe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from streamd.cli.pack.batches import DecodedBatch
from streamd.cli.pack.checksums import PackChecksum
from streamd.cli.pack.writer import PackWriter
from streamd.core.sampler import Ids
from streamd.dataset.manifest.manifest import sync_folder
from streamd.errors import PackError
from streamd.limits import PACK_SYNC_BYTES, PACK_SYNC_S

_JOURNAL_VERSION: Final = 1


class LeftOutSample(msgspec.Struct, frozen=True):
    """A sample that was left out, and why."""

    sample_id: int
    file: str
    reason: str


class PackJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The first `done` samples of the order were seen: `tally.rows` are written, `bad` left out.

    `identity` names what is packed and how; a journal of another one is no beginning of it. `place` is what the writer
    wants to know again.
    """

    version: int = _JOURNAL_VERSION
    identity: str
    samples: int
    batch_rows: int
    done: int = 0
    tally: PackChecksum = PackChecksum()
    bad: tuple[LeftOutSample, ...] = ()
    place: dict[str, int] = {}


_journal_decoder: Final = msgspec.json.Decoder(PackJournal)


def read_journal(path: Path) -> PackJournal | None:
    """The journal at `path`, None if there is none. Raises PackError for one that cannot be used."""
    try:
        found = _journal_decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise PackError(
            f"{path}: the journal of a pack that was begun cannot be read: {error}; add --restart"
        ) from error
    if found.version != _JOURNAL_VERSION:
        raise PackError(f"{path}: another streamd began this pack; go on with that one, or add --restart")
    return found


def write_journal(path: Path, journal: PackJournal) -> None:
    """Returns when it is safe on the disk. Raises OSError."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(journal))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


class JournaledPack:
    """Begins where `begun` ends. One thread at a time; everything raises OSError when the disk refuses."""

    def __init__(self, journal: PackJournal, path: Path, writer: PackWriter) -> None:
        self._journal, self._path, self._writer = journal, path, writer
        self.done_at_start = self.done_samples = journal.done
        self.checksum = journal.tally
        self.left_out: list[LeftOutSample] = list(journal.bad)
        self._unsynced_bytes = 0
        self._last_saved_s = time.monotonic()
        writer.resume_after(journal.tally.rows, journal.place)

    @property
    def next_batch_index(self) -> int:
        """The first batch that is not in it."""
        return -(-self.done_samples // self._journal.batch_rows)

    @property
    def left_out_ids(self) -> Ids:
        return np.array([each.sample_id for each in self.left_out], dtype=np.int64)

    def write_batch(self, batch: DecodedBatch) -> None:
        """Writes a batch."""
        if batch.ids.size:
            self.checksum = self.checksum.with_rows(self._writer.append_rows(batch.ids, batch.images))
        self.left_out += [LeftOutSample(each.sample_id, each.file, each.reason) for each in batch.bad_rows]
        self.done_samples += batch.ids.size + len(batch.bad_rows)
        self._unsynced_bytes += batch.images.nbytes
        if self._unsynced_bytes >= PACK_SYNC_BYTES or time.monotonic() >= self._last_saved_s + PACK_SYNC_S:
            self.save_progress()

    def save_progress(self) -> None:
        """Makes what there is safe, then says so in the journal."""
        place = self._writer.sync_to_disk()
        self._journal = PackJournal(
            identity=self._journal.identity,
            samples=self._journal.samples,
            batch_rows=self._journal.batch_rows,
            done=self.done_samples,
            tally=self.checksum,
            bad=tuple(self.left_out),
            place=place,
        )
        write_journal(self._path, self._journal)
        self._unsynced_bytes, self._last_saved_s = 0, time.monotonic()

    @contextmanager
    def save_when_interrupted(self) -> Iterator[None]:
        """Saves what there is when somebody stops the run."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, OSError):  # a disk that refused a row refuses the journal
                self.save_progress()
            raise
