"""One run of `streamd pack`: list the samples, decode and write them, finish, read back, put in place.

Nothing exists at the destination before all phases are done. The journal records the whole shards that an interrupted
run has left, and the next run continues after them. A pack of one file begins again.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
import numpy as np

from streamd.cli.pack.batches import (
    DecodedBatch,
    PackChecksum,
    PackJob,
    PackWriter,
    WholeShards,
    build_packing_stream,
    build_read_mismatch_error,
    compute_pack_batch_rows,
    list_and_open_stream,
    open_batch_decoder,
)
from streamd.cli.pack.label_cells import collect_kept_settings, is_only_image
from streamd.cli.terminal import Phase, ProgressDisplay
from streamd.config.schema import Config
from streamd.config.units import format_bytes
from streamd.core.host import count_processors, read_regular_file
from streamd.core.sampler import BadSample, Ids
from streamd.core.spec import compute_identity
from streamd.core.text import escape_unprintable, format_count
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.manifest.manifest import sync_folder
from streamd.errors import ConfigError, PackError
from streamd.limits import MIB, PACK_AHEAD_BYTES, PACK_SHARD_BYTES, PACK_SYNC_BYTES, PACK_TAR_BYTES

# --- The hidden folder of a pack until it is complete, beside its destination and locked by one process.
#
# Also checks beforehand that the disk has room for the pack, and explains the error if it turns out that it has not.
#
# A journal in the folder, one small file, records which shards of the pack are whole. It is replaced in one step when
# a shard has been synced to the disk, so it never claims more than is safe. A pack of one file has none until it is
# whole.

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


# --- One run of `streamd pack`: list the samples, decode and write them, finish, read back, put in place.

PackFormat = Literal["npy", "tar", "hdf5", "lmdb"]
_SINGLE_FILE_FORMATS: Final = frozenset({"hdf5", "lmdb"})
PACK_FORMATS: Final[tuple[PackFormat, ...]] = ("npy", "tar", "hdf5", "lmdb")
# A pack that was begun in another layout cannot be continued: rows of an lmdb once had no names.
_LAYOUT_VERSIONS: Final = {"lmdb": " 2"}


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What to pack and how. `restart` discards what an earlier run has left."""

    stream: str
    destination: Path
    format: PackFormat
    shuffle: bool = False
    restart: bool = False
    shard_bytes: int | None = None


class PackResult(msgspec.Struct, frozen=True):
    """The result: rows and bytes of the pack, samples that were left out, times of this run, and how to serve it."""

    path: str
    format: str
    samples: int
    bad: tuple[LeftOutSample, ...]
    bytes: int
    seconds: float
    samples_per_s: float
    verified_s: float
    serving: dict[str, object]


def pack_stream(config: Config, options: PackOptions, progress: ProgressDisplay) -> PackResult:
    """Packs a stream. Raises ConfigError for a stream that cannot be packed, PackError when the pack has failed."""
    # What a pack would fix, and a stream draws anew: one crop of each sample, its views, and clips.
    settings = config.streams.get(options.stream)
    if settings is not None:
        for name, image in settings.all_images.items():
            key = f"streams.{options.stream}.{'image' if settings.images is None else f'images.{name}'}"
            if image.views is not None:
                raise ConfigError(
                    f"{key}.views: a pack of views is not in this version; pack a stream of its own without views"
                )
            if image.frames is not None:
                raise ConfigError(
                    f"{key}.frames: a pack of clips is not in this version; pack a stream of its own without frames"
                )
            if image.resize == "random_crop" and not (options.format == "tar" and settings.source.is_encoded):
                keeping = "use --format tar, which keeps the files, or " if settings.source.is_encoded else ""
                raise ConfigError(
                    f"{key}.resize: random_crop takes a different part in every epoch, but a pack of decoded images "
                    f"has one: {keeping}pack a stream of its own with resize: crop"
                )
    with PackWorkdir(options.destination) as work:
        is_begun = work.product_path.exists() and not options.restart
        journal = read_journal(work.journal_path) if is_begun else None
        if journal is None:
            if is_begun:
                progress.print_note(
                    "an unfinished pack of an earlier run has no whole file, so this run begins it again"
                )
            work.clear_work_folder()
        with list_and_open_stream(config, options.stream, work.folder / "list", progress.update_listing) as stream:
            rows = journal.batch_rows if journal else compute_pack_batch_rows(stream, config.memory)
            ordered = build_packing_stream(stream, shuffled=options.shuffle, batch_rows=rows)
            return _PackRun(config, options, work, ordered, progress).pack_and_publish(journal)


