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

from streamd.cli.pack.batches import Decoded
from streamd.cli.pack.checksums import Tally
from streamd.cli.pack.writer import Writer
from streamd.core.sampler import Ids
from streamd.dataset.manifest.manifest import sync_folder
from streamd.errors import PackError
from streamd.limits import PACK_SYNC_BYTES, PACK_SYNC_S

_VERSION: Final = 1


class Bad(msgspec.Struct, frozen=True):
    """A sample that was left out, and why."""

    sample_id: int
    file: str
    reason: str


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The first `done` samples of the order were seen: `tally.rows` are written, `bad` left out.

    `identity` names what is packed and how; a journal of another one is no beginning of it. `place` is what the writer
    wants to know again.
    """

    version: int = _VERSION
    identity: str
    samples: int
    batch_rows: int
    done: int = 0
    tally: Tally = Tally()
    bad: tuple[Bad, ...] = ()
    place: dict[str, int] = {}


_journal: Final = msgspec.json.Decoder(Journal)


def read(path: Path) -> Journal | None:
    """The journal at `path`, None if there is none. Raises PackError for one that cannot be used."""
    try:
        found = _journal.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise PackError(
            f"{path}: the journal of a pack that was begun cannot be read: {error}; add --restart"
        ) from error
    if found.version != _VERSION:
        raise PackError(f"{path}: another streamd began this pack; go on with that one, or add --restart")
    return found


def write(path: Path, journal: Journal) -> None:
    """Returns when it is safe on the disk. Raises OSError."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(journal))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


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
        write(self._path, self._journal)
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
