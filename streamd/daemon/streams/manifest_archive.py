"""Lists of samples for another host, in one file: `streamd manifest export` writes it, `import` reads it.

    lists.json       for each stream its settings without paths, and the verdicts on bytes that were read
    0.manifest, ...  the lists, with a root of no name and mtimes of 0

It is a zip without compression, whose checksums find damage. A list names files relative to a root. The importing host
finds its own root from its own configuration, and looks every file up there: those with the listed sizes are its
copies, and their mtimes go into its list. So a later change of a copy is noticed, and the identities are those of the
exporting host.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import numpy as np

from streamd.config.schema import Config, StreamConfig
from streamd.core.host import open_regular_file
from streamd.core.sampler import BadSample
from streamd.core.text import format_count, format_list
from streamd.daemon.streams.catalog import (
    build_lock_paths,
    build_manifest_paths,
    build_quarantine_path,
    compute_config_ids,
    delete_verdicts,
    describe_portable_settings,
    group_streams_by_family,
    locate_stream_transform,
    make_state_folder,
    open_streams,
)
from streamd.daemon.streams.manifest_locks import hold_exclusive_locks, hold_listing_turns
from streamd.daemon.streams.quarantine import Quarantine
from streamd.dataset.manifest.manifest import (
    CopiedFiles,
    ListedArrays,
    ListedImage,
    Manifest,
    sync_folder,
    write_manifest_copy,
)
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.paths.confined import ConfinedRoot, format_path, stat_files
from streamd.errors import ConfigError
from streamd.limits import MAX_LISTS_JSON_BYTES

ImportProgress = Callable[[str, int], None]

_VERSION: Final = 1
_LISTS: Final = "lists.json"
_NO_ROOT: Final = Path()
_SHOWN_FILES: Final = 3


@dataclass(frozen=True, slots=True)
class _ExportedVerdict:
    sample_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class _ExportedList:
    """A stream's list in the archive. `root` leads from the source's path to the folder that names are relative to.

    `transform` is the version of the transform that the verdicts belong to; empty without a transform. `image_roots`
    lead to the folders of further images that have one of their own, from the paths that the configuration gives these.
    """

    stream: str
    member: str
    settings: str
    root: str
    transform: str
    verdicts: tuple[_ExportedVerdict, ...]
    image_roots: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _ExportedLists:
    version: int
    lists: tuple[_ExportedList, ...]


_lists_decoder: Final = msgspec.json.Decoder(_ExportedLists)


@dataclass(frozen=True, slots=True)
class ExchangedList:
    """What was exported or imported of a stream."""

    stream: str
    samples: int
    order_id: str
    verdicts: int


# --- export


def export_lists(config: Config, state: Path, target: Path) -> list[ExchangedList]:
    """Writes the lists of all streams to `target`, whole or not at all. All must be listed. Raises ConfigError."""
    streams = open_streams(config.model_copy(update={"expect": None}), state)
    lists: list[_ExportedList] = []
    for number, stream in enumerate(streams):
        settings = config.streams[stream.spec.name]
        verdicts = [each for each in stream.quarantine.list_bad_samples() if each.of_bytes]
        image_roots = {
            name: os.path.relpath(image.root, _find_image_anchor(settings, name))
            for name, image in _collect_listed_images(stream.manifest).items()
            if image.root is not None and image.has_own_root
        }
        lists.append(
            _ExportedList(
                stream.spec.name,
                f"{number}.manifest",
                describe_portable_settings(settings),
                os.path.relpath(stream.manifest.root, _find_source_anchor(settings)),
                "" if stream.transform is None else stream.transform.source_version,
                tuple(_ExportedVerdict(each.sample_id, each.reason) for each in verdicts),
                image_roots,
            )
        )
    try:
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            path = Path(folder) / target.name
            with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_LISTS, msgspec.json.encode(_ExportedLists(_VERSION, tuple(lists))))
                for each, stream in zip(lists, streams, strict=True):
                    listed, bare = stream.manifest, path.with_name(each.member)
                    # What differs between hosts is left out: folders, and times.
                    none = np.zeros(len(_list_file_names(listed)), np.int64)
                    images = {
                        name: CopiedFiles(
                            _NO_ROOT if image.has_own_root else None, np.zeros(image.mtimes_ns.size, np.int64)
                        )
                        for name, image in _collect_listed_images(listed).items()
                    }
                    write_manifest_copy(bare, listed, root=_NO_ROOT, mtimes_ns=none, config_id="", images=images)
                    archive.write(bare, each.member)
                    bare.unlink()
            path.replace(target)
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(target)!r}: {error.strerror or error}; name a file in a folder that you can write to"
        ) from error
    return [
        ExchangedList(each.stream, stream.spec.samples, stream.spec.order_id, len(each.verdicts))
        for each, stream in zip(lists, streams, strict=True)
    ]


def _list_file_names(listed: Manifest) -> list[bytes]:
    """Returns the files of a list: its shards, its arrays, or one for each sample."""
    if listed.shards is not None:
        return list(listed.shards.names)
    return listed.array_file_names() if listed.arrays is not None else listed.file_names(range(listed.samples))


# --- import


def import_lists(config: Config, state: Path, source: Path, progress: ImportProgress) -> list[ExchangedList]:
    """Makes the lists in `source` those of the streams of the same names, all or none.

    The samples must lie on this host, with the listed names and sizes. Raises ConfigError, also for other settings than
    those of the exporting host, and while a daemon serves a list that would be replaced.
    """
    make_state_folder(state)
    with TemporaryDirectory(prefix=".import-", dir=state) as name_of_folder:
        folder = Path(name_of_folder)
        wanted = _extract_lists(source, config.streams.keys(), folder)
        # Lists that depend on each other are replaced together.
        if not wanted:
            raise ConfigError(f"{source} has no list of a stream in this configuration ({', '.join(config.streams)})")
        for family in group_streams_by_family(config):
            missing = sorted(family - wanted.keys())
            if missing and missing != sorted(family):
                raise ConfigError(
                    f"{source} has no list of {', '.join(missing)}, which must be listed together with "
                    f"{', '.join(sorted(family - {*missing}))}; export all streams of one configuration"
                )
        for name, each in wanted.items():
            here = describe_portable_settings(config.streams[name])
            if here != each.settings:
                raise ConfigError(
                    f"streams.{name}: {source} was exported with other settings of source, images, labels, split or "
                    f"weights: {each.settings} there, {here} here; only the paths may differ"
                )
            _bind_list(config, name, each, folder / each.member, folder / f"{name}.bound", progress)
        bound = {name: folder / f"{name}.bound" for name in wanted}
        locks = build_lock_paths(config, state)
        with hold_listing_turns(locks[name] for name in wanted), hold_exclusive_locks(locks, wanted):
            kept = {name: _replace_list(config, state, each, bound[name]) for name, each in wanted.items()}
    opened = open_streams(config.model_copy(update={"streams": {name: config.streams[name] for name in wanted}}), state)
    return [
        ExchangedList(each.spec.name, each.spec.samples, each.spec.order_id, kept[each.spec.name]) for each in opened
    ]


def _read_lists(archive: zipfile.ZipFile) -> tuple[_ExportedList, ...]:
    """Reads what an archive contains. Raises BadZipFile, KeyError and msgspec's errors for anything else."""
    if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
        raise zipfile.BadZipFile("its members are compressed")
    if archive.getinfo(_LISTS).file_size > MAX_LISTS_JSON_BYTES:
        raise zipfile.BadZipFile(f"{_LISTS} is larger than {MAX_LISTS_JSON_BYTES:,} bytes")
    found = _lists_decoder.decode(archive.read(_LISTS))
    if found.version != _VERSION:
        raise zipfile.BadZipFile(f"it has version {found.version}, but this streamd reads version {_VERSION}")
    for number, each in enumerate(found.lists):
        if each.member != f"{number}.manifest":  # the name becomes that of a file here
            raise zipfile.BadZipFile(f"list {number} is in {each.member!r}")
    return found.lists