def describe_next_run(name: PackFormat) -> str:
    """Returns what another run does after one that was interrupted."""
    if name in _SINGLE_FILE_FORMATS:
        return f"a pack in {name} is one file, so it begins again"
    return "it continues after the last file that is whole, or begins again if there is none"


def open_pack_writer(name: PackFormat, job: PackJob, shard_bytes: int | None) -> PackWriter:
    """Opens the writer of a format. Raises MissingExtraError, and ConfigError for shards of a format without shards."""
    if shard_bytes is not None and name in _SINGLE_FILE_FORMATS:
        raise ConfigError(f"--shard is for npy and tar; a pack in {name} is one file: leave --shard out")
    if shard_bytes is not None and shard_bytes < MIB:
        raise ConfigError(f"--shard {shard_bytes}: write 1MiB or more, or there would be too many files")
    match name:
        case "npy":
            from streamd.cli.pack.write_npy import NpyWriter  # noqa: PLC0415 - a format's libraries when it is wanted

            return NpyWriter(job, shard_bytes or PACK_SHARD_BYTES)
        case "tar":
            from streamd.cli.pack.write_tar import TarWriter  # noqa: PLC0415 - as above

            return TarWriter(job, shard_bytes or PACK_TAR_BYTES)
        case "hdf5":
            from streamd.cli.pack.write_hdf5 import Hdf5Writer  # noqa: PLC0415 - as above

            return Hdf5Writer(job)
        case "lmdb":
            from streamd.cli.pack.write_lmdb import LmdbWriter  # noqa: PLC0415 - as above

            return LmdbWriter(job)


