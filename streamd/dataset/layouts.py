"""Recognises how data sets lie in a folder, so that none is taken for one folder a class which is none.

`ANNOTATED_LAYOUTS` and `FOLDER_LAYOUTS` list what recognises each layout. `streamd init`, `serve PATH` and
`local(PATH)` serve what they recognise, or refuse it by its name; a folder that a configuration names as
`kind: folder` is served as it says, with a warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from streamd.core.text import format_count, format_list
from streamd.dataset.paths.confined import format_path, is_file_beneath
from streamd.dataset.paths.patterns import FolderEntries, list_folder_entries
from streamd.dataset.yolo.data_yaml import load_data_yaml, read_data_yaml
from streamd.errors import ConfigError
from streamd.limits import MAX_ANNOTATION_BYTES, MAX_DATA_YAML_BYTES

TRAIN: Final = "train"
VALIDATION: Final = "validation"
TEST: Final = "test"
PART_NAMES: Final = {
    TRAIN: ("train", "training"),
    VALIDATION: ("validation", "val", "valid", "dev", "eval"),
    TEST: ("test", "testing"),
}
PART_OF_WORD: Final = {word: part for part, words in PART_NAMES.items() for word in words}
_PICTURE_WORDS: Final = frozenset(
    {"image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "rgb", "input", "inputs", "frames"}
)
_MASK_WORDS: Final = frozenset(
    {
        *("mask", "masks", "label", "labels", "annot", "annots", "annotation", "annotations", "seg", "segs"),
        *("segmentation", "segmentations", "gt", "groundtruth", "truth", "target", "targets", "trimap", "trimaps"),
    }
)
_IDLE_WORDS: Final = frozenset({"pred", "predict", "prediction", "predictions", "unlabeled", "unlabelled", "extra"})
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of trainA, train2017, JPEGImages, gtFine
_MASK_ENDS: Final = re.compile(r"[-_. ]?(masks?|seg|segmentation|gt|groundtruth|labels?|annot|matte)$", re.IGNORECASE)
_TRIED_NAMES: Final = 20  # of an annotation file, looked for to find the root of its pictures
_TRIED_FOLDERS: Final = 8  # in which files beside pictures are looked for: a folder of classes may have thousands
_TRIED_TEXTS: Final = 3  # files beside pictures, of which the first lines are read
_TEXT_BYTES: Final = 4096  # read of each
_BOX_LINE: Final = re.compile(rb"\s*[0-9]+(?:\s+-?[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?){4,}\s*")
_STREAMS_KEY: Final = re.compile(rb"""(?:^|[{,]\s*)["']?streams["']?\s*:""", re.MULTILINE)
_SHOWN_NAMES: Final = 5
_METADATA_NAMES: Final = frozenset({b"metadata.csv", b"metadata.tsv", b"metadata.parquet", b"metadata.jsonl"})
_YAML_SUFFIXES: Final = (b".yaml", b".yml")
CONFIG_SUFFIXES: Final = (".yaml", ".yml", ".json")

Settings = dict[str, object]
ServedKind = Literal["folder", "yolo", "coco", "table"]


class FolderTree:
    """Reads folders below `root` as they are asked for, each once. Names are relative to the root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries: dict[str, FolderEntries] = {}

    def path(self, name: str) -> Path:
        return self.root / name

    def entries(self, folder: str = "") -> FolderEntries:
        """Lists a folder. Raises OSError."""
        if folder not in self._entries:
            self._entries[folder] = list_folder_entries(os.fsencode(self.root / folder))
        return self._entries[folder]

    def folders(self, folder: str = "") -> list[str]:
        """Returns the names of the sub-folders, relative to the root."""
        return [os.path.join(folder, os.fsdecode(name)) for name in self.entries(folder).folders]  # noqa: PTH118 - a name

    def walk_images(self, folder: str = "") -> Iterator[str]:
        """Yields the images in a folder and anywhere below it, relative to that folder. Links may form a circle."""
        waiting, walked = [folder], {os.path.realpath(self.root / folder)}
        while waiting:
            place = waiting.pop()
            for name in self.entries(place).images:
                yield os.path.join(place, os.fsdecode(name))[len(folder) + bool(folder) :]  # noqa: PTH118 - a name
            for inner in reversed(self.folders(place)):
                real = os.path.realpath(self.root / inner)
                if real not in walked:
                    walked.add(real)
                    waiting.append(inner)

    def has_images(self, folder: str) -> bool:
        """Whether an image lies in a folder or anywhere below it."""
        return next(self.walk_images(folder), None) is not None


@dataclass(frozen=True, slots=True)
class LayoutStream:
    """The samples of one stream: the keys of its `source` except `kind`, and the pattern of masks below the root."""

    source: Settings
    mask: str | None = None


@dataclass(frozen=True, slots=True)
class FoundLayout:
    """A layout that a folder has: what was `seen`, and what to write or to do.

    `kind` and `streams` are what it becomes; without streams it is not served as it lies. `is_unsure`: only names of
    folders speak for it, so any other layout is likelier.
    """

    name: str
    seen: str
    remedy: str
    kind: ServedKind = "folder"
    streams: Mapping[str, LayoutStream] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_unsure: bool = False

    @property
    def is_parts(self) -> bool:
        """Whether the folders are parts, each of which is as it would be alone."""
        return self.kind == "folder" and bool(self.streams) and all(each.mask is None for each in self.streams.values())


def find_layouts(tree: FolderTree, *, structure: bool = True) -> list[FoundLayout]:
    """Returns the layouts that a folder has: none for one folder a class, several where it could be two things.

    Without `structure`, only those that are more than folders of pictures. Raises OSError, and ConfigError for a
    data.yaml with a mistake.
    """
    found = [each for recognize in ANNOTATED_LAYOUTS if (each := recognize(tree)) is not None]
    found = [each for each in found if not each.is_unsure] or found
    for recognize in FOLDER_LAYOUTS if structure and not found else ():
        if (each := recognize(tree)) is not None:
            return [each]
    return found


def find_part_folders(names: Iterable[str]) -> dict[str, str]:
    """Returns the sub-folders that are parts of the data, by stream; none where `train` may be a class."""
    known = [*names]
    small = {name.casefold(): name for name in reversed(known)}
    found = {
        stream: next(small[spelled] for spelled in spellings if spelled in small)
        for stream, spellings in PART_NAMES.items()
        if not small.keys().isdisjoint(spellings)
    }
    # A folder named train beside other folders may be a class. Alone, or beside validation or test, it is a part.
    is_parts = TRAIN in found and (len(found) > 1 or len(known) == 1)
    return found if is_parts else {}


# --- YOLO


def _find_yolo(tree: FolderTree) -> FoundLayout | None:
    name = "a YOLO data set"
    top = tree.entries()
    named = [os.fsdecode(name) for name in top.others if name.lower().endswith(_YAML_SUFFIXES)]
    files = [name for name in named if is_yolo_file(tree.path(name))]
    if len(files) > 1:
        return FoundLayout(
            name, f"{format_list(files, _SHOWN_NAMES)} have train and names", "give the path of one of them"
        )
    if files:
        return build_yolo_layout(tree.path(files[0]))
    # Without a data.yaml, text files with boxes speak for it: beside pictures, or in a sub-folder `labels`.
    for folder in ("", *tree.folders()[:_TRIED_FOLDERS]):
        entries = tree.entries(folder)
        stems = {os.path.splitext(each)[0] for each in entries.images}  # noqa: PTH122 - names are bytes
        split = ((each, *os.path.splitext(each)) for each in entries.others)  # noqa: PTH122 - as above
        texts = [Path(folder, os.fsdecode(each)) for each, stem, end in split if end == b".txt" and stem in stems]
        inner = next((os.fsdecode(each) for each in entries.folders if each.lower() == b"labels"), None)
        if inner is not None:
            labels = str(Path(folder, inner))
            texts += [
                Path(place, os.fsdecode(each))
                for place in (labels, *tree.folders(labels))
                for each in tree.entries(place).others
                if each.endswith(b".txt") and each != b"classes.txt"
            ]
        for text in texts[:_TRIED_TEXTS]:
            if _BOX_LINE.fullmatch(_read_beginning(tree.root / text).split(b"\n")[0]):
                return FoundLayout(
                    f"{name} without its data.yaml",
                    f"{format_path(text)} has boxes of one picture",
                    "write a data.yaml with  path: .,  train: FOLDER,  val: FOLDER  and  names: [CLASSES],  and give "
                    "its path (kind: yolo)",
                )
    return None


def is_yolo_file(path: Path) -> bool:
    """Whether a YAML file is the data.yaml of a YOLO data set: it has `train` and `names`."""
    try:
        return path.stat().st_size <= MAX_DATA_YAML_BYTES and {"train", "names"} <= load_data_yaml(path, "").keys()
    except (ConfigError, OSError):
        return False


def holds_streams(path: Path) -> bool:
    """Whether a path is a YAML or JSON file with the key `streams`, and so a configuration of streamd."""
    if path.suffix.lower() not in CONFIG_SUFFIXES or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return _STREAMS_KEY.search(file.read(MAX_DATA_YAML_BYTES)) is not None
    except OSError:
        return False


def build_yolo_layout(path: Path) -> FoundLayout:
    """Returns the streams of a data.yaml: the parts that it names, and test only where its pictures are there."""
    streams: dict[str, LayoutStream] = {}
    notes: list[str] = []
    keys = {TRAIN: "train", VALIDATION: "val", TEST: "test"}
    data = load_data_yaml(path, "PATH")
    for part, key in keys.items():
        if data.get(key) is None:
            continue
        if part == TEST and not all(place.exists() for place in read_data_yaml(path, "test", "PATH").places):
            notes.append(f"not served: test of {path.name}, whose pictures are not there")
            continue
        streams[part] = LayoutStream({"path": str(path), "part": part})
    if data.get("val") == data.get("train"):
        notes.append(f"train and val of {path.name} are the same pictures, so that validation measures nothing")
    if VALIDATION not in streams:
        notes.append(f"{path.name} has no val, so there is no stream for validation")
    name = format_path(path)
    return FoundLayout(
        "a YOLO data set",
        f"{path.name} has train and names",
        f"write source: {{kind: yolo, path: {name}, part: train}}",
        "yolo",
        streams,
        notes=tuple(notes),
    )


def _read_beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_TEXT_BYTES)


# --- COCO


class _CocoName(msgspec.Struct, gc=False):
    file_name: str


class _CocoHead(msgspec.Struct):
    images: list[_CocoName]
    categories: list[msgspec.Raw]
    annotations: list[msgspec.Raw] | None = None


_coco_decoder: Final = msgspec.json.Decoder(_CocoHead)


def read_coco_names(path: Path) -> list[str] | None:
    """Returns the names of pictures in a file of boxes; None if it is no COCO file, empty if it has no annotations."""
    try:
        if path.stat().st_size > MAX_ANNOTATION_BYTES:
            return None
        head = _coco_decoder.decode(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return [] if head.annotations is None else [each.file_name for each in head.images]


def _find_coco(tree: FolderTree) -> FoundLayout | None:
    parts = find_part_folders(tree.folders())
    folders = ["", *(each for each in tree.folders() if each.lower() == "annotations"), *parts.values()]
    named = [
        os.path.join(folder, os.fsdecode(name))  # noqa: PTH118 - a name
        for folder in folders
        for name in tree.entries(folder).others
        if name.lower().endswith(b".json")
    ]
    found = {name: names for name in named if (names := read_coco_names(tree.path(name))) is not None}
    if not found:
        by_name = [name for name in named if re.search(r"(^|/)(instances_|person_keypoints_)|\.coco\.json$", name)]
        if not by_name:
            return None
        return FoundLayout(
            "a COCO data set",
            f"{by_name[0]} has the name of a COCO file, but not its images, annotations and categories",
            "copy it again, or remove it",
        )
    return build_coco_layout(tree.root, found, None)


def build_coco_layout(folder: Path, files: Mapping[str, Sequence[str]], root: Path | None) -> FoundLayout:
    """Returns the streams of COCO files below `folder`, given with the names of their pictures.

    A file is one list; files named train, validation and test become these streams.
    """
    name, notes = (
        "a COCO data set",
        [f"not served: {each}, which has no annotations" for each in files if not files[each]],
    )
    listed = [each for each in files if files[each]]
    instances = [each for each in listed if "instances" in each]
    if instances and len(instances) < len(listed):
        notes += [
            f"not served: {each}, beside {instances[0]}; give its path for it"
            for each in listed
            if each not in instances
        ]
        listed = instances
    by_part: dict[str, list[str]] = {}
    for each in listed:
        by_part.setdefault(TRAIN if len(listed) == 1 else _find_part_of_name(each), []).append(each)
    seen = (
        f"{format_list(listed or [*files], _SHOWN_NAMES)} {'has' if len(listed) == 1 else 'have'} images and categories"
    )
    if TRAIN not in by_part or any(part == "" or len(several) > 1 for part, several in by_part.items()):
        return FoundLayout(name, seen, "give the path of one of them: a file is one list")
    streams: dict[str, LayoutStream] = {}
    for part in (TRAIN, VALIDATION, TEST):
        if part not in by_part:
            continue
        file = by_part[part][0]
        place = root or _find_picture_root(folder, file, files[file])
        if place is None:
            return FoundLayout(
                name,
                f"none of the pictures that {file} names, such as {files[file][0]!r}, is near it",
                f"give their folder with --root, or write source: {{kind: coco, path: {file}, root: FOLDER}}",
            )
        streams[part] = LayoutStream({"path": str(folder / file), "root": str(place)})
    path, where = (format_path(str(streams[TRAIN].source[key])) for key in ("path", "root"))
    return FoundLayout(
        name, seen, f"write source: {{kind: coco, path: {path}, root: {where}}}", "coco", streams, tuple(notes)
    )


def _find_part_of_name(file: str) -> str:
    """Returns the part that a file's name or its folder's has among its words; empty if none or two."""
    for text in (Path(file).stem, Path(file).parent.name):
        found = {PART_OF_WORD[word] for word in split_words(text) if word in PART_OF_WORD}
        if len(found) == 1:
            return found.pop()
    return ""


def _find_picture_root(folder: Path, file: str, names: Sequence[str]) -> Path | None:
    """Returns the folder below which most of the pictures are: near the file, or in a sub-folder of the data."""
    tried = [os.fsencode(name) for name in names[:: max(1, len(names) // _TRIED_NAMES)]]
    beside, tree = (folder / file).parent, FolderTree(folder)
    tops = tree.folders()
    places = [beside, folder, *map(tree.path, tops), *(tree.path(each) for top in tops for each in tree.folders(top))]
    # Files of two parts may have pictures of one name; a folder that the file is named after comes first.
    places.sort(key=lambda place: place.name not in Path(file).stem)
    best = max(places, key=lambda place: sum(is_file_beneath(place, name) for name in tried))
    return best if any(is_file_beneath(best, name) for name in tried) else None


# --- Pascal VOC, LabelMe


def _find_voc(tree: FolderTree) -> FoundLayout | None:
    small = {name.lower(): os.fsdecode(name) for name in tree.entries().folders}
    if b"annotations" in small and b"jpegimages" in small:
        seen = f"{small[b'annotations']} and {small[b'jpegimages']} lie side by side"
    else:
        xml = _find_file_of_picture(tree, b".xml", b"<annotation")
        if xml is None:
            return None
        seen = f"{format_path(xml)} describes one picture"
    return FoundLayout(
        "Pascal VOC",
        seen,
        "kind: voc is not in this version: convert its boxes to a COCO file, or to a table with a cell of boxes a "
        "picture (docs/boxes.md)",
    )


def _find_labelme(tree: FolderTree) -> FoundLayout | None:
    found = _find_file_of_picture(tree, b".json", b'"shapes"')
    if found is None:
        return None
    return FoundLayout(
        "LabelMe",
        f"{format_path(found)} has the shapes of one picture",
        "convert it to a COCO file, or to a table with a cell of boxes a picture (docs/boxes.md)",
    )


def _find_file_of_picture(tree: FolderTree, suffix: bytes, mark: bytes) -> Path | None:
    """Returns a file with the stem of a picture, beside it or in a folder of annotations, that has `mark` in it."""
    for folder in ("", *tree.folders()[:_TRIED_FOLDERS]):
        is_annotations = not _MASK_WORDS.isdisjoint(split_words(folder))
        entries = tree.entries(folder)
        stems = {os.path.splitext(name)[0] for name in entries.images}  # noqa: PTH122 - names are bytes
        files = [name for name in entries.others if name.lower().endswith(suffix)]
        for name in [each for each in files if is_annotations or os.path.splitext(each)[0] in stems][:_TRIED_TEXTS]:  # noqa: PTH122 - as above
            if mark in _read_beginning(tree.root / folder / os.fsdecode(name)):
                return Path(folder, os.fsdecode(name))
    return None


# --- masks


def split_words(name: str) -> set[str]:
    """Returns the words of a name in small letters: those of `trainA`, `train2017`, `JPEGImages`, `patient_id`."""
    return {word.casefold() for word in _WORD.findall(Path(name).name)}


@dataclass(frozen=True, slots=True)
class _MaskPlace:
    """The masks of the pictures in a folder: their `pattern` below the root; how many pictures have one: `paired`."""

    folder: str
    pattern: str
    pictures: int
    paired: int
    masks: int


def _find_masks(tree: FolderTree) -> FoundLayout | None:
    """Recognises masks in folders of their own.

    images/ and masks/, train/images and train/masks, images/train and masks/train, train/ and train_masks/.
    """
    name = "pictures and their masks"
    parts = find_part_folders(tree.folders())
    streams: dict[str, _MaskPlace] = {}
    for part, base in (parts or {TRAIN: ""}).items():
        pictures, masks = _list_picture_and_mask_folders(tree, base, is_part=bool(parts))
        if not pictures or not masks:
            continue
        found = [place for each in pictures for mask in masks if (place := _pair_masks(tree, each, mask)) is not None]
        if not found:
            return FoundLayout(
                name,
                f"{pictures[0]} and {masks[0]} are both there, but their files have different stems",
                "rename the files so that a mask has the stem of its picture, with or without an ending, or give the "
                "path of the pictures alone",
                is_unsure=True,
            )
        if len(found) > 1:
            pairs = format_list([f"{each.folder} with {each.pattern}" for each in found], _SHOWN_NAMES)
            return FoundLayout(
                name,
                f"masks could be {pairs}",
                "write one of them under images: in a configuration (docs/data.md#several-images)",
            )
        if found:
            streams[part] = found[0]
    if TRAIN not in streams:
        return None
    whole = streams[TRAIN]
    inner = {} if parts else find_part_folders([Path(each).name for each in tree.folders(whole.folder)])
    if inner and not tree.entries(whole.folder).images:
        streams = {
            part: place
            for part, folder in inner.items()
            if (place := _pair_masks(tree, f"{whole.folder}/{folder}", f"{whole.pattern.partition('/{')[0]}/{folder}"))
        }
    return _build_mask_layout(tree, name, streams, {*parts} - {*streams})


def _build_mask_layout(
    tree: FolderTree, name: str, places: Mapping[str, _MaskPlace], unmasked: Iterable[str]
) -> FoundLayout:
    first = places[TRAIN]
    notes = [f"not served: {each}, which has no masks" for each in unmasked]
    if "{dir}" in first.pattern:
        notes.append("the sub-folders are not taken as classes: remove labels: {} for that")
    extra = sum(each.masks - each.paired for each in places.values())
    if extra:
        notes.append(f"{format_count(extra, 'mask belongs', 'masks belong')} to no picture")
    streams = {
        part: LayoutStream({"path": str(tree.path(place.folder))}, place.pattern) for part, place in places.items()
    }
    return FoundLayout(
        name,
        f"the files of {first.folder or 'the folder'} have masks at {first.pattern}",
        f"write source: {{kind: folder, path: {format_path(tree.path(first.folder))}}} and in place of image  images: "
        f'{{photo: {{size: [H, W]}}, mask: {{from: "{first.pattern}", root: {format_path(tree.root)}, like: photo, '
        "mode: index}}",
        "folder",
        streams,
        tuple(notes),
    )


def _list_picture_and_mask_folders(tree: FolderTree, base: str, *, is_part: bool) -> tuple[list[str], list[str]]:
    """Returns the folders in `base` that hold pictures by their names, and those that hold masks; both hold images.

    Beside a part `train` there may also be a folder `train_masks` or `trainannot`.
    """
    words = {folder: split_words(folder) for folder in tree.folders(base)}
    masks = [each for each, found in words.items() if not _MASK_WORDS.isdisjoint(found)]
    pictures = [each for each, found in words.items() if not _PICTURE_WORDS.isdisjoint(found) and each not in masks]
    if is_part and not (pictures and masks):
        ends = {each: each.casefold().removeprefix(base.casefold()).strip("_- ") for each in tree.folders("")}
        pictures = [base]
        masks = [each for each, end in ends.items() if each != base and end in _MASK_WORDS and end != each.casefold()]
    return [each for each in pictures if tree.has_images(each)], [
        inner for each in masks for inner in (each, *tree.folders(each)) if tree.has_images(inner)
    ]


def _pair_masks(tree: FolderTree, pictures: str, masks: str) -> _MaskPlace | None:
    """Returns how the masks of a folder are named after the pictures of another; None if most pictures have none."""
    stems = [os.path.splitext(name)[0] for name in tree.walk_images(pictures)]  # noqa: PTH122 - names
    found = dict(os.path.splitext(name) for name in tree.walk_images(masks))  # noqa: PTH122 - names
    # Nothing may stand behind the stem of a picture in the name of its mask, or an ending like _mask.
    known, ends = {*stems}, [""]
    matches = ((mask, _MASK_ENDS.search(mask)) for mask in found)
    ends += [match[0] for mask, match in matches if match is not None and mask[: match.start()] in known][:1]
    for end in ends:
        paired = [stem + end for stem in stems if stem + end in found]
        suffixes = {found[stem] for stem in paired}
        if 2 * len(paired) > len(stems) and len(suffixes) == 1:
            folder = "{dir}/" if any("/" in stem for stem in stems) else ""
            pattern = f"{masks}/{folder}{{stem}}{end}{suffixes.pop()}".removeprefix("/")
            return _MaskPlace(pictures, pattern, len(stems), len(paired), len(found))
    return None


def _find_masks_beside(tree: FolderTree) -> FoundLayout | None:
    """Recognises masks beside their pictures, as `1.jpg` and `1_mask.png`, in one folder or in those of classes."""
    first = next((each for each in ("", *tree.folders()) if tree.entries(each).images), None)
    if first is None or not _find_own_ends(tree.entries(first).images):
        return None
    names = [*tree.walk_images()]
    ends = _find_own_ends([os.fsencode(name) for name in names])
    name, seen = "pictures and their masks", f"{format_list(sorted(ends), _SHOWN_NAMES)} lie beside pictures"
    if len(ends) != 1:
        return FoundLayout(name, seen, "give all masks one ending and one suffix")
    (end,) = ends
    pattern = ("{dir}/" if first else "") + "{stem}" + end
    masks = [each for each in names if each.endswith(end)]
    place = _MaskPlace("", pattern, len(names) - len(masks), len(masks), len(masks))
    return _build_mask_layout(tree, name, {TRAIN: place}, ())


def _find_own_ends(names: Iterable[bytes]) -> set[str]:
    """Returns the endings, with suffix, of names that are another name with an ending like _mask."""
    texts = [os.fsdecode(name) for name in names]
    stems = {os.path.splitext(text)[0] for text in texts}  # noqa: PTH122 - names
    found = set()
    for text in texts:
        stem, suffix = os.path.splitext(text)  # noqa: PTH122 - names
        end = _MASK_ENDS.search(stem)
        if end is not None and end[0][0] in "-_. " and stem[: end.start()] in stems:
            found.add(end[0] + suffix)
    return found


# --- a table


def _find_metadata(tree: FolderTree) -> FoundLayout | None:
    """Recognises pictures with a table of their labels, as data sets of Hugging Face have it, not beside classes."""
    tables = [os.fsdecode(name) for name in tree.entries().others if name.lower() in _METADATA_NAMES]
    if not tables or sum(map(tree.has_images, tree.folders()[:_TRIED_FOLDERS])) > 1:
        return None
    name, seen = "pictures with a table", f"{format_list(tables, _SHOWN_NAMES)} lies beside the pictures"
    if len(tables) > 1:
        return FoundLayout(name, seen, "give the path of one of them")
    if tables[0].lower().endswith(".jsonl"):
        return FoundLayout(name, seen, ".jsonl is not read in this version: save it as metadata.csv")
    path = tree.path(tables[0])
    remedy = f"write source: {{kind: table, path: {format_path(path)}, image: COLUMN}}"
    return FoundLayout(name, seen, remedy, "table", {TRAIN: LayoutStream({"path": str(path)})})


# --- parts


def _find_parts(tree: FolderTree) -> FoundLayout | None:
    parts = find_part_folders(tree.folders())
    if not parts or not all(tree.has_images(folder) for folder in parts.values()):
        return None
    names = format_list([*parts.values()], _SHOWN_NAMES)
    return FoundLayout(
        "parts of one data set, and not its classes",
        f"the folder holds {names}",
        f"give each its own stream, as path: {format_path(tree.path(parts[TRAIN]))}",
        streams={part: LayoutStream({"path": str(tree.path(folder))}) for part, folder in parts.items()},
    )


def _find_parts_inside_classes(tree: FolderTree) -> FoundLayout | None:
    folders = tree.folders()
    inside: set[str] = set()
    for folder in folders:
        inner = {Path(each).name for each in tree.folders(folder)}
        if tree.entries(folder).images or not inner or not {*map(str.casefold, inner)} <= PART_OF_WORD.keys():
            return None
        inside |= inner
    if len(folders) < 2 or TRAIN not in {PART_OF_WORD[each.casefold()] for each in inside}:  # noqa: PLR2004 - a single one is no class
        return None
    names = format_list(sorted(inside), _SHOWN_NAMES)
    return FoundLayout(
        "parts inside classes",
        f"each of {format_list(folders, _SHOWN_NAMES)} holds {names}, so that training would take all of them",
        f"put the parts outside: move {folders[0]}/train to train/{folders[0]}, and so on; or list the files in a "
        "table with the columns file, label and split",
    )


def _find_parts_by_other_names(tree: FolderTree) -> FoundLayout | None:
    parts = {folder: _find_part_of_name(folder) for folder in tree.folders()}
    found = [folder for folder, part in parts.items() if part]
    others = [folder for folder in parts if folder not in found and _IDLE_WORDS.isdisjoint(split_words(folder))]
    if others or len({*parts.values()} - {""}) < 2 or TRAIN not in parts.values():  # noqa: PLR2004 - two parts
        return None
    if not all(tree.has_images(folder) for folder in found):
        return None
    paired = [folder for folder in found if re.fullmatch(r"(train|val|test)[AB]", folder)]
    what = "unpaired pictures of two domains" if paired == found else "parts of one data set, and not its classes"
    return FoundLayout(
        what,
        f"the folder holds {format_list(found, _SHOWN_NAMES)}",
        f"give the path of one, such as {format_path(tree.path(found[0]))}, or name the parts train, validation and "
        "test",
    )


def _find_wrapped_layout(tree: FolderTree) -> FoundLayout | None:
    """Recognises a layout one folder deeper than the path, as archives unpack."""
    folders = tree.folders()
    if len(folders) != 1 or tree.entries().images:
        return None
    inner = FolderTree(tree.path(folders[0]))
    found = find_layouts(inner)
    if not found or not tree.has_images(folders[0]):
        return None
    return FoundLayout(
        found[0].name, f"the only folder, {folders[0]}: {found[0].seen}", f"give the path {format_path(inner.root)}"
    )


LayoutRecognizer = Callable[[FolderTree], FoundLayout | None]  # one way in which data sets lie in folders

# More than folders of pictures: never several classes, or parts alone.
ANNOTATED_LAYOUTS: Final[tuple[LayoutRecognizer, ...]] = (
    _find_yolo,
    _find_coco,
    _find_voc,
    _find_labelme,
    _find_masks,
    _find_masks_beside,
)
FOLDER_LAYOUTS: Final[tuple[LayoutRecognizer, ...]] = (
    _find_metadata,
    _find_parts,
    _find_parts_inside_classes,
    _find_parts_by_other_names,
    _find_wrapped_layout,
)
