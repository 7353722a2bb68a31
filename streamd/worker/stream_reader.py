"""A stream as a worker has it open: its list, its root, what need not be decoded, and its files when asked for."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.sampler import PAD_ID, Ids
from streamd.core.slot_layout import SlotLayout, compute_layout
from streamd.core.spec import PixelId, StreamSpec
from streamd.dataset.arrays.store import Mask, SampleStore
from streamd.dataset.cache.file import UnfitCacheError
from streamd.dataset.cache.store import DecodedCache
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.open_store import open_shard_reader, open_store
from streamd.dataset.paths.open_beneath import UnfitFileError, read_file
from streamd.dataset.paths.root_proof import ExpectedFiles, check_files_present, choose_expected_files, open_root_folder
from streamd.dataset.shard_reader import ShardChangedError, ShardReader
from streamd.decode.pixel_id import compute_pixel_id, compute_stored_pixel_id
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.progress_page import ProgressPage
from streamd.ipc.worker_messages import OpenStream, UnfilledRow, format_error_reason
from streamd.limits import MAX_REFUSAL_CHARS, READ_AHEAD_BYTES
from streamd.worker.transforms import TriedTransform, ignore_trial_report, open_transform

_LASTING_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR})

_QUICK_FILE_S: Final = 50e-6  # a read from the page cache takes a fifth of this; the fastest disk, twice as long
_QUICK_GROUPS: Final = 8  # in a row, before reading ahead is given up


_NO_ROOT: Final = -1
FILE_CHANGED: Final = "its file has changed since it was listed; restart with --rescan to list it anew"


class UnreadFile(Enum):
    """In the place of a file's bytes."""

    LATER = "read it right before its row is decoded, if the store does not fill it"


Blob = bytes | UnfilledRow | UnreadFile | None


