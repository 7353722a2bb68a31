"""A stream that a worker has opened: its manifest, its root, its store of decoded rows, and its files."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.sampler import PAD_ID, BadSample, Ids
from streamd.core.slot_layout import SlotLayout, compute_layout
from streamd.core.spec import PixelId, StreamSpec
from streamd.dataset.arrays.store import Mask, Store
from streamd.dataset.cache import DecodedCache, UnfitCacheError
from streamd.dataset.manifest.manifest import ListedImage, Manifest
from streamd.dataset.open_store import open_shard_reader, open_store
from streamd.dataset.paths.open_beneath import (
    ExpectedFiles,
    OtherFileError,
    UnfitFileError,
    check_files_present,
    choose_expected_files,
    open_root_folder,
    read_file,
    reopen_root_folder,
)
from streamd.dataset.shard_reader import ShardChangedError, ShardReader
from streamd.decode.decoders import BadFrameError, BadImageError
from streamd.decode.pixel_id import compute_sample_pixel_id, compute_stored_pixel_id
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.slots import ProgressPage
from streamd.ipc.worker_messages import OpenStream, format_error_reason
from streamd.limits import MAX_REFUSAL_CHARS, READ_AHEAD_BYTES
from streamd.worker.array_records import ArrayRecords, compute_manifest_pixel_id, needs_records
from streamd.worker.transforms import TriedTransform, ignore_trial_report, open_transform

ImageBytes = bytes | tuple[bytes, ...]  # the file of one image, or the files of a clip's frames
SampleBytes = tuple[ImageBytes, ...]  # the files of one sample, in the order of the stream's images
SharedFrames = dict[tuple[str, int], bytes]  # the files of frames that were read, by image and number of the file


class ImageReadError(OSError):
    """An error of the system while it read one image of a sample; its text names the image."""

    def __init__(self, image: str, error: OSError) -> None:
        super().__init__(error.errno, f"{image}: {error.strerror or type(error).__name__}")


_LASTING_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR})

_QUICK_FILE_S: Final = 50e-6  # a read from the page cache takes a fifth of this; from the fastest disk, twice this
_QUICK_GROUPS: Final = 8  # consecutive quick groups before reading ahead is given up


_NO_ROOT: Final = -1
FILE_CHANGED: Final = "its file has changed since it was listed; restart with --rescan to list it again"


class UnreadFile(Enum):
    """Stands in the place of a file's bytes."""

    LATER = "read it right before its row is decoded, if the store does not fill it"


Blob = bytes | SampleBytes | BadSample | UnreadFile | None


