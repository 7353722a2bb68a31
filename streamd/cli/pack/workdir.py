"""The hidden folder of a pack until it is complete, on the file system of its destination and locked by one process.

Also checks beforehand that the disk has room for the pack, and explains the error if it turns out that it has not.

A journal in the folder, one small file, records which shards of the pack are whole. It is replaced in one step when a
shard has been synced to the disk, so it never claims more than is safe. A pack of one file has none until it is whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np

from streamd.cli.pack.batches import DecodedBatch, PackChecksum, PackWriter, WholeShards
from streamd.config.units import format_bytes
from streamd.core.host import read_regular_file
from streamd.core.sampler import Ids
from streamd.core.text import escape_unprintable
from streamd.dataset.manifest.manifest import sync_folder
from streamd.errors import ConfigError, PackError
from streamd.limits import PACK_SYNC_BYTES

_JOURNAL_NAME: Final = "journal.json"
_PRODUCT_NAME: Final = "pack"
_FULL_DISK_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_SPACE_TEXT: Final = os.strerror(errno.ENOSPC)
_BLOCK_BYTES: Final = 512  # what st_blocks counts, whatever the file system
_JOURNAL_VERSION: Final = 2


class PackWorkdir:
    """The folder `.NAME.packing` beside `destination`. A context manager that keeps other processes out of the folder.

    `journal_path` and `product_path` are paths in the folder; one rename turns the product into the destination.
    """

    def __init__(self, destination: Path) -> None:
        """Raises ConfigError when there is something at `destination`, or no folder for it."""
        self.destination = Path(os.path.abspath(destination))  # noqa: PTH100 - links stay as they are
        if not self.destination.name:
            raise ConfigError(
                f"{_format_printable_path(self.destination)} already exists; name a folder or file that does not "
                "exist yet"
            )
        self.folder = self.destination.with_name(f".{self.destination.name}.packing")
        self.journal_path, self.product_path = self.folder / _JOURNAL_NAME, self.folder / _PRODUCT_NAME
        self.scratch_path = self.folder / "scratch"
        self._descriptor = -1
        self._check_destination()

    def _check_destination(self) -> None:
        parent = self.destination.parent
        if not parent.is_dir():
            raise ConfigError(
                f"{_format_printable_path(parent)}: there is no such folder; make it, or name another place"
            )
        if os.path.lexists(self.destination):
            raise ConfigError(
                f"{_format_printable_path(self.destination)} already exists; remove it, or name another place"
            )

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(exist_ok=True)
            self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise PackError(
                f"another streamd pack is writing {_format_printable_path(self.destination)}; wait for it"
            ) from error
        except OSError as error:
            raise PackError(
                f"cannot write in {_format_printable_path(self.destination.parent)}: {error.strerror}"
            ) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Unlocks the folder, and removes it unless it has a journal, from which the next run can continue."""
        if self.folder.exists() and not self.journal_path.exists():
            shutil.rmtree(self.folder)
        os.close(self._descriptor)

    def clear_work_folder(self) -> None:
        """Removes everything in the folder."""
        for entry in self.folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def move_product_to_destination(self) -> None:
        """Renames the product to the destination, and removes the rest. Raises PackError, OSError."""
        sync_tree_to_disk(self.product_path)
        self._check_destination()
        self.product_path.rename(self.destination)
        sync_folder(self.destination.parent)
        shutil.rmtree(self.folder)


def sync_tree_to_disk(path: Path) -> None:
    """Syncs a file, or all files and names in a folder, to the disk. Raises OSError."""
    if not path.is_dir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return
    for entry in path.iterdir():
        sync_tree_to_disk(entry)
    sync_folder(path)


def _format_printable_path(path: Path) -> str:
    return escape_unprintable(str(path))


def check_free_space(workdir: PackWorkdir, needed_bytes: int) -> None:
    """Raises PackError, with the arithmetic, if the rest of a pack of this many bytes does not fit on the disk."""
    there, free = measure_allocated_bytes(workdir.product_path), shutil.disk_usage(workdir.folder).free
    lacking = needed_bytes - there - free
    if lacking > 0:
        raise PackError(
            f"{_format_printable_path(workdir.destination)} takes about {format_bytes(needed_bytes)}, of which "
            f"{format_bytes(there)} are written, and {format_bytes(free)} are free: make room for "
            f"{format_bytes(lacking)} more, or name another disk"
        )


@contextmanager
def translate_disk_full_error(workdir: PackWorkdir, estimate_bytes: Callable[[], int], next_run: str) -> Iterator[None]:
    """Turns the system's error for a full disk into a PackError; `next_run` says what another run does."""
    try:
        yield
    except OSError as error:
        # HDF5 may give the system's reason only in its message, and not in errno.
        if error.errno not in _FULL_DISK_ERRNOS and _NO_SPACE_TEXT not in str(error):
            raise
        left = max(0, estimate_bytes() - measure_allocated_bytes(workdir.product_path))
        raise PackError(
            f"{_format_printable_path(workdir.destination)}: {error.strerror or _NO_SPACE_TEXT}: about "
            f"{format_bytes(left)} are still to be written, and "
            f"{format_bytes(shutil.disk_usage(workdir.folder).free)} are free. Nothing has been put in place yet: "
            f"make room, then run the same command again: {next_run}"
        ) from error


