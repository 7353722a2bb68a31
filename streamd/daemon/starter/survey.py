"""Finds which kind of data a path holds, and which streams its sub-folders make. Other data are refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from streamd.core.text import format_count, format_list, is_encodable
from streamd.dataset.layouts import (
    CONFIG_SUFFIXES,
    TEST,
    TRAIN,
    VALIDATION,
    FolderTree,
    FoundLayout,
    Settings,
    build_coco_layout,
    build_yolo_layout,
    find_layouts,
    find_part_folders,
    holds_streams,
    is_yolo_file,
    read_coco_names,
)
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, format_path, translate_read_errors
from streamd.errors import ConfigError

DataKind = Literal["folder", "table", "tar", "yolo", "coco"]

PATH_KEY: Final = "PATH"  # the argument's name in messages
SMALL_SAMPLES: Final = 100  # with so many samples, a part of a fifth is empty for one seed in billions
KINDS_SERVED: Final = (
    "a folder of images, with masks or without, a table (.csv, .tsv, .parquet), a tar file, a folder of tar files, a "
    "COCO file, or YOLO's data.yaml"
)


@dataclass(frozen=True, slots=True)
class StarterChoices:
    """What a user decides where the data leave it open: `root` of file names, names of `labels`, `encoding` of text."""

    root: Path | None = None
    labels: tuple[str, ...] = ()
    encoding: str | None = None


@dataclass(frozen=True, slots=True)
class DataSurvey:
    """The streams that the data make.

    `sources` has the keys of each stream's source except `kind`, train first; paths are absolute. `is_small` means that
    there may be so few samples that one side of a split would be empty by most seeds. `labels` None stands for the
    labels that the source has by itself. `own_labels` are those of streams whose labels differ from train. `masks` are
    the patterns, below `path`, of the masks of each stream's pictures. `left_out` gives the reason for each column that
    is no label. `layout` says as what the data were recognised, where that is more than folders of pictures.
    """

    path: Path
    kind: DataKind
    sources: Mapping[str, Settings]
    is_small: bool
    labels: Mapping[str, object] | None = None
    own_labels: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""
    notes: tuple[str, ...] = ()
    split_seed: int = 0

    @property
    def is_split(self) -> bool:
        """Whether validation is held back from the samples of train, by `split_seed`."""
        return "part" in self.sources[TRAIN] and self.kind != "yolo"  # which lists its parts itself


def build_part_sources(sources: dict[str, Settings]) -> dict[str, Settings]:
    """Returns the sources of all streams, train first; without validation data, a part of train is held back."""
    if VALIDATION in sources:
        return sources
    tests = {TEST: sources[TEST]} if TEST in sources else {}
    return {**{name: {**sources[TRAIN], "part": name} for name in (TRAIN, VALIDATION)}, **tests}


def build_refusal(what: str, remedy: str) -> ConfigError:
    """Returns the error for a path from which no configuration can be made."""
    return ConfigError(f"{PATH_KEY}: {what}; streamd makes a configuration only from {KINDS_SERVED}: {remedy}")


# --- which kind of data a path holds, and which streams its sub-folders make; other data are refused by name

_TAR_SUFFIX: Final = ".tar"
_TABLE_SUFFIXES: Final = (".csv", ".tsv", ".tab", ".parquet", ".pq")
_HDF5_SUFFIXES: Final = (".h5", ".hdf5", ".hdf")
_LMDB_FILE: Final = "data.mdb"
_ARCHIVES: Final = (".zip", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_TFRECORD_SUFFIXES: Final = (".tfrecord", ".tfrecords")
_ROW_SUFFIXES: Final = (".arrow", ".feather", ".jsonl")
_SHEET_SUFFIXES: Final = (".xlsx", ".xls", ".ods")
_SEE_PAGE: Final = "(docs/data.md)"
_HDF5_REMEDY: Final = f"write config.yaml yourself, with source: {{kind: hdf5, path: FILE, images: /NAME}} {_SEE_PAGE}"
_LMDB_REMEDY: Final = f"write config.yaml yourself, with source: {{kind: lmdb, path: FOLDER, images: X}} {_SEE_PAGE}"
_FILELIST_SOURCE: Final = "source: {kind: filelist, path: FILE} (docs/data.md#file-lists)"
_NPY_REMEDY: Final = f"write config.yaml yourself, with source: {{kind: npy, path: FILE}} {_SEE_PAGE}"
_REFUSED_FILES: Final = (  # suffixes, what such a file is, what to do with it
    (_HDF5_SUFFIXES, "an HDF5 file", _HDF5_REMEDY),
    ((".mdb",), "an LMDB store", _LMDB_REMEDY),
    ((".npy", ".npz"), "a NumPy array", _NPY_REMEDY),
    (
        (".txt", ".lst"),
        "a text",
        f"for lines with a path and a label write config.yaml yourself, with {_FILELIST_SOURCE}",
    ),
    (_TFRECORD_SUFFIXES, "a TFRecord", "kind: tfrecord is not in this version: write its pictures into tar files"),
    (_ROW_SUFFIXES, "a table that is not read in this version", "save it as .parquet or .csv"),
    (_SHEET_SUFFIXES, "a spreadsheet", "export it as .csv"),
    (_ARCHIVES, "compressed", "unpack it, and give the path of the folder or the tar"),
)
_OTHER_SUFFIXES: Final = tuple(suffix for suffixes, _, _ in _REFUSED_FILES for suffix in suffixes)
CONFIG_REMEDY: Final = "give the path of a configuration with --config"
_CONFIG_KINDS: Final = (
    "a configuration has streams:, YOLO's data.yaml has train: and names:, and a COCO file has images, annotations and "
    "categories"
)
_SHOWN_NAMES: Final = 5  # names in a note


def names_data(path: Path) -> bool:
    """Whether a path names data and not a configuration: a folder, a file with a suffix of data, YOLO's, or COCO's."""
    suffixes = (_TAR_SUFFIX, *_TABLE_SUFFIXES, *_OTHER_SUFFIXES, *(each.decode() for each in IMAGE_SUFFIXES))
    return path.suffix.lower() in suffixes or path.is_dir() or _is_annotation_file(path)


def names_configuration(path: Path) -> bool:
    """Whether a path names a configuration, by its suffix and its keys."""
    return path.suffix.lower() in CONFIG_SUFFIXES and not path.is_dir() and not _is_annotation_file(path)


def _is_annotation_file(path: Path) -> bool:
    if path.suffix.lower() not in CONFIG_SUFFIXES or not path.is_file() or holds_streams(path):
        return False
    return read_coco_names(path) is not None if path.suffix.lower() == ".json" else is_yolo_file(path)


def survey_data(path: Path, choices: StarterChoices | None = None) -> DataSurvey:
    """Returns the streams that the data at `path` make. Raises ConfigError, which names what lies there instead.

    Reads all cells of a table, and the first of several tars; opens no image. What libraries are slow to load for is
    in `survey_labels`.
    """
    chosen = choices or StarterChoices()
    whole = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - resolve() would follow the links of the user's own choice
    if not is_encodable(str(whole)):
        raise ConfigError(
            f"{PATH_KEY}: {format_path(whole)} is not a name in UTF-8; rename it, or give the path of a link to it"
        )
    with translate_read_errors(whole, PATH_KEY):
        whole.stat()
        if whole.is_dir():
            return _survey_folder(FolderTree(whole), chosen)
    suffix, named = whole.suffix.lower(), format_path(whole)
    if suffix in _TABLE_SUFFIXES:
        from streamd.daemon.starter.survey_labels import survey_table  # noqa: PLC0415 - loads pyarrow, which takes a while

        return survey_table(whole, chosen)
    _check_choices(chosen, f"{named} is no table", root=suffix == ".json")
    if suffix == _TAR_SUFFIX:
        from streamd.daemon.starter.survey_labels import survey_shards  # noqa: PLC0415 - as above

        return survey_shards(whole, {TRAIN: whole})
    # A YAML or JSON file is a configuration, or lists the pictures of a YOLO or a COCO data set.
    if suffix in CONFIG_SUFFIXES:
        if holds_streams(whole):
            raise build_refusal(f"{named} is a configuration", "serve or check it, with --config")
        if is_yolo_file(whole):
            return _survey_layout(whole, build_yolo_layout(whole))
        if names := read_coco_names(whole) if suffix == ".json" else None:
            return _survey_layout(whole, build_coco_layout(whole.parent, {whole.name: names}, chosen.root))
        raise build_refusal(f"{named} is neither data nor a configuration", _CONFIG_KINDS)
    if suffix.encode() in IMAGE_SUFFIXES:
        folder = format_path(whole.parent)
        raise build_refusal(f"{named} is a single image", f"give the path of its folder, {folder}")
    for suffixes, what, remedy in _REFUSED_FILES:
        if suffix in suffixes:
            raise build_refusal(f"{named} is {what}", remedy)
    raise build_refusal(f"{named} does not have a suffix that streamd knows", "give the path of one of these")


def _check_choices(choices: StarterChoices, why: str, *, root: bool = False) -> None:
    """Raises ConfigError for choices that only a table takes, and for a root where nothing names files."""
    given = {"--root": choices.root is not None and not root, "--label": choices.labels, "--encoding": choices.encoding}
    for option, value in given.items():
        if value:
            raise ConfigError(f"{option}: says how a table is read, but {why}; leave it out")


def _survey_layout(path: Path, found: FoundLayout) -> DataSurvey:
    """Returns the streams of a layout. Raises ConfigError, which names it, where it is not served as it lies."""
    if not found.streams:
        raise ConfigError(f"{PATH_KEY}: {format_path(path)} looks like {found.name}: {found.seen}; {found.remedy}")
    sources = {name: dict(stream.source) for name, stream in found.streams.items()}
    masks = {name: stream.mask for name, stream in found.streams.items() if stream.mask is not None}
    if VALIDATION not in sources and found.kind != "yolo":
        sources = build_part_sources(sources)
        masks = {name: masks.get(name, masks[TRAIN]) for name in sources} if masks else {}
    return DataSurvey(
        path,
        found.kind,
        sources,
        is_small=found.kind != "yolo" and "part" in sources[TRAIN],
        labels={} if masks else None,
        masks=masks,
        layout=f"this looks like {found.name}: {found.seen}",
        notes=found.notes,
    )


def _survey_folder(tree: FolderTree, choices: StarterChoices) -> DataSurvey:
    path, parts = tree.root, find_part_folders(tree.folders())
    found = find_layouts(tree)
    if len(found) > 1:
        raise ConfigError(
            f"{PATH_KEY}: {format_path(path)} could be {' or '.join(each.name for each in found)}: "
            f"{'; '.join(each.seen for each in found)}; give the path of the one that you mean, or write config.yaml "
            f"yourself: {'; or '.join(each.remedy for each in found)}"
        )
    # Parts that are folders of one kind each are surveyed below, since they may hold tars.
    if found and found[0].kind == "table":
        from streamd.daemon.starter.survey_labels import survey_table  # noqa: PLC0415 - loads pyarrow, which takes a while

        table = survey_table(Path(str(found[0].streams[TRAIN].source["path"])), choices)
        return replace(table, layout=f"this looks like {found[0].name}: {found[0].seen}")
    if found and not (parts and found[0].is_parts):
        _check_choices(choices, f"{format_path(path)} is {found[0].name}", root=found[0].kind == "coco")
        return _survey_layout(path, found[0])
    _check_choices(choices, f"{format_path(path)} is a folder")
    folders = dict(parts) or {TRAIN: ""}
    kinds = {name: _find_folder_kind(tree, folder) for name, folder in folders.items()}
    for name, kind in kinds.items():
        if kind != kinds[TRAIN]:
            raise build_refusal(
                f"{format_path(tree.path(folders[TRAIN]))} holds {_KIND_NOUNS[kinds[TRAIN]]}, and "
                f"{format_path(tree.path(folders[name]))} {_KIND_NOUNS[kind]}",
                "name one of the two",
            )
    # What lies beside the data, and is not served.
    notes, served, entries = [], format_list([*parts.values()], _SHOWN_NAMES), tree.entries()
    if others := [name for name in tree.folders() if parts and name not in parts.values()]:
        notes.append(f"not served: the sub-folders {format_list(others, _SHOWN_NAMES)} next to {served}")
    tars = _list_names(tree, "", (_TAR_SUFFIX,))
    if parts and (entries.images or tars):
        beside = format_count(len(entries.images), "image") if entries.images else format_count(len(tars), "tar")
        notes.append(f"not served: {beside} next to the sub-folders {served}")
    tables = [name for folder in ("", *parts.values()) for name in _list_names(tree, folder, _TABLE_SUFFIXES)]
    labels = "takes labels from its columns"
    notes += [f"there is also {name}: streamd init {tree.path(name)} {labels}" for name in tables[:_SHOWN_NAMES]]
    if kinds[TRAIN] == "tar":
        from streamd.daemon.starter.survey_labels import survey_shards  # noqa: PLC0415 - as above

        return survey_shards(path, {name: tree.path(folder) for name, folder in folders.items()}, notes)
    # Folders of images: each is flat and without labels, or has one sub-folder for each class.
    flat = {
        name
        for name, folder in folders.items()
        if tree.entries(folder).images and not any(map(tree.has_images, tree.folders(folder)))
    }
    classes = tree.folders(folders[TRAIN])
    if TRAIN not in flat and len(classes) == 1:
        # The classes may lie one folder deeper than the path that was named.
        inner, only = tree.folders(classes[0]), f"one class only, {Path(classes[0]).name}"
        if inner and all(map(tree.has_images, inner[:_SHOWN_NAMES])):
            deeper = format_list([Path(each).name for each in inner], _SHOWN_NAMES)
            notes.append(f"{only}: name {format_path(tree.path(classes[0]))} for the classes {deeper}")
        else:
            notes.append(f"{only}: labels: {{}} takes the images without labels")
    return DataSurvey(
        path,
        "folder",
        build_part_sources({name: {"path": str(tree.path(folder))} for name, folder in folders.items()}),
        is_small=sum(1 for _ in islice(tree.walk_images(folders[TRAIN]), SMALL_SAMPLES)) < SMALL_SAMPLES,
        labels={} if TRAIN in flat else None,
        own_labels={} if TRAIN in flat else {name: {} for name in flat},
        notes=tuple(notes),
    )


_KIND_NOUNS: Final[dict[DataKind, str]] = {"folder": "images", "tar": "tars"}


def _list_names(tree: FolderTree, folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """Returns the files of these suffixes in a folder, relative to the root of the tree."""
    names = [os.fsdecode(name) for name in tree.entries(folder).others]
    return [os.path.join(folder, name) for name in names if name.lower().endswith(suffixes)]  # noqa: PTH118 - a name


def _find_folder_kind(tree: FolderTree, folder: str) -> DataKind:
    """Returns `folder` for images, `tar` for tars. Raises ConfigError if the folder holds both or neither."""
    path, entries, tars = tree.path(folder), tree.entries(folder), _list_names(tree, folder, (_TAR_SUFFIX,))
    image_folder = next((name for name in tree.folders(folder) if tree.has_images(name)), None)
    has_images, name = bool(entries.images or image_folder is not None), format_path(path)
    if tars and has_images:
        count = len(entries.images)
        images = format_count(count, "image") if count else f"the images of {Path(image_folder or '').name!r}"
        raise build_refusal(
            f"{name} holds both {format_count(len(tars), 'tar')}, such as {Path(tars[0]).name!r}, and {images}",
            "put the tars and the images into separate folders, and give the path of one of them",
        )
    if tars or has_images:
        return "tar" if tars else "folder"
    # Neither: the refusal names what is there instead, and the path that may have been meant.
    others = [os.fsdecode(each) for each in entries.others]
    if _LMDB_FILE in others:
        raise build_refusal(f"{name} is an LMDB store", _LMDB_REMEDY)
    if any(each.lower().endswith(".npy") for each in others):
        raise build_refusal(f"{name} holds NumPy arrays", _NPY_REMEDY)
    nameable = [each for each in others if each.lower().endswith((*_TABLE_SUFFIXES, *_HDF5_SUFFIXES))]
    if nameable:
        raise build_refusal(f"{name} holds no images, only {nameable[0]!r}", f"name {format_path(path / nameable[0])}")
    if configs := [each for each in others if each.lower().endswith(CONFIG_SUFFIXES)]:
        raise build_refusal(f"{name} holds no images, only {configs[0]!r}", CONFIG_REMEDY)
    folders = tree.folders(folder)
    for inner in folders:
        if _list_names(tree, inner, (_TAR_SUFFIX,)):
            raise build_refusal(f"{name} holds tars in {Path(inner).name!r}", f"name {format_path(tree.path(inner))}")
    looked = b" ".join(IMAGE_SUFFIXES).decode()
    state = "is empty" if not (folders or others) else "holds no images"
    raise build_refusal(f"{name} {state}", f"looked for {looked} and .tar; correct the path, or put images there")