@dataclass(frozen=True, slots=True)
class StreamReader:
    """A stream as a worker reads it: spec, manifest, root, a store of decoded rows, the user's transform.

    Several threads may read files at a time, for tasks that wait; gathering and layouts belong to the event loop.
    Where samples have several files, `images` has the images whose files lie beside the sample's own, and `roots` the
    descriptors of their roots, but for that of the samples: their numbers stay the same when they are opened again.
    """

    spec: StreamSpec
    manifest: Manifest
    root: int  # a descriptor whose number stays the same when the root is opened again
    expected: ExpectedFiles
    store: Store | None = None
    cache: DecodedCache | None = None  # the store, if decoded rows are written to it
    transform: TriedTransform | None = None
    shard_reader: ShardReader | None = None  # reads images that lie in shards; None where each has its own file
    images: Mapping[str, ListedImage] = field(default_factory=dict)
    roots: dict[str, int] = field(default_factory=dict)
    _layouts: dict[int, SlotLayout] = field(default_factory=dict)

    @staticmethod
    def open(spec: StreamSpec, manifest_path: Path, *, may_lack_root: bool = False) -> StreamReader:
        """Opens a stream without its cache and its transform.

        With `may_lack_root` roots may be gone if each image is a file of its own: a cache may hold all of them, so
        files are opened only when they are read. Arrays and shards are opened here, and must be those that were listed.

        Raises ConfigError if the manifest is damaged or is not the daemon's, DataAwayError if the root is gone.
        """
        manifest = open_listed_manifest(spec, manifest_path)
        are_files = manifest.arrays is None and manifest.shards is None
        root = _open_root_or_null(manifest.root, may_lack=may_lack_root and are_files)
        images = {name: image for name, image in manifest.images.items() if name in spec.images}
        roots: dict[str, int] = {}
        try:
            store: Store | None = (
                ArrayRecords(manifest, spec.images, root)
                if needs_records(manifest, spec.images)
                else open_store(manifest, root)
            )
            shard_reader = open_shard_reader(manifest, root)
            for name, image in images.items():
                if image.root is not None:
                    roots[name] = _open_root_or_null(image.root, may_lack=may_lack_root)
        except BaseException:
            for descriptor in (root, *roots.values()):
                os.close(descriptor)
            raise
        expected = choose_expected_files(manifest)
        return StreamReader(
            spec, manifest, root, expected, store, shard_reader=shard_reader, images=images, roots=roots
        )

    def batch_layout(self, rows: int) -> SlotLayout:
        """Returns the layout of a batch of `rows`."""
        if rows not in self._layouts:
            self._layouts[rows] = compute_layout(self.spec, rows)
        return self._layouts[rows]

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        if self.shard_reader is not None:
            self.shard_reader.close()
        for descriptor in (self.root, *self.roots.values()):
            os.close(descriptor)
        self.manifest.close()

    @property
    def pixel_id(self) -> PixelId:
        """The identity of the pixels that are sent."""
        return self.decoded_pixel_id if self.transform is None else self.transform.pixel_id

    @property
    def decoded_pixel_id(self) -> PixelId:
        """The identity of the pixels before a transform: of this installation's decoders, or of stored arrays."""
        if needs_records(self.manifest, self.spec.images):
            return compute_manifest_pixel_id(self.manifest, self.spec.images)
        if self.manifest.arrays is not None:
            return compute_stored_pixel_id(self.spec.image)
        return compute_sample_pixel_id(self.spec.images)

    def read_files_timed(self, ids: Ids, *, is_ahead: bool = False) -> tuple[list[Blob], float]:
        """Reads the files of `ids`. Returns them and the seconds that reading took.

        Where it `is_ahead`, in a thread, files may come from a disk: all images in shards are requested from the kernel
        before the first is read.
        """
        started_s = time.monotonic()
        if is_ahead and self.shard_reader is not None:
            self.shard_reader.prefetch_images(ids[self.find_samples_to_decode(ids)])
        blobs = self.read_files(ids)
        return blobs, time.monotonic() - started_s

    def read_files(self, ids: Ids) -> list[Blob]:
        """Reads the files of `ids` that no store holds, up to READ_AHEAD_BYTES in all.

        Returns one blob for each id: None where a row holds no sample, UnreadFile.LATER for files beyond the bound and
        rows that the store holds.
        """
        if self.manifest.arrays is not None:
            return self._explain_missing_array_rows(ids)
        sizes, mtimes_ns = self.manifest.lookup_sample_bytes(ids), self.manifest.lookup_mtimes_ns(ids)
        lacking = self.find_samples_to_decode(ids)
        # Bounded in bytes, since a worker's memory is limited: files beyond the bound are read one by one, each right
        # before its row is decoded.
        fits = lacking & (np.cumsum(np.where(lacking, sizes, 0)) <= READ_AHEAD_BYTES)
        rows = zip(ids.tolist(), self.manifest.sizes[ids].tolist(), mtimes_ns.tolist(), fits.tolist(), strict=True)
        shared: SharedFrames = {}
        return [
            None
            if sample_id == PAD_ID
            else self._read_bytes_with_retry(sample_id, size, mtime_ns, shared)
            if fit
            else UnreadFile.LATER
            for sample_id, size, mtime_ns, fit in rows
        ]

    def _explain_missing_array_rows(self, ids: Ids) -> list[Blob]:
        """Returns why rows of arrays could not be gathered, since a store holds all; None for rows without a sample."""
        away: DataAwayError | None = None
        try:
            self._reopen_root()
        except DataAwayError as error:
            away = error
        found: list[Blob] = []
        for sample_id in ids.tolist():
            if sample_id == PAD_ID:
                found.append(None)
            # The row itself is at fault, for good.
            elif self.store is not None and (fault := self.store.find_permanent_fault(sample_id)):
                found.append(BadSample(sample_id, fault, lasting=True))
            elif away is not None:
                found.append(_build_unfilled_row_for_away_data(sample_id, away))
            else:
                found.append(BadSample(sample_id, FILE_CHANGED, lasting=False))
        return found

    @property
    def samples_are_files(self) -> bool:
        """Whether samples are encoded images, to be read and decoded, and not rows of arrays."""
        return self.manifest.arrays is None

    def find_samples_to_decode(self, ids: Ids) -> Mask:
        """Returns which samples have to be read and decoded, (n,) of bool. May be called from any thread."""
        present: Mask = ids != PAD_ID
        return present if self.store is None else np.greater(present, self.store.find_gatherable(ids))

    def prefetch_rows(self, ids: Ids) -> None:
        """Tells the store that a task of these samples comes soon, so that rows not in memory are read meanwhile."""
        if self.store is not None:
            self.store.prefetch_rows(ids)

    def read_sample(self, sample_id: int) -> bytes | SampleBytes | BadSample:
        """Reads the files of one sample, however large it is."""
        mtime_ns = self.manifest.lookup_mtimes_ns(np.array(sample_id)).item()
        return self._read_bytes_with_retry(sample_id, int(self.manifest.sizes[sample_id]), mtime_ns, {})

    def _read_bytes_with_retry(
        self, sample_id: int, size: int, mtime_ns: int, shared: SharedFrames
    ) -> bytes | SampleBytes | BadSample:
        try:
            return self._read_bytes(sample_id, size, mtime_ns, shared)
        except (ShardChangedError, UnfitFileError, DataAwayError, OSError):
            pass
        # The file is read again below a root that is proven before and after: only then does a failure count. Where a
        # proof fails, the data are away, and the file is not at fault. A mount that goes and comes back between the two
        # proofs is not noticed; they are a millisecond apart.
        try:
            self._reopen_root()
            return self._read_bytes(sample_id, size, mtime_ns)
        except DataAwayError as error:
            return _build_unfilled_row_for_away_data(sample_id, error)
        except ShardChangedError as error:
            return BadSample(sample_id, format_error_reason(error), lasting=False)
        except UnfitFileError as error:
            reason, lasting, of_this_host = format_error_reason(error), True, isinstance(error, OtherFileError)
        except OSError as error:
            # A shard that cannot be opened says nothing about one of its images, so that is never a lasting fault.
            reason = error.strerror or type(error).__name__
            lasting = of_this_host = self.shard_reader is None and error.errno in _LASTING_ERRORS
        try:
            self._reopen_root()
        except DataAwayError as error:
            return _build_unfilled_row_for_away_data(sample_id, error)
        return BadSample(sample_id, reason, lasting=lasting, of_this_host=of_this_host)

    def _read_bytes(
        self, sample_id: int, size: int, mtime_ns: int, shared: SharedFrames | None = None
    ) -> bytes | SampleBytes:
        """Reads the files of a sample; `size` and `mtime_ns` are those of its own file.

        Frames that are in `shared` are not read again, and those that are read are added to it. Raises UnfitFileError
        and OSError, with the name of the image where there are several, and ShardChangedError and DataAwayError.
        """
        if not self.images:
            return self._read_own_file(sample_id, size, mtime_ns)
        files: list[ImageBytes] = []
        for name in self.spec.images:
            listed = self.images.get(name)
            if listed is None:
                with self._name_image(name):
                    files.append(self._read_own_file(sample_id, size, mtime_ns))
            # A file beside it.
            elif listed.frames is None:
                files.append(self._read_listed_file(name, listed, sample_id))
            # The frames of a clip, each of which is read once for all clips that show it.
            else:
                known = {} if shared is None else shared
                frames = listed.list_frame_files(sample_id)
                for file in frames:
                    if (name, file) not in known:
                        known[name, file] = self._read_listed_file(name, listed, file)
                files.append(tuple(known[name, file] for file in frames))
        return tuple(files)

    def _read_own_file(self, sample_id: int, size: int, mtime_ns: int) -> bytes:
        """Reads the sample's own file, from its shard or its folder."""
        if self.shard_reader is not None:
            return self.shard_reader.read_image(sample_id, size)
        return read_file(self.root, self.manifest.file_name(sample_id), size, mtime_ns)

    def _read_listed_file(self, name: str, listed: ListedImage, file: int) -> bytes:
        with self._name_image(name, file):
            size = int(listed.sizes[file])
            if listed.offsets is not None and self.shard_reader is not None:
                return self.shard_reader.read_bytes_at(file, int(listed.offsets[file]), size)
            root = self.roots.get(name, self.root)
            return read_file(root, listed.file_name(file), size, int(listed.mtimes_ns[file]))

    @contextmanager
    def _name_image(self, name: str, file: int | None = None) -> Iterator[None]:
        """Adds the name of an image to an error, and of its file; the sample's own file is named elsewhere."""
        try:
            yield
        except (UnfitFileError, OSError) as error:
            described = name if file is None else self.images[name].describe_file(file)
            if isinstance(error, OSError):
                raise ImageReadError(described, error) from error
            raise UnfitFileError(f"{described}: {error}") from error

    def format_bad_image(self, sample_id: int, error: BadImageError) -> str:
        """Returns the reason that a verdict on a sample gives for a picture that cannot be decoded.

        Where a frame of a clip is at fault, it begins with the name of the frame's file.
        """
        if isinstance(error, BadFrameError) and self.images:
            listed = self.images[error.image]
            file = listed.list_frame_files(sample_id)[error.frame]
            return format_error_reason(BadImageError(f"{listed.describe_file(file)}: {error.reason}"))
        return format_error_reason(error)

    def _reopen_root(self) -> None:
        """Opens the root's path again. Raises DataAwayError if it is no folder, or not the folder that was listed."""
        reopen_root_folder(self.manifest.root, self.root)
        for name, descriptor in self.roots.items():
            if (path := self.images[name].root) is not None:
                reopen_root_folder(path, descriptor)
        if isinstance(self.store, ArrayRecords):
            self.store.reopen_roots()
        if self.shard_reader is None:
            check_files_present(self.root, self.expected)
        else:
            self.shard_reader.close_shards()  # each shard is opened and checked again when it is next read


