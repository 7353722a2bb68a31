"""The rules between the keys of a stream, each as a condition, the keys below the stream, and a sentence.

Beside them stands what is valid and not served by this version. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from streamd.config.fields import BrokenRule
from streamd.config.images import PICTURE_KINDS, find_frame_rule, list_normalize_rules, takes_own_picture
from streamd.config.schema_sections import BOX_TYPES, ImageConfig, parse_npy_path
from streamd.core.text import is_encodable
from streamd.dataset.files import TableSource
from streamd.errors import suggest_name

if TYPE_CHECKING:
    from streamd.config.schema import Config, StreamConfig

_PARTS: Final = frozenset({"dir", "stem", "name"})
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COLUMN_KINDS: Final = frozenset({"table", "tar"})


def list_stream_rules(stream: StreamConfig) -> Iterator[BrokenRule]:
    """Yields the broken rules of a stream: of its images, of their numbers, of labels, and of several pictures."""
    if stream.images is not None and "image" in stream.model_fields_set:
        yield ("images",), "stands beside image, which is short for one of them; keep one"
        return
    if stream.images is not None and not stream.images:
        yield ("images",), "there are none; write images: {photo: {size: [height, width]}}"
        return
    # The image, or the images: what each needs, and where it lies.
    yield from _list_one_image_rules(stream) if stream.images is None else _list_images_rules(stream)
    # Random crops and the cache.
    source = stream.source
    if stream.is_random_crop and not source.is_encoded and stream.images is None:
        why = (
            f"random_crop is for files, but images of kind {source.kind} are served as they are; remove it, and crop "
            "in a transform"
        )
        yield ("image", "resize"), why
    if stream.is_random_crop and stream.cache is not None:
        yield ("cache",), "would keep one random crop of each sample forever; remove it, or use resize: crop"
    if not source.is_encoded and stream.cache is not None:
        yield ("cache",), "keeps decoded images, but arrays need no decoding; remove it"
    # The stream's normalize has to fit its only image; among several, it goes to those that it fits.
    if len(stream.all_images) == 1:
        yield from list_normalize_rules(stream.normalize, *stream.all_images.values())
    for name, image in stream.all_images.items():
        if image.normalize is not None:
            for keys, why in list_normalize_rules(image.normalize, image):
                yield (*_place_image(stream, name), *keys), why
    yield from _list_view_rules(stream)
    yield from _list_label_rules(stream)


def _place_image(stream: StreamConfig, name: str) -> tuple[str, ...]:
    return ("image",) if stream.images is None else ("images", name)


def _list_one_image_rules(stream: StreamConfig) -> Iterator[BrokenRule]:
    """Yields the broken rules of `image`, which has no other to follow, and no place beside the sample's own file."""
    source, image, kind = stream.source, stream.image, stream.source.kind
    if source.is_encoded and image.size is None:
        yield ("image", "size"), f"is missing; a {kind} can hold images of any size: add size: [height, width]"
    if source.is_encoded and image.size == "stored":
        yield ("image", "size"), f"found 'stored', which is for arrays; a {kind} needs [height, width]"
    if isinstance(source, TableSource) and source.image is None and image.source is None:
        yield ("source", "image"), "is missing; give the column that holds the file names"
    if kind in {"hdf5", "lmdb"} and getattr(source, "images", None) is None:
        yield ("source", "images"), "is missing; give the array that holds the images"
    if image.like is not None:
        yield ("image", "like"), "names another image, and there is one; write both under images"
    key = "from" if image.source is not None else "root"
    if image.source is not None or image.root is not None:
        yield ("image", key), "is a key of images; write images: {image: {...}}"
    if not source.is_encoded and image.mode == "index":
        yield ("image", "mode"), f"index is for files, but images of kind {kind} are served as they are"
    if not source.is_encoded and image.mode == "RGBA":
        yield ("image", "mode"), "RGBA is for files; write mode: raw and channels: 4 for arrays of four channels"
    if image.mode == "raw" and getattr(source, "range", None) is not None:
        why = (
            "makes pixels of 8 bits, but mode raw serves numbers as they are stored; move it to image, where it is "
            "what normalize: unit maps to 0 and 1"
        )
        yield ("source", "range"), why