def _extract_lists(source: Path, streams: Collection[str], folder: Path) -> dict[str, _ExportedList]:
    """Copies the lists of `streams` to files in a folder, and returns what they are. Raises ConfigError."""
    try:
        with open_regular_file(source) as file, zipfile.ZipFile(file) as archive:
            wanted = {each.stream: each for each in _read_lists(archive) if each.stream in streams}
            for each in wanted.values():
                with archive.open(each.member) as packed, (folder / each.member).open("wb") as copy:
                    shutil.copyfileobj(packed, copy)
    except (zipfile.BadZipFile, KeyError, msgspec.MsgspecError, UnicodeDecodeError, NotImplementedError) as error:
        raise ConfigError(
            f"{source} holds no whole lists of samples: {error}; write it with  streamd manifest export"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{source} cannot be read: {error.strerror or error}; name a file that  streamd manifest export  wrote"
        ) from error
    return wanted


def _bind_list(
    config: Config, name: str, exported: _ExportedList, bare: Path, target: Path, progress: ImportProgress
) -> None:
    """Writes a list for this host's copies of the files. Raises ConfigError unless all are there."""
    listed, stream = Manifest.open(bare), config.streams[name]
    root = Path(os.path.normpath(_find_source_anchor(stream) / exported.root))
    sizes = listed.sizes if listed.shards is None else np.array(listed.shards.sizes, np.int64)
    look_up = partial(_look_up_copies, name, progress)
    own_mtimes_ns = look_up("source", root, _list_file_names(listed), sizes)
    images: dict[str, CopiedFiles] = {}
    for each, image in _collect_listed_images(listed).items():
        own_root, mtimes_ns = exported.image_roots.get(each), np.empty(0, np.int64)
        place = root if own_root is None else Path(os.path.normpath(_find_image_anchor(stream, each) / own_root))
        # An image without files of its own lies in the shards of the samples.
        if image.mtimes_ns.size:
            names = image.array_file_names() if isinstance(image, ListedArrays) else image.file_names()
            mtimes_ns = look_up(f"images.{each}", place, names, image.sizes.astype(np.int64))
        images[each] = CopiedFiles(place if image.has_own_root else None, mtimes_ns)
    ids = compute_config_ids(config)
    write_manifest_copy(target, listed, root=root, mtimes_ns=own_mtimes_ns, config_id=ids[name], images=images)
    listed.close()


