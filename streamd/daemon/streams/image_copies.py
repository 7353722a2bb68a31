"""The files of further images of a sample, as lists of samples take them to another host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from streamd.config.schema import StreamConfig
from streamd.dataset.manifest.manifest import CopiedFiles, ListedArrays, ListedImage, Manifest
from streamd.dataset.manifest.types import Int64s

_NO_ROOT: Final = Path()


class ImageCopy(NamedTuple):
    """The files of one further image: their names below this host's `root`, and their listed sizes in bytes."""

    image: str
    root: Path
    names: list[bytes]
    sizes: Int64s


def find_source_anchor(config: StreamConfig) -> Path:
    """Returns the path of the configuration from which a list's root is found on every host."""
    root = getattr(config.source, "root", None)  # of a table or a list of files
    return Path(root if root is not None else config.source.path)


def describe_image_roots(listed: Manifest, config: StreamConfig) -> dict[str, str]:
    """Returns how the folder of each image that has one of its own is found from the paths of a configuration."""
    return {
        name: os.path.relpath(image.root, _find_image_anchor(config, name))
        for name, image in _collect_listed_images(listed).items()
        if image.root is not None and _has_own_root(image)
    }


def strip_image_copies(listed: Manifest) -> dict[str, CopiedFiles]:
    """Returns the files of further images without this host's folders and times."""
    return {
        name: CopiedFiles(_NO_ROOT if _has_own_root(image) else None, np.zeros(image.mtimes_ns.size, np.int64))
        for name, image in _collect_listed_images(listed).items()
    }


def iterate_image_copies(
    listed: Manifest, root: Path, config: StreamConfig, roots: Mapping[str, str]
) -> Iterator[ImageCopy]:
    """Yields the files of each further image that has files of its own on this host.

    `root` is that of the samples here, and `roots` what `describe_image_roots` returned on the other host.
    """
    for name, image in _collect_listed_images(listed).items():
        if not image.mtimes_ns.size:  # it lies in the shards of the samples
            continue
        own = roots.get(name)
        place = root if own is None else Path(os.path.normpath(_find_image_anchor(config, name) / own))
        names = image.array_file_names() if isinstance(image, ListedArrays) else image.file_names()
        yield ImageCopy(name, place, names, image.sizes.astype(np.int64))


def bind_image_copies(
    listed: Manifest, roots: Mapping[str, Path], mtimes_ns: Mapping[str, Int64s]
) -> dict[str, CopiedFiles]:
    """Returns the files of further images for this host, where those with files of their own have these mtimes."""
    none = np.empty(0, np.int64)
    return {
        name: CopiedFiles(roots[name] if _has_own_root(image) else None, mtimes_ns.get(name, none))
        for name, image in _collect_listed_images(listed).items()
    }


def _collect_listed_images(listed: Manifest) -> dict[str, ListedImage | ListedArrays]:
    return {**listed.images, **listed.image_arrays}


def _has_own_root(image: ListedImage | ListedArrays) -> bool:
    """Whether the files lie below another root than those of the samples."""
    return image.has_own_root if isinstance(image, ListedArrays) else image.root is not None


def _find_image_anchor(config: StreamConfig, name: str) -> Path:
    """Returns the path of the configuration from which the folder of an image is found: its root, or its .npy file."""
    image = config.all_images[name]
    if not config.source.is_encoded:
        return Path(image.resolve_file())
    return find_source_anchor(config) if image.root is None else Path(image.root)