class _PackRun:
    """One run of a pack, phase by phase."""

    def __init__(
        self,
        config: Config,
        options: PackOptions,
        workdir: PackWorkdir,
        stream: ServedStream,
        progress: ProgressDisplay,
    ) -> None:
        self._config, self._options, self._workdir, self._stream = config, options, workdir, stream
        self._progress = progress
        subject = PackJob(stream, workdir.product_path, workdir.scratch_path)
        self._writer = open_pack_writer(options.format, subject, options.shard_bytes)

    def pack_and_publish(self, earlier_journal: PackJournal | None) -> PackResult:
        next_run = describe_next_run(self._options.format)
        try:
            with translate_disk_full_error(self._workdir, self._writer.estimate_bytes, next_run):
                account, seconds = asyncio.run(self._decode_and_write(earlier_journal))
                if not account.checksum.rows:
                    raise PackError(f"{self._stream.spec.name}: all samples are bad, so there is nothing to pack")
                account.finish_pack(self._workdir.product_path)
            began_s = time.monotonic()
            self._verify_pack(account)
            verified_s = time.monotonic() - began_s
        finally:
            self._writer.close()
        pack_bytes = measure_allocated_bytes(self._workdir.product_path)
        self._workdir.move_product_to_destination()
        packed = account.done_samples - account.done_at_start
        kept = collect_kept_settings(self._config.streams[self._options.stream])
        return PackResult(
            path=str(self._workdir.destination),
            format=self._options.format,
            samples=account.checksum.rows,
            bad=tuple(account.left_out),
            bytes=pack_bytes,
            seconds=seconds,
            samples_per_s=packed / seconds if packed else 0.0,
            verified_s=verified_s,
            serving={**self._writer.build_serving_settings(self._workdir.destination), **kept},
        )

    async def _decode_and_write(self, earlier_journal: PackJournal | None) -> tuple[JournaledPack, float]:
        """Decodes and writes what earlier runs have not; returns the pack's account and the seconds that it took.

        Raises PackError for an unfinished pack of other data or settings.
        """
        workers = min(self._config.worker_count, count_processors())
        memory_bytes = min(PACK_AHEAD_BYTES, self._config.memory // 2)
        loop = asyncio.get_running_loop()
        async with open_batch_decoder(self._stream, workers, memory_bytes) as decoder:
            # Everything that decides the bytes of the pack.
            spec, pixel_id = self._stream.spec, await decoder.wait_for_pixel_id()
            layout = f"{self._options.format}{_LAYOUT_VERSIONS.get(self._options.format, '')}"
            how = (layout, str(self._options.shard_bytes), spec.shuffle, spec.seed)
            # The settings that determine the rows: of images, and of boxes and points. That of an only image is without
            # its name, as always, so that unfinished packs of older versions can be resumed.
            rows = [f"{name} {image.describe_pixels()}" for name, image in spec.images.items()]
            if is_only_image(spec):
                rows = [spec.image.describe_pixels()]
            ragged = [each for each in spec.labels.values() if each.is_ragged]
            rows += [f"{each.name} {each.type} {each.rows} {each.image} {each.min_visible!r}" for each in ragged]
            pack_identity = compute_identity("streamd pack 1", *how, spec.content_id, pixel_id, *rows, spec.bad_policy)
            # An interrupted run is continued, if neither data nor settings have changed.
            if earlier_journal and earlier_journal.identity != pack_identity:
                raise PackError(
                    f"{escape_unprintable(str(self._options.destination))}: there is an unfinished pack of other data, "
                    f"or with other settings ({earlier_journal.done:,} of "
                    f"{format_count(earlier_journal.samples, 'sample')} are in it): add --restart to throw it away, or "
                    "name another place"
                )
            if earlier_journal:
                done = format_count(earlier_journal.done, "sample")
                self._progress.print_note(
                    f"an earlier run has written all {done}, which are only read back"
                    if earlier_journal.is_finished
                    else f"this run continues after {done}, which are in the whole files of an earlier run"
                )
            fresh = PackJournal(identity=pack_identity, samples=spec.samples, batch_rows=spec.batch_size)
            account = JournaledPack(earlier_journal or fresh, self._workdir.journal_path, self._writer)
            known_bad = (BadSample(each.sample_id, each.reason, of_this_host=True) for each in account.left_out)
            self._stream.quarantine.append_new_bad_samples(known_bad)
            check_free_space(self._workdir, self._writer.estimate_bytes())
            packing = Phase("packing", "packed", "sample", spec.sample_bytes)
            self._progress.start_phase(spec.samples, account.done_samples, packing)
            began_s = time.monotonic()
            with ThreadPoolExecutor(1, "writer") as thread:
                decoder.request_batches_from(account.next_batch_index)
                while (batch := await decoder.wait_for_next_batch()) is not None:
                    done_before = account.done_samples
                    await loop.run_in_executor(thread, account.write_batch, batch)
                    decoder.release_batch(batch)
                    self._progress.advance(account.done_samples - done_before)
                # The rate of a pack counts until its last row is safe on the disk.
                await loop.run_in_executor(thread, account.sync_to_disk)
            return account, time.monotonic() - began_s

    def _verify_pack(self, journaled_pack: JournaledPack) -> None:
        """Reads the whole pack back from the disk. Raises PackError unless it is what was written."""
        reading_back = Phase("reading back", "read back", "sample", self._stream.spec.sample_bytes)
        self._progress.start_phase(journaled_pack.checksum.rows, phase=reading_back)
        found = PackChecksum()
        for sums in self._writer.read_checksums(journaled_pack.left_out_ids):
            found = found.with_added_rows(sums)
            self._progress.advance(sums.size)
        if found != journaled_pack.checksum:
            raise build_read_mismatch_error(self._options.destination)