def measure_allocated_bytes(path: Path) -> int:
    """Returns the bytes that a file, or all files in a folder, occupy on the disk; 0 for a missing one."""
    if not path.exists():
        return 0
    entries = path.rglob("*") if path.is_dir() else [path]
    return sum(entry.lstat().st_blocks * _BLOCK_BYTES for entry in entries)


# --- the journal: how far the pack has come


class LeftOutSample(msgspec.Struct, frozen=True):
    """A sample that was left out, and why."""

    sample_id: int
    file: str
    reason: str


class PackJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The whole shards of a pack: the first `done` samples of the order are in them, or were left out.

    identity: identifies what is packed and how; a run with another identity cannot continue this one.
    tally: `tally.rows` of these samples are written.
    bad: the samples that were left out.
    whole: the shards, which the writer gets back when it resumes.
    is_finished: the labels are written, too, and the pack has only to be read back.
    """

    version: int = _JOURNAL_VERSION
    identity: str
    samples: int
    batch_rows: int
    done: int = 0
    tally: PackChecksum = PackChecksum()
    bad: tuple[LeftOutSample, ...] = ()
    whole: WholeShards = WholeShards()
    is_finished: bool = False


_journal_decoder: Final = msgspec.json.Decoder(PackJournal)


def read_journal(path: Path) -> PackJournal | None:
    """Reads the journal at `path`; None if there is none. Raises PackError for one that cannot be used."""
    try:
        found = _journal_decoder.decode(read_regular_file(path))
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise PackError(
            f"{path}: the journal of an unfinished pack cannot be read: {error}; add --restart to start again"
        ) from error
    if found.version != _JOURNAL_VERSION:
        raise PackError(
            f"{path}: another version of streamd began this pack; continue with that version, or add --restart to "
            "start again"
        )
    return found


def write_journal(path: Path, journal: PackJournal) -> None:
    """Replaces the journal in one step and syncs it to the disk. Raises OSError."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(journal))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


class JournaledPack:
    """Writes a pack and its journal, from where the journal ends. Used by one thread at a time.

    All methods raise OSError when the disk refuses.
    """

    def __init__(self, journal: PackJournal, path: Path, writer: PackWriter) -> None:
        self._journal, self._path, self._writer = journal, path, writer
        self.done_at_start = self.done_samples = journal.done
        self.checksum = journal.tally
        self.left_out: list[LeftOutSample] = list(journal.bad)
        self._unsynced_bytes = 0
        writer.resume_after_shards(journal.whole)

    @property
    def next_batch_index(self) -> int:
        """The index of the first batch that is not written yet, or of which only the first samples are."""
        rows = self._journal.batch_rows
        return (
            -(-self.done_samples // rows) if self.done_samples == self._journal.samples else self.done_samples // rows
        )

    @property
    def left_out_ids(self) -> Ids:
        return np.array([each.sample_id for each in self.left_out], dtype=np.int64)

    def write_batch(self, batch: DecodedBatch) -> None:
        """Writes the samples of a batch that are not written yet, and the journal if a shard has become whole."""
        rows, first = batch.rows, batch.index * self._journal.batch_rows
        bad = [(first + each.row, LeftOutSample(each.sample_id, each.file, each.reason)) for each in batch.bad_rows]
        places = first + np.delete(np.arange(batch.done_samples), [each.row for each in batch.bad_rows])
        # A shard ends within a batch: its first samples may be in the whole shards of an earlier run.
        if first < self.done_samples:
            is_new = places >= self.done_samples
            rows, places = rows.select_rows(is_new), places[is_new]
            bad = [each for each in bad if each[0] >= self.done_samples]
        before, sums = self.checksum, np.empty(0, np.uint64)
        if places.size:
            sums = self._writer.append_rows(rows)
        self._unsynced_bytes += rows.nbytes
        whole = self._writer.whole_shards
        if whole.rows > self._journal.whole.rows:
            # The samples up to the last row of the whole shards, with those between them that were left out.
            count = whole.rows - before.rows
            last = int(places[count - 1])
            left_out = [*self.left_out, *(each for place, each in bad if place <= last)]
            # A kill before the journal is written costs the shard, which the next run writes again.
            self._writer.sync_to_disk()
            self._unsynced_bytes = 0
            self._save_journal(last + 1, before.with_added_rows(sums[:count]), left_out)
        elif self._unsynced_bytes >= PACK_SYNC_BYTES:
            self._writer.sync_to_disk()
            self._unsynced_bytes = 0
        self.checksum = before.with_added_rows(sums)
        self.left_out += [each for _, each in bad]
        self.done_samples = first + batch.done_samples

    def sync_to_disk(self) -> None:
        """Syncs what was written in this run."""
        if self.done_samples > self.done_at_start:
            self._writer.sync_to_disk()

    def finish_pack(self, product_path: Path) -> None:
        """Completes the pack, and records that it is whole and only has to be read back."""
        if not self._journal.is_finished:
            self._writer.finish_pack(self.left_out_ids)
            sync_tree_to_disk(product_path)
            self._save_journal(self.done_samples, self.checksum, self.left_out, is_finished=True)

    def _save_journal(
        self, done: int, tally: PackChecksum, left_out: Sequence[LeftOutSample], *, is_finished: bool = False
    ) -> None:
        """Records the whole shards, which are safe on the disk."""
        whole, bad = self._writer.whole_shards, tuple(left_out)
        self._journal = msgspec.structs.replace(
            self._journal, done=done, tally=tally, bad=bad, whole=whole, is_finished=is_finished
        )
        write_journal(self._path, self._journal)