def _look_up_copies(
    name: str, progress: ImportProgress, place: str, root: Path, files: Sequence[bytes], sizes: Int64s
) -> Int64s:
    """Returns the mtimes of this host's copies, in ns. Raises ConfigError if some are missing, or of another size.

    `place` is the key of the stream `name` that leads to them.
    """
    key, names = f"streams.{name}.{place}", list(files)
    confined = ConfinedRoot(os.fsencode(root), key)
    found, mtimes_ns, missing = stat_files(confined, names, partial(progress, name))
    wrong = np.flatnonzero(found != sizes)
    other = sorted({*missing, *wrong.tolist()})
    if other:
        shown = format_list([format_path(files[row]) for row in other], _SHOWN_FILES)
        raise ConfigError(
            f"{key}: {len(other):,} of {format_count(len(files), 'listed file')} {'is' if len(other) == 1 else 'are'} "
            f"not in {format_path(root)}, or of another size: {shown}; copy the data of the exporting host"
        )
    return mtimes_ns


def _replace_list(config: Config, state: Path, exported: _ExportedList, bound: Path) -> int:
    """Replaces a stream's list, and its verdicts; returns how many of these the new list has."""
    stream, path = config.streams[exported.stream], build_manifest_paths(config, state)[exported.stream]
    delete_verdicts(path)  # first: a crash between the two leaves the old list without verdicts, which is sound
    bound.replace(path)
    sync_folder(state)
    transform = locate_stream_transform(stream, config.base_folder)
    if exported.transform != ("" if transform is None else transform.source_version):
        return 0  # verdicts of another version of the transform
    listed = Manifest.open(path)
    quarantine = Quarantine(build_quarantine_path(path, transform), lambda: listed.list_id)
    verdicts = [each for each in exported.verdicts if 0 <= each.sample_id < listed.samples]
    return len(quarantine.append_new_bad_samples(BadSample(each.sample_id, each.reason) for each in verdicts))


# --- The files of further images of a sample, as lists of samples take them to another host.


def _find_source_anchor(config: StreamConfig) -> Path:
    """Returns the path of the configuration from which a list's root is found on every host."""
    root = getattr(config.source, "root", None)  # of a table or a list of files
    return Path(root if root is not None else config.source.path)


def _collect_listed_images(listed: Manifest) -> dict[str, ListedImage | ListedArrays]:
    return {**listed.images, **listed.image_arrays}


def _find_image_anchor(config: StreamConfig, name: str) -> Path:
    """Returns the path of the configuration from which the folder of an image is found: its root, or its .npy file."""
    image = config.all_images[name]
    if not config.source.is_encoded:
        return Path(image.resolve_file())
    return _find_source_anchor(config) if image.root is None else Path(image.root)
