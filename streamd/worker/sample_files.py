"""Reads the files of samples that have several images: the sample's own file, and those beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from streamd.core.spec import StreamSpec
from streamd.dataset.manifest.manifest import ListedImage, Manifest
from streamd.dataset.paths.confined import UnfitFileError, read_file
from streamd.dataset.paths.root_proof import open_root_folder
from streamd.dataset.shard_reader import ShardReader
from streamd.decode.decoders import BadFrameError, BadImageError
from streamd.errors import DataAwayError

ImageBytes = bytes | tuple[bytes, ...]  # the file of one image, or the files of a clip's frames
SampleBytes = tuple[ImageBytes, ...]  # the files of one sample, in the order of the stream's images
SharedFrames = dict[tuple[str, int], bytes]  # the files of frames that were read, by image and number of the file


class ImageReadError(OSError):
    """An error of the system while it read one image of a sample; its text names the image."""

    def __init__(self, image: str, error: OSError) -> None:
        super().__init__(error.errno, f"{image}: {error.strerror or type(error).__name__}")


def describe_read_error(error: OSError) -> str:
    """Returns the reason that a verdict gives for an error of the system."""
    return error.strerror or type(error).__name__


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The files of all images of each sample. Several threads may read at a time.

    `names` are the images in the order of the stream. `images` lacks the image that is the sample's own file. `roots`
    has the descriptors of roots other than that of the samples, whose numbers stay the same when they are opened again.
    """

    manifest: Manifest
    root: int
    names: tuple[str, ...]
    images: Mapping[str, ListedImage]
    shard_reader: ShardReader | None = None
    roots: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def open(
        spec: StreamSpec,
        manifest: Manifest,
        root: int,
        shard_reader: ShardReader | None,
        *,
        may_lack_roots: bool = False,
    ) -> SampleFiles | None:
        """Opens the roots of further images; None where samples have none.

        Raises DataAwayError if a root is gone, unless it may lack until files are read: a cache may hold all samples.
        """
        images = {name: image for name, image in manifest.images.items() if name in spec.images}
        if not images:
            return None
        files = SampleFiles(manifest, root, tuple(spec.images), images, shard_reader)
        try:
            for name, image in images.items():
                if image.root is not None:
                    files.roots[name] = _open_root(image.root, may_lack=may_lack_roots)
        except BaseException:
            files.close()
            raise
        return files

    def read_sample(self, sample_id: int, size: int, mtime_ns: int, shared: SharedFrames | None = None) -> SampleBytes:
        """Reads all files of one sample; `size` and `mtime_ns` are those of its own file.

        Frames that are in `shared` are not read again, and those that are read are added to it. Raises UnfitFileError
        and OSError with the name of the image, and ShardChangedError and DataAwayError.
        """
        return tuple(
            self._read_image(name, sample_id, size, mtime_ns, {} if shared is None else shared) for name in self.names
        )

    def _read_image(self, name: str, sample_id: int, size: int, mtime_ns: int, shared: SharedFrames) -> ImageBytes:
        listed = self.images.get(name)
        if listed is None:
            with self._name_image(name):
                return self._read_own_file(sample_id, size, mtime_ns)
        if listed.frames is None:
            return self._read_listed_file(name, listed, sample_id)
        return tuple(self._read_frame(name, listed, file, shared) for file in listed.list_frame_files(sample_id))

    def _read_frame(self, name: str, listed: ListedImage, file: int, shared: SharedFrames) -> bytes:
        if (name, file) not in shared:
            shared[name, file] = self._read_listed_file(name, listed, file)
        return shared[name, file]

    def _read_listed_file(self, name: str, listed: ListedImage, file: int) -> bytes:
        with self._name_image(name, file):
            size = int(listed.sizes[file])
            if listed.offsets is not None and self.shard_reader is not None:
                return self.shard_reader.read_bytes_at(file, int(listed.offsets[file]), size)
            root = self.roots.get(name, self.root)
            return read_file(root, listed.file_name(file), size, int(listed.mtimes_ns[file]))

    @contextmanager
    def _name_image(self, name: str, file: int | None = None) -> Iterator[None]:
        """Adds the name of an image and of its file to an error."""
        try:
            yield
        except UnfitFileError as error:
            raise UnfitFileError(f"{self._describe_image(name, file)}: {error}") from error
        except OSError as error:
            raise ImageReadError(self._describe_image(name, file), error) from error

    def name_bad_frame(self, sample_id: int, error: BadImageError) -> BadImageError:
        """Returns the error with the name of its file if a frame of a clip is at fault, else as it is."""
        if not isinstance(error, BadFrameError):
            return error
        file = self.images[error.image].list_frame_files(sample_id)[error.frame]
        return BadImageError(f"{self._describe_image(error.image, file)}: {error.reason}")

    def _read_own_file(self, sample_id: int, size: int, mtime_ns: int) -> bytes:
        if self.shard_reader is not None:
            return self.shard_reader.read_image(sample_id, size)
        return read_file(self.root, self.manifest.file_name(sample_id), size, mtime_ns)

    def _describe_image(self, name: str, file: int | None) -> str:
        """Returns the name of an image and of its file, for a verdict; the own file is named elsewhere."""
        return name if file is None else self.images[name].describe_file(file)

    def reopen_roots(self) -> None:
        """Opens the paths of the roots again, as a mount may have changed them. Raises DataAwayError."""
        for name, descriptor in self.roots.items():
            path = self.images[name].root
            if path is not None:
                root = open_root_folder(path)
                # Other threads read through the same number, which dup2 replaces in one step.
                os.dup2(root, descriptor, inheritable=False)
                os.close(root)

    def close(self) -> None:
        """Closes the roots."""
        for descriptor in self.roots.values():
            os.close(descriptor)
        self.roots.clear()


def _open_root(root: Path, *, may_lack: bool) -> int:
    """Returns a descriptor of a root, or of /dev/null, which `reopen_roots` replaces, if it may lack and is gone."""
    try:
        return open_root_folder(root)
    except DataAwayError:
        if not may_lack:
            raise
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