def _open_root_or_null(root: Path, *, may_lack: bool) -> int:
    """Returns a descriptor of a root, or of /dev/null, which is later replaced, if the root may lack and is gone."""
    try:
        return open_root_folder(root)
    except DataAwayError:
        if not may_lack:
            raise
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _build_unfilled_row_for_away_data(sample_id: int, error: DataAwayError) -> BadSample:
    return BadSample(sample_id, format_error_reason(error, MAX_REFUSAL_CHARS), lasting=False, away=True)


def open_listed_manifest(spec: StreamSpec, path: Path) -> Manifest:
    """Opens the manifest of a stream. Raises ConfigError if it is damaged, or is not the daemon's."""
    manifest = Manifest.open(path)
    if manifest.content_id != spec.content_id:
        raise ConfigError(
            f"{str(path)!r} has been listed again by another streamd since this one started: restart this one, or "
            "give each a state directory of its own"
        )
    return manifest


def open_reader(command: OpenStream, page: ProgressPage | None = None) -> tuple[StreamReader, str]:
    """Opens a stream with its transform and its cache. Returns it, and remarks for the operator.

    The page names the part of the transform that is tried, in case that never ends. Raises as StreamReader.open, and
    ConfigError if the transform cannot be used.
    """
    source = StreamReader.open(command.spec, Path(command.manifest), may_lack_root=command.cache is not None)
    try:
        source, remarks = _add_transform(source, command, page)
    except BaseException:
        source.close()
        raise
    if command.cache is None:
        return source, remarks
    # A cache is optional: a stream whose cache cannot be used is served without it.
    try:
        cache = DecodedCache.open(command.cache, source.spec, source.manifest, source.decoded_pixel_id)
    except UnfitCacheError as error:
        return source, "; ".join(filter(None, [remarks, f"nothing is cached: {error}"]))
    return replace(source, store=cache, cache=cache), remarks