@dataclass(frozen=True, slots=True)
class StreamReader:
    """A stream as a worker sees it: manifest, root, spec, what need not be decoded any more, the user's transform."""

    spec: StreamSpec
    manifest: Manifest
    root: int
    expected: ExpectedFiles
    store: SampleStore | None = None
    cache: DecodedCache | None = None  # the store, if it takes what is decoded
    transform: TriedTransform | None = None
    shard_reader: ShardReader | None = None  # the images, where they are no files of their own
    _layouts: dict[int, SlotLayout] = field(default_factory=dict)

    @staticmethod
    def open(spec: StreamSpec, manifest_path: Path, *, may_lack_root: bool = False) -> StreamReader:
        """Raises ConfigError when the manifest is damaged, or not the daemon's, DataAwayError when the root is gone.

        `may_lack_root`: files of their own are looked for when they are read, for a cache may have them all. Files that
        hold arrays are opened here, and must be those that were listed, as must shards.
        """
        manifest = open_listed_manifest(spec, manifest_path)
        root = _open_root_or_null(manifest, may_lack=may_lack_root)
        try:
            store = open_store(manifest, root)
            shard_reader = open_shard_reader(manifest, root)
        except BaseException:
            os.close(root)
            raise
        return StreamReader(spec, manifest, root, choose_expected_files(manifest), store, shard_reader=shard_reader)

    def batch_layout(self, rows: int) -> SlotLayout:
        """Of a batch of `rows`."""
        if rows not in self._layouts:
            self._layouts[rows] = compute_layout(self.spec, rows)
        return self._layouts[rows]

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        if self.shard_reader is not None:
            self.shard_reader.close()
        os.close(self.root)
        self.manifest.close()

    @property
    def pixel_id(self) -> PixelId:
        """The identity of the pixels that are sent."""
        return self.decoded_pixel_id if self.transform is None else self.transform.pixel_id

    @property
    def decoded_pixel_id(self) -> PixelId:
        """The identity of pixels before a transform: of what decoders make here, or of those stored as they are."""
        if self.manifest.arrays is not None:
            return compute_stored_pixel_id(self.spec.image)
        return compute_pixel_id(self.spec.image)

    def read_files_timed(self, ids: Ids) -> tuple[list[Blob], float]:
        """The files of `ids`, and the seconds that reading them took."""
        started_s = time.monotonic()
        blobs = self.read_files(ids)
        return blobs, time.monotonic() - started_s

    def read_files_ahead(self, ids: Ids) -> tuple[list[Blob], float]:
        """As `read_files_timed`, of what may come from a disk: it is asked for all images of shards before the
        first.
        """
        started_s = time.monotonic()
        if self.shard_reader is not None:
            self.shard_reader.prefetch_images(ids[self.find_samples_to_decode(ids)])
        blobs, _ = self.read_files_timed(ids)
        return blobs, time.monotonic() - started_s

    def read_files(self, ids: Ids) -> list[Blob]:
        """The files of `ids` but for what a store holds, up to READ_AHEAD_BYTES; None for rows that hold no sample."""
        if self.manifest.arrays is not None:  # the store holds them all until a file changes
            return self._explain_missing_array_rows(ids)
        sizes, mtimes_ns = self.manifest.sizes[ids], self.manifest.lookup_mtimes_ns(ids)
        lacking = self.find_samples_to_decode(ids)
        fits = lacking & (np.cumsum(np.where(lacking, sizes, 0)) <= READ_AHEAD_BYTES)
        rows = zip(ids.tolist(), sizes.tolist(), mtimes_ns.tolist(), fits.tolist(), strict=True)
        return [
            None
            if sample_id == PAD_ID
            else self._read_bytes_with_retry(sample_id, size, mtime_ns)
            if fit
            else UnreadFile.LATER
            for sample_id, size, mtime_ns, fit in rows
        ]

    def _explain_missing_array_rows(self, ids: Ids) -> list[Blob]:
        """Why rows of arrays could not be gathered; None for those that hold no sample."""
        try:
            self._reopen_root()
        except DataAwayError as error:
            return [
                None if each == PAD_ID else self._find_row_fault(each) or _build_unfilled_row_for_away_data(each, error)
                for each in ids.tolist()
            ]
        changed = partial(UnfilledRow, reason=FILE_CHANGED, lasting=False)
        return [None if each == PAD_ID else self._find_row_fault(each) or changed(each) for each in ids.tolist()]

    def _find_row_fault(self, sample_id: int) -> UnfilledRow | None:
        """What is wrong with a row of an array itself."""
        fault = "" if self.store is None else self.store.find_permanent_fault(sample_id)
        return UnfilledRow(sample_id, fault, lasting=True) if fault else None

    @property
    def samples_are_files(self) -> bool:
        """Whether samples are files, to be read and decoded."""
        return self.manifest.arrays is None

    def find_samples_to_decode(self, ids: Ids) -> Mask:
        """Which samples have to be read and decoded, (n,)."""
        present: Mask = ids != PAD_ID
        return present if self.store is None else np.greater(present, self.store.find_gatherable(ids))

    def prefetch_rows(self, ids: Ids) -> None:
        """A task of these comes soon: what a store holds of them, and has not in memory, may be read meanwhile."""
        if self.store is not None:
            self.store.prefetch_rows(ids)

    def read_sample(self, sample_id: int) -> bytes | UnfilledRow:
        """The file of one sample, however large."""
        mtime_ns = self.manifest.lookup_mtimes_ns(np.array(sample_id)).item()
        return self._read_bytes_with_retry(sample_id, int(self.manifest.sizes[sample_id]), mtime_ns)

    def _read_bytes_with_retry(self, sample_id: int, size: int, mtime_ns: int) -> bytes | UnfilledRow:
        try:
            return self._read_bytes(sample_id, size, mtime_ns)
        except (ShardChangedError, UnfitFileError, DataAwayError, OSError):
            return self._retry_read(sample_id, size, mtime_ns)

    def _read_bytes(self, sample_id: int, size: int, mtime_ns: int) -> bytes:
        if self.shard_reader is not None:
            return self.shard_reader.read_image(sample_id, size)
        return read_file(self.root, self.manifest.file_name(sample_id), size, mtime_ns)

    def _retry_read(self, sample_id: int, size: int, mtime_ns: int) -> bytes | UnfilledRow:
        """A failure counts only below a root that is proven before and after it: else the data are away.

        A mount that comes or goes between two proofs, and back again, is not seen; they are a millisecond apart.
        """
        try:
            self._reopen_root()
            return self._read_bytes(sample_id, size, mtime_ns)
        except DataAwayError as error:
            return _build_unfilled_row_for_away_data(sample_id, error)
        except ShardChangedError as error:
            return UnfilledRow(sample_id, format_error_reason(error), lasting=False)
        except UnfitFileError as error:
            reason, lasting = format_error_reason(error), True
        except OSError as error:
            reason = error.strerror or type(error).__name__
            lasting = self.shard_reader is None and error.errno in _LASTING_ERRORS
        try:
            self._reopen_root()
        except DataAwayError as error:
            return _build_unfilled_row_for_away_data(sample_id, error)
        return UnfilledRow(sample_id, reason, lasting=lasting)

    def _reopen_root(self) -> None:
        """Takes the folder that the root's path leads to now for the root. Raises DataAwayError when it is none, or
        not the listed one.

        A descriptor that was opened before a mount leads to the folder below the mount point for ever.
        """
        root = open_root_folder(self.manifest.root)
        os.dup2(root, self.root, inheritable=False)  # in one step: other threads read with the same number
        os.close(root)
        if self.shard_reader is None:
            check_files_present(self.root, self.expected)
        else:
            self.shard_reader.close_shards()  # each shard that is read says by itself whether it is there