def _list_images_rules(stream: StreamConfig) -> Iterator[BrokenRule]:
    """Yields the broken rules of `images`: names, which follows which, and where each lies."""
    source, kind, images = stream.source, stream.source.kind, stream.all_images
    labels = {"label"} if stream.labels is None else {*stream.labels}
    for name, image in images.items():
        if not _NAME.fullmatch(name):
            yield ("images", name), "the name of an image has 1 to 64 characters from A-Z a-z 0-9 _ . -"
        if name in labels:
            yield ("images", name), "a label has the same name; rename one of them"
        if image.like is not None:
            place, other = ("images", name, "like"), images.get(image.like)
            followed = None if other is None else other.like
            if image.like == name:
                yield place, "an image cannot follow itself; remove it, or name another image"
            if other is None:
                yield place, f"found {image.like!r}, which is no image of this stream{suggest_name(image.like, images)}"
            if image.like != name and followed is not None:
                yield place, f"{image.like} itself follows {followed}; write like: {followed}"
            if image.size == "stored":
                yield ("images", name, "size"), "found 'stored', but it has the size of the other image; remove it"
        if source.is_encoded:
            yield from _list_file_rules(stream, name, image)
    # Only one image can be the picture that the source gives each sample.
    own = [name for name, image in images.items() if takes_own_picture(image, source)]
    for name in own[1:]:
        why = f"is missing, and {own[0]} is the source's own picture already; add from"
        yield ("images", name, "from"), why
    if not source.is_encoded:
        yield from _list_array_rules(stream, has_own=bool(own))
    if kind in _COLUMN_KINDS and not own and all(image.is_pattern for image in images.values()):
        yield ("images",), f"all are patterns, but a sample of kind {kind} needs a file; take one from its name"


def _list_file_rules(stream: StreamConfig, name: str, image: ImageConfig) -> Iterator[BrokenRule]:
    """Yields the broken rules of an image that is a file: its size, and `from`, a pattern, a column or a suffix."""
    kind, place, text = stream.source.kind, ("images", name), image.source or ""
    if image.size is None and image.like is None:
        yield (*place, "size"), "is missing; add size: [height, width], or like: another image"
    if image.size == "stored" and image.like is None:
        yield (*place, "size"), "found 'stored', which is for arrays; use [height, width]"
    if image.is_pattern and kind == "tar":
        yield (*place, "from"), "a tar has no files beside it; use a suffix, such as mask.png for 7.mask.png"
    rest = _BRACES.sub("", text)
    is_malformed = not _PARTS.issuperset(_BRACES.findall(text)) or "{" in rest or "}" in rest
    if image.is_pattern and kind != "tar" and is_malformed:
        yield (*place, "from"), f"found {text!r}; a pattern has {{dir}}, {{stem}} and {{name}} of the sample's own file"
    if image.is_pattern and kind != "tar" and not is_malformed and (text.startswith("/") or ".." in rest.split("/")):
        yield (*place, "from"), f"found {text!r}; a pattern is relative to root: set root to the folder of these files"
    if text and not image.is_pattern and kind in PICTURE_KINDS:
        yield (*place, "from"), f"a {kind} has no column {text!r}; use a pattern, such as masks/{{stem}}.png"
    if image.root is not None and not image.is_pattern and kind != "table":
        yield (*place, "root"), "is for patterns and columns of file names; remove it"


def _list_array_rules(stream: StreamConfig, *, has_own: bool) -> Iterator[BrokenRule]:
    """Yields the broken rules of images that are arrays; `has_own`: one takes the array that the source names."""
    source, kind, images = stream.source, stream.source.kind, stream.all_images
    beside = "a .npy file" if kind == "npy" else "an array of the file, or a .npy file"
    for name, image in images.items():
        if image.is_pattern:
            yield ("images", name, "from"), f"rows of arrays have no files beside them; name {beside}, and no pattern"
        if not image.is_pattern and image.root is not None and not image.is_npy_of(source):
            yield ("images", name, "root"), "is for .npy files; remove it"
    names_array = getattr(source, "images", None) is not None
    if not has_own and kind == "npy":
        yield ("images",), "each has a from, so none takes the arrays of source.path; remove it from the one that does"
    if not has_own and kind != "npy" and names_array:
        yield ("source", "images"), "is taken by no image, since each has a from; remove it here, or there"
    if not has_own and kind != "npy" and not names_array and all(image.is_npy_of(source) for image in images.values()):
        yield ("images",), f"all lie in .npy files, and none in the {kind} file; use kind: npy"
    if getattr(source, "range", None) is not None and all(image.array_form for image in images.values()):
        why = (
            "makes pixels of 8 bits, but no image is of mode RGB or L; remove it, or move it to the image of mode "
            "raw that it is for"
        )
        yield ("source", "range"), why