def predict_pixel_id(command: OpenStream, page: ProgressPage) -> tuple[PixelId, str]:
    """Returns the pixel id of a stream whose data are away, and remarks for the operator. Raises ConfigError."""
    manifest = open_listed_manifest(command.spec, Path(command.manifest))
    try:
        # This reader opens neither root nor store, and its close() must not be called: only the manifest is closed.
        source = StreamReader(command.spec, manifest, _NO_ROOT, choose_expected_files(manifest))
        source, remarks = _add_transform(source, command, page)
        return source.pixel_id, remarks
    finally:
        manifest.close()


def _add_transform(reader: StreamReader, command: OpenStream, page: ProgressPage | None) -> tuple[StreamReader, str]:
    """Returns the reader with its stream's transform, if there is one, and a remark on it for the operator."""
    if command.transform is None:
        return reader, ""
    tell = ignore_trial_report if page is None else partial(page.write_transform_trial, command.number)
    try:
        tried = open_transform(command.transform, reader.manifest, reader.spec.images, reader.decoded_pixel_id, tell)
    except ConfigError as error:
        raise ConfigError(f"streams.{reader.spec.name}.transform: {error}") from error
    return replace(reader, transform=tried), tried.remark


class ReadPace:
    """Decides whether files are read ahead in a thread, or right before they are decoded.

    Reading ahead hides the time of a disk. Files in the page cache take none, and the hop to a thread and back costs as
    much as a dozen of them. So the hop is left out after several groups that were read quickly, and a single slow group
    brings it back.
    """

    def __init__(self) -> None:
        self._quick_groups = 0

    @property
    def reads_ahead(self) -> bool:
        """Whether the next group is read ahead."""
        return self._quick_groups < _QUICK_GROUPS

    def record_group(self, files: int, seconds: float) -> None:
        """Records the time of a group that was read; a group without files changes nothing."""
        if files:
            self._quick_groups = self._quick_groups + 1 if seconds <= files * _QUICK_FILE_S else 0
