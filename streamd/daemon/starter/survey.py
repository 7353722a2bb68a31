"""Finds which kind of data a path holds, and which streams its sub-folders make. Other data are refused by name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamd.config.load import CONFIG_SUFFIXES
from streamd.core.text import format_count, is_encodable
from streamd.daemon.starter.data_survey import (
    PART_NAMES,
    PATH_KEY,
    SMALL_SAMPLES,
    TEST,
    TRAIN,
    VALIDATION,
    DataKind,
    DataSurvey,
    build_refusal,
    split_train_source,
)
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, format_path, translate_read_errors
from streamd.errors import ConfigError

_TAR_SUFFIX: Final = ".tar"
_TABLE_SUFFIXES: Final = (".csv", ".tsv", ".tab", ".parquet", ".pq")
_HDF5_SUFFIXES: Final = (".h5", ".hdf5", ".hdf")
_LMDB_FILE: Final = "data.mdb"
_ARCHIVES: Final = (".zip", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_SEE_README: Final = "(README, Every kind of data)"
_HDF5_REMEDY: Final = (
    f"write config.yaml yourself, with source: {{kind: hdf5, path: FILE, images: /NAME}} {_SEE_README}"
)
_LMDB_REMEDY: Final = f"write config.yaml yourself, with source: {{kind: lmdb, path: FOLDER, images: X}} {_SEE_README}"
_FILELIST_SOURCE: Final = "source: {kind: filelist, path: FILE} (README, Five minutes on your own images)"
_NPY_REMEDY: Final = f"write config.yaml yourself, with source: {{kind: npy, path: FILE}} {_SEE_README}"
_REFUSED_FILES: Final = (  # suffixes, what such a file is, what to do with it
    (_HDF5_SUFFIXES, "an HDF5 file", _HDF5_REMEDY),
    ((".mdb",), "an LMDB store", _LMDB_REMEDY),
    ((".npy", ".npz"), "a NumPy array", _NPY_REMEDY),
    (
        (".txt", ".lst"),
        "a text",
        f"for lines with a path and a label write config.yaml yourself, with {_FILELIST_SOURCE}",
    ),
    (_ARCHIVES, "compressed", "unpack it, and give the path of the folder or the tar"),
    (CONFIG_SUFFIXES, "a configuration by its suffix", "give its path with --config"),
)
_OTHER_SUFFIXES: Final = (*_HDF5_SUFFIXES, ".mdb", ".npy", ".npz", ".txt", ".lst", *_ARCHIVES)
CONFIG_REMEDY: Final = "give the path of a configuration with --config"
_MAC_ARCHIVE_FOLDER: Final = "__MACOSX"
_SHOWN_NAMES: Final = 5  # names in a note


@dataclass(slots=True)
class _FolderEntries:
    """The names in a folder without hidden ones; images are only counted."""

    folders: list[str] = field(default_factory=list)
    tars: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    images: int = 0


def names_data(path: Path) -> bool:
    """Whether a path names data and not a configuration: a folder, or a file with a suffix of data."""
    suffixes = (_TAR_SUFFIX, *_TABLE_SUFFIXES, *_OTHER_SUFFIXES, *(each.decode() for each in IMAGE_SUFFIXES))
    return path.suffix.lower() in suffixes or path.is_dir()


def names_configuration(path: Path) -> bool:
    """Whether a path names a configuration, by its suffix."""
    return path.suffix.lower() in CONFIG_SUFFIXES and not path.is_dir()


def survey_data(path: Path) -> DataSurvey:
    """Returns the streams that the data at `path` make. Raises ConfigError, which names what lies there instead.

    Reads all cells of a table, and the first of several tars; opens no image.
    """
    whole = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - resolve() would follow the links of the user's own choice
    if not is_encodable(str(whole)):
        raise ConfigError(
            f"{PATH_KEY}: {format_path(whole)} is not a name in UTF-8; rename it, or give the path of a link to it"
        )
    with translate_read_errors(whole, PATH_KEY):
        whole.stat()
        if whole.is_dir():
            return _survey_folder(whole)
    if whole.suffix.lower() in _TABLE_SUFFIXES:
        from streamd.daemon.starter.survey_table import survey_table  # noqa: PLC0415 - loads pyarrow, which takes a while

        return survey_table(whole)
    if whole.suffix.lower() == _TAR_SUFFIX:
        return _survey_shards(whole, {TRAIN: whole}, ())
    raise _refuse_file(whole)


def _refuse_file(path: Path) -> ConfigError:
    suffix = path.suffix.lower()
    if suffix.encode() in IMAGE_SUFFIXES:
        return build_refusal(
            f"{format_path(path)} is a single image", f"give the path of its folder, {format_path(path.parent)}"
        )
    for suffixes, what, remedy in _REFUSED_FILES:
        if suffix in suffixes:
            return build_refusal(f"{format_path(path)} is {what}", remedy)
    return build_refusal(
        f"{format_path(path)} does not have a suffix that streamd knows", "give the path of one of these"
    )


def list_folder_entries(folder: Path) -> _FolderEntries:
    """Returns the names in a folder, sorted. Raises ConfigError."""
    found, images = _FolderEntries(), tuple(each.decode() for each in IMAGE_SUFFIXES)
    with translate_read_errors(folder, PATH_KEY), os.scandir(folder) as listing:
        for entry in listing:
            small = entry.name.lower()
            if entry.name.startswith(".") or entry.name == _MAC_ARCHIVE_FOLDER:
                continue
            if entry.is_dir():
                found.folders.append(entry.name)
            elif small.endswith(images):
                found.images += 1
            else:
                (found.tars if entry.name.endswith(_TAR_SUFFIX) else found.others).append(entry.name)
    for names in (found.folders, found.tars, found.others):
        names.sort()
    return found


def _survey_folder(path: Path) -> DataSurvey:
    top = list_folder_entries(path)
    parts = find_part_folders(top.folders)
    folders = {name: path / folder for name, folder in parts.items()} or {TRAIN: path}
    entries = {name: list_folder_entries(folder) if parts else top for name, folder in folders.items()}
    kinds = {name: _find_folder_kind(folders[name], entries[name]) for name in folders}
    for name, kind in kinds.items():
        if kind != kinds[TRAIN]:
            raise build_refusal(
                f"{format_path(folders[TRAIN])} holds {_KIND_NOUNS[kinds[TRAIN]]}, and {format_path(folders[name])} "
                f"{_KIND_NOUNS[kind]}",
                "name one of the two",
            )
    notes = tuple(_find_folder_notes(path, top, parts))
    if kinds[TRAIN] == "tar":
        return _survey_shards(path, folders, notes)
    return _survey_image_folders(path, folders, entries, notes)


_KIND_NOUNS: Final[dict[DataKind, str]] = {"folder": "images", "tar": "tars", "table": "a table"}


def find_part_folders(names: list[str]) -> dict[str, str]:
    """Returns the sub-folders that are parts of the data, by stream; none where `train` may be a class."""
    small = {name.casefold(): name for name in reversed(names)}
    found = {
        stream: next(small[spelled] for spelled in spellings if spelled in small)
        for stream, spellings in PART_NAMES.items()
        if not small.keys().isdisjoint(spellings)
    }
    # A folder named train beside other folders may be a class. Alone, or beside validation or test, it is a part.
    is_parts = TRAIN in found and (len(found) > 1 or len(names) == 1)
    return found if is_parts else {}


def _find_folder_notes(path: Path, top: _FolderEntries, parts: dict[str, str]) -> list[str]:
    notes, served = [], _format_names([*parts.values()])
    if others := [name for name in top.folders if parts and name not in parts.values()]:
        notes.append(f"not served: the sub-folders {_format_names(others)} next to {served}")
    if parts and (top.images or top.tars):
        beside = format_count(top.images, "image") if top.images else format_count(len(top.tars), "tar")
        notes.append(f"not served: {beside} next to the sub-folders {served}")
    tables = [name for name in top.others if name.lower().endswith(_TABLE_SUFFIXES)][:_SHOWN_NAMES]
    labels = "takes labels from its columns"
    return [*notes, *(f"there is also {table}: streamd init {path / table} {labels}" for table in tables)]


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more


def _find_folder_kind(path: Path, entries: _FolderEntries) -> DataKind:
    """Returns `folder` for images, `tar` for tars. Raises ConfigError if the folder holds both or neither."""
    if not entries.tars:
        if entries.images or _has_image_folder(path, entries):
            return "folder"
        raise _refuse_folder_without_images(path, entries)
    image_folder = next((name for name in entries.folders if holds_images(path / name)), None)
    if entries.images or image_folder is not None:
        images = format_count(entries.images, "image") if entries.images else f"the images of {image_folder!r}"
        raise build_refusal(
            f"{format_path(path)} holds both {format_count(len(entries.tars), 'tar')}, such as {entries.tars[0]!r}, "
            f"and {images}",
            "put the tars and the images into separate folders, and give the path of one of them",
        )
    return "tar"


def _refuse_folder_without_images(path: Path, entries: _FolderEntries) -> ConfigError:
    name, suffixes = format_path(path), {Path(each).suffix.lower() for each in entries.others}
    if _LMDB_FILE in entries.others:
        return build_refusal(f"{name} is an LMDB store", _LMDB_REMEDY)
    if ".npy" in suffixes:
        return build_refusal(f"{name} holds NumPy arrays", _NPY_REMEDY)
    nameable = [each for each in entries.others if each.lower().endswith((*_TABLE_SUFFIXES, *_HDF5_SUFFIXES))]
    if nameable:
        return build_refusal(f"{name} holds no images, only {nameable[0]!r}", f"name {format_path(path / nameable[0])}")
    if configs := [each for each in entries.others if each.lower().endswith(CONFIG_SUFFIXES)]:
        return build_refusal(f"{name} holds no images, only {configs[0]!r}", CONFIG_REMEDY)
    for folder in entries.folders:
        if list_folder_entries(path / folder).tars:
            return build_refusal(f"{name} holds tars in {folder!r}", f"name {format_path(path / folder)}")
    looked = b" ".join(IMAGE_SUFFIXES).decode()
    state = "is empty" if not (entries.folders or entries.others) else "holds no images"
    return build_refusal(f"{name} {state}", f"looked for {looked} and .tar; correct the path, or put images there")


def holds_images(folder: Path) -> bool:
    """Whether an image lies in a folder or anywhere below it."""
    return count_images(folder, 1) > 0


def count_images(folder: Path, enough: int) -> int:
    """Counts the images in and below a folder; stops when there are `enough`."""
    # Real paths are compared, since links may form a circle.
    waiting, walked, images = [folder], {os.path.realpath(folder)}, 0
    while waiting and images < enough:
        place = waiting.pop()
        entries = list_folder_entries(place)
        images += entries.images
        for name in reversed(entries.folders):
            real = os.path.realpath(place / name)
            if real not in walked:
                walked.add(real)
                waiting.append(place / name)
    return images


def _survey_image_folders(
    path: Path, folders: dict[str, Path], entries: dict[str, _FolderEntries], notes: tuple[str, ...]
) -> DataSurvey:
    """Surveys folders of images: each is flat and without labels, or has one sub-folder for each class."""
    flat = {name for name, each in entries.items() if each.images and not _has_image_folder(folders[name], each)}
    own: dict[str, dict[str, object]] = {} if TRAIN in flat else {name: {} for name in flat}
    single = "" if TRAIN in flat or len(entries[TRAIN].folders) > 1 else entries[TRAIN].folders[0]
    if single:
        notes = (*notes, _build_single_class_note(folders[TRAIN] / single))
    return DataSurvey(
        path,
        "folder",
        build_part_sources({name: {"path": str(folder)} for name, folder in folders.items()}),
        VALIDATION not in folders,
        count_images(folders[TRAIN], SMALL_SAMPLES) < SMALL_SAMPLES,
        {} if TRAIN in flat else None,
        own,
        notes=notes,
    )


def _build_single_class_note(folder: Path) -> str:
    """The classes may lie one folder deeper than the path that was named."""
    inner = list_folder_entries(folder).folders
    if inner and all(holds_images(folder / name) for name in inner[:_SHOWN_NAMES]):
        return f"one class only, {folder.name}: name {format_path(folder)} for the classes {_format_names(inner)}"
    return f"one class only, {folder.name}: labels: {{}} takes the images without labels"


def _has_image_folder(path: Path, entries: _FolderEntries) -> bool:
    return any(holds_images(path / name) for name in entries.folders)


def build_part_sources(sources: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """Returns the sources of all streams, train first; without validation data, a part of train is held back."""
    if VALIDATION in sources:
        return sources
    tests = {TEST: sources[TEST]} if TEST in sources else {}
    return {**split_train_source(sources[TRAIN]), **tests}


def _survey_shards(path: Path, folders: dict[str, Path], notes: tuple[str, ...]) -> DataSurvey:
    from streamd.daemon.starter.survey_shards import survey_shard_labels  # noqa: PLC0415 - loads pyarrow, which takes a while

    found = survey_shard_labels(folders[TRAIN])
    return DataSurvey(
        path,
        "tar",
        build_part_sources({name: {"path": str(folder)} for name, folder in folders.items()}),
        VALIDATION not in folders,
        found.images < SMALL_SAMPLES,
        found.labels,
        left_out=found.left_out,
        notes=(*notes, *found.notes),
    )
