"""Reads the files of samples that have several images: the sample's own file, and those beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamd.core.spec import StreamSpec
from streamd.dataset.manifest.image_files import ListedImage
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.paths.open_beneath import UnfitFileError, read_file
from streamd.dataset.paths.root_proof import open_root_folder
from streamd.dataset.shard_reader import ShardReader
from streamd.errors import DataAwayError

SampleBytes = tuple[bytes, ...]  # the files of one sample, in the order of the stream's images


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

    def read_sample(self, sample_id: int, size: int, mtime_ns: int) -> SampleBytes:
        """Reads all files of one sample; `size` and `mtime_ns` are those of its own file.

        Raises UnfitFileError and OSError with the name of the image, and ShardChangedError and DataAwayError.
        """
        return tuple(self._read_image(name, sample_id, size, mtime_ns) for name in self.names)

    def _read_image(self, name: str, sample_id: int, size: int, mtime_ns: int) -> bytes:
        listed = self.images.get(name)
        try:
            if listed is None:
                return self._read_own_file(sample_id, size, mtime_ns)
            size = int(listed.sizes[sample_id])
            if listed.offsets is not None and self.shard_reader is not None:
                return self.shard_reader.read_bytes_at(sample_id, int(listed.offsets[sample_id]), size)
            root = self.roots.get(name, self.root)
            return read_file(root, listed.file_name(sample_id), size, int(listed.mtimes_ns[sample_id]))
        except UnfitFileError as error:
            raise UnfitFileError(f"{self._describe_image(name, sample_id)}: {error}") from error
        except OSError as error:
            raise ImageReadError(self._describe_image(name, sample_id), error) from error

    def _read_own_file(self, sample_id: int, size: int, mtime_ns: int) -> bytes:
        if self.shard_reader is not None:
            return self.shard_reader.read_image(sample_id, size)
        return read_file(self.root, self.manifest.file_name(sample_id), size, mtime_ns)

    def _describe_image(self, name: str, sample_id: int) -> str:
        """Returns the name of an image and of its file, for a verdict; the own file is named elsewhere."""
        listed = self.images.get(name)
        return name if listed is None else f"{name} {listed.file_name(sample_id).decode(errors='backslashreplace')}"

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