def _open_root_or_null(manifest: Manifest, *, may_lack: bool) -> int:
    """A descriptor of the root.

    Where that is gone, one with nothing below it, which `_reopen_root` makes the root's.
    """
    try:
        return open_root_folder(manifest.root)
    except DataAwayError:
        if not may_lack or manifest.arrays is not None or manifest.shards is not None:
            raise
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _build_unfilled_row_for_away_data(sample_id: int, error: DataAwayError) -> UnfilledRow:
    return UnfilledRow(sample_id, format_error_reason(error, MAX_REFUSAL_CHARS), lasting=False, away=True)


def open_listed_manifest(spec: StreamSpec, path: Path) -> Manifest:
    """The list of a stream. Raises ConfigError when it is damaged, or not the daemon's."""
    manifest = Manifest.open(path)
    if manifest.content_id != spec.content_id:
        raise ConfigError(
            f"{str(path)!r} was listed anew by another streamd since this one began: restart this one, or "
            "give each a state directory of its own"
        )
    return manifest


def open_reader(command: OpenStream, page: ProgressPage | None = None) -> tuple[StreamReader, str]:
    """A stream as its daemon wants it, and what its operator should know of that. Raises as Source.open.

    ConfigError, too, when its transform cannot be used. The track says what is tried of it, in case that never ends.
    """
    source = StreamReader.open(command.spec, Path(command.manifest), may_lack_root=command.cache is not None)
    try:
        source, remarks = _add_transform(source, command, page)
    except BaseException:
        source.close()
        raise
    if command.cache is None:
        return source, remarks
    try:
        cache = DecodedCache.open(command.cache, source.spec, source.manifest, source.decoded_pixel_id)
    except UnfitCacheError as error:
        return source, "; ".join(filter(None, [remarks, f"nothing is kept: {error}"]))
    return replace(source, store=cache, cache=cache), remarks


def predict_pixel_id(command: OpenStream, page: ProgressPage) -> tuple[PixelId, str]:
    """What the pipeline makes of a stream whose data are away, and what there is to say of it. Raises ConfigError."""
    manifest = open_listed_manifest(command.spec, Path(command.manifest))
    try:
        source = StreamReader(command.spec, manifest, _NO_ROOT, choose_expected_files(manifest))
        source, remarks = _add_transform(source, command, page)
        return source.pixel_id, remarks
    finally:
        manifest.close()


def _add_transform(reader: StreamReader, command: OpenStream, page: ProgressPage | None) -> tuple[StreamReader, str]:
    """A stream with its transform, if it has one, and what there is to say of that."""
    if command.transform is None:
        return reader, ""
    tell = ignore_trial_report if page is None else partial(page.write_transform_trial, command.number)
    try:
        tried = open_transform(command.transform, reader.manifest, reader.spec.image, reader.decoded_pixel_id, tell)
    except ConfigError as error:
        raise ConfigError(f"streams.{reader.spec.name}.transform: {error}") from error
    return replace(reader, transform=tried), tried.remark


class ReadPace:
    """Whether files are read ahead in a thread, or right before they are decoded.

    Reading ahead hides a disk. Files that come from the page cache have nothing to hide, and the hop to a thread and
    back costs as much as a dozen of them, so after some groups that took no time the hop is left out; a single group
    that took time brings it back.
    """

    def __init__(self) -> None:
        self._quick_groups = 0

    @property
    def reads_ahead(self) -> bool:
        """Whether the next group is to be read ahead."""
        return self._quick_groups < _QUICK_GROUPS

    def record_group(self, files: int, seconds: float) -> None:
        """Learns from a group that was read; one without files says nothing."""
        if files:
            self._quick_groups = self._quick_groups + 1 if seconds <= files * _QUICK_FILE_S else 0