def _list_view_rules(stream: StreamConfig) -> Iterator[BrokenRule]:
    """Yields the broken rules of images of several pictures, which are views or frames: what they need."""
    source, kind, images = stream.source, stream.source.kind, stream.all_images
    for name, image in images.items():
        place = _place_image(stream, name)
        if image.views is not None and image.resize != "random_crop" and stream.transform is None:
            yield (
                (*place, "views"),
                "makes equal views; add resize: random_crop, or a transform that draws from its rng",
            )
        if find_frame_rule(image, images) is None:
            continue
        by, order = ("the sequence", "the order") if image.frames is None else (image.frames.by, image.frames.order)
        has_columns = kind == "table" or (kind == "npy" and getattr(source, "table", None) is not None)
        if kind == "npy" and not has_columns:
            why = (
                "no table says which rows follow each other; add table: FILE under source, with a column for "
                f"{by} and one for {order}"
            )
            yield (*place, "frames"), why
        if kind not in {"table", "npy"}:
            why = (
                f"a {kind} has no columns that say which pictures follow each other; use kind table, with a column "
                f"for {by} and one for {order}"
            )
            yield (*place, "frames"), why
        if has_columns and image.is_pattern:
            why = (
                "the frames of a clip are files that a column names, and a pattern is not a column; write the file "
                "names into a column"
            )
            yield (*place, "from"), why
        if image.views is not None:
            yield (*place, "views"), "an image has views or frames, and not both; remove one of them"


def _list_label_rules(stream: StreamConfig) -> Iterator[BrokenRule]:
    """Yields the broken rules of boxes and points: the form that a source prescribes, and the picture they lie in."""
    source, images, labels = stream.source, stream.all_images, stream.labels or {}
    first = next(iter(images))
    # Images of several pictures: boxes lie in one, and cannot say in which.
    several: dict[str, str] = {}
    for name, image in images.items():
        if image.find_shown(images).views is not None:
            several[name] = "views"
        elif find_frame_rule(image, images) is not None:
            several[name] = "frames"
    if source.has_own_parts and stream.split is not None:
        yield ("split",), f"kind {source.kind} has parts of its own; remove it, and choose one by part"
    if first in several:
        why = f"the boxes of kind {source.kind} lie in one picture, but {first} has {several[first]}"
        why = f"{why}; write labels: {{}}, or remove {several[first]}"
        if stream.labels is None and source.has_own_boxes:
            yield ("labels",), why
    for name, label in labels.items():
        for key in ("format", "unit", "classes"):
            if source.has_own_boxes and getattr(label, key) is not None:
                yield ("labels", name, key), f"kind {source.kind} brings the {key} of its boxes along; remove it"
        place, followed = ("labels", name, "of"), label.image or first
        if followed not in images:
            why = (
                f"found {followed!r}, which is no image of this stream; it has {', '.join(images)}"
                f"{suggest_name(followed, images)}"
            )
            yield place, why
        if followed in several:
            why = f"{followed} has {several[followed]}, and {label.type} lie in one picture"
            why = f"{why}; name an image without {several[followed]}, or leave the label out"
            if label.type in BOX_TYPES:
                yield place, why


def list_unserved_settings(config: Config) -> list[str]:
    """Returns a sentence, with its key path, for each setting that is valid but not served by this version."""
    found: list[tuple[str, str, str]] = []  # the key path, what "is" not served, and what to do instead
    if len([endpoint for endpoint in config.listen or () if endpoint.startswith("ipc://")]) > 1:
        found.append(("listen", "more than one ipc:// endpoint is", "name one"))
    # The listing process and the workers receive the path in UTF-8.
    folder = str(config.base_folder)
    if not is_encodable(folder):
        found.append(("streams", f"a configuration in {folder!a}, whose name is not UTF-8, is", "keep it elsewhere"))
    for stream_name, stream in config.streams.items():
        above, kind = f"streams.{stream_name}", stream.source.kind
        # A .npy file may stand beside any source; a named array must lie in a source of kind hdf5.
        froms = {f"labels.{name}": label.source for name, label in (stream.labels or {}).items()}
        if stream.weights is not None:
            froms["weights"] = stream.weights.source
        for key, source in froms.items():
            place = f"{above}.{key}.from"
            if isinstance(source, tuple) and any(_names_stored_array(each) or parse_npy_path(each) for each in source):
                remedy = "use columns, or one array of several numbers per row"
                found.append((place, "an array among columns is", remedy))
            if kind != "hdf5" and _names_stored_array(source):
                found.append((place, f"an array of kind {kind} is", "use a column, or a file: labels.npy"))
        if stream.pace.lockstep_s is not None:
            found.append((f"{above}.pace", "lockstep is", "use free"))
    return [f"{place}: {what} not served by this version; {remedy}" for place, what, remedy in found]


def _names_stored_array(source: object) -> bool:
    """Whether `from` names an array in a file, such as /labels."""
    return isinstance(source, str) and source.startswith("/") and parse_npy_path(source) is None
