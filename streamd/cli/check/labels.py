"""Describes the labels of a stream: classes with their counts, ranges of numbers, contradictions. Pure.

Also finds classes that are probably one: their names differ only in case, blanks, or the encoding of accents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec, LabelSpec, LabelType
from streamd.core.text import describe_name_difference, fold_name, format_count, format_list
from streamd.dataset.labels.encode import MISSING_WORDS, is_whole_number
from streamd.dataset.manifest.columns import RaggedColumn
from streamd.dataset.manifest.types import Int64s, LabelValues
from streamd.decode.geometry import Size, find_leader
from streamd.ipc.worker_messages import ClassPixels, OddBoxes, OddSizes, SizeExample

# --- Files with the same content, within a stream and across streams. Pure.

Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FileContents:
    """The contents of a stream's files: `ids` (m,) of the samples that were read, `sizes` (m,) in bytes, and `digests`
    (m, 2), two halves of 16 bytes."""

    ids: Int64s
    sizes: Int64s
    digests: Digests


StreamSample = tuple[str, int]  # stream, sample id


def find_duplicate_groups(streams: Mapping[str, FileContents]) -> list[list[StreamSample]]:
    """Groups the samples whose files have the same size and digest; a group is ordered by stream and sample id."""
    names = list(streams)
    parts = list(streams.values())
    if not parts:
        return []
    ids = np.concatenate([part.ids for part in parts])
    owners = np.repeat(np.arange(len(parts)), [part.ids.size for part in parts])
    sizes = np.concatenate([part.sizes for part in parts])
    digests = np.concatenate([part.digests for part in parts])
    order = np.lexsort((ids, owners, digests[:, 1], digests[:, 0], sizes))
    same = (sizes[order[1:]] == sizes[order[:-1]]) & (digests[order[1:]] == digests[order[:-1]]).all(axis=1)
    # Each run of equal neighbours is a group; `same` (n - 1,) compares each sample with the next.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    return [
        [(names[owners[at]], int(ids[at])) for at in order[start : last + 1]]
        for start, last in edges.reshape(-1, 2).tolist()
    ]


def find_repeated_samples(groups: Sequence[Sequence[StreamSample]], stream: str) -> list[list[int]]:
    """Returns, for each group with several samples of `stream`, the ids of these."""
    inner = ([sample_id for name, sample_id in group if name == stream] for group in groups)
    return [ids for ids in inner if len(ids) > 1]


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Two streams with files in common: `files` of the second stream are also in the first, for example `example`.

    `others` of the first stream are also in the second; the two numbers differ if a stream has copies.
    """

    first: str
    second: str
    files: int
    example: tuple[int, int]  # sample ids in the first and in the second
    others: int


def find_shared_files(groups: Sequence[Sequence[StreamSample]]) -> list[SharedFiles]:
    """Finds the files that each pair of streams has in common, in the order of the groups."""
    found: dict[tuple[str, str], SharedFiles] = {}
    for group in groups:
        counts = Counter(name for name, _ in group)
        leaders = dict(reversed(group))
        for first, second in combinations(counts, 2):
            earlier = found.get((first, second))
            example = earlier.example if earlier else (leaders[first], leaders[second])
            files = counts[second] + (earlier.files if earlier else 0)
            others = counts[first] + (earlier.others if earlier else 0)
            found[first, second] = SharedFiles(first, second, files, example, others)
    return list(found.values())


def group_identical_streams(pairs: Sequence[SharedFiles], files: Mapping[str, int]) -> list[list[str]]:
    """Groups the streams that have exactly the same files; `files` is the number of files of each stream."""
    same: dict[str, list[str]] = {}  # by the first of a group
    for each in pairs:
        led = any(each.first in group[1:] for group in same.values())
        if not led and (each.others, each.files) == (files[each.first], files[each.second]):
            same.setdefault(each.first, [each.first]).append(each.second)
    return list(same.values())


# --- Describes the labels of a stream: classes with their counts, ranges of numbers, contradictions. Pure.

_UNEVEN_CLASSES: Final = 3.0  # times as many images; less hardly affects a training
_FEW_PICTURES: Final = 8  # whose boxes may all lie in one quarter by chance
_SHOWN_CLASSES: Final = 3  # of the classes without images
_PLAIN_WORDS: Final = frozenset({"none", "nil", "missing", "undefined", "-"})  # people name classes so, too
_MIN_LETTERS: Final = 2  # of similar names: a data set of letters may have both a and A


@dataclass(frozen=True, slots=True)
class BoxSummary:
    """The boxes or points of a stream: their number, the most of a sample, and the samples that have none.

    `empty` have no area, and `outside` reach out of their pictures. The pictures `turned` and `scaled` are not as those
    that the boxes were drawn on, which are brought onto them. Of all pictures `filled` with any, those `cornered` have
    them in the top left quarter alone, and those `crowded` many of them there. The files are examples.
    """

    count: int
    most: int
    samples_without: int
    empty: int = 0
    outside: int = 0
    empty_file: str = ""
    outside_file: str = ""
    turned: int = 0
    scaled: int = 0
    filled: int = 0
    cornered: int = 0
    crowded: int = 0
    turned_file: str = ""
    scaled_file: str = ""
    crowded_file: str = ""


@dataclass(frozen=True, slots=True)
class LabelFinding:
    """One label. `classes` with their counts for category, tags and boxes; the range, mean and deviation of numbers."""

    type: LabelType
    classes: dict[str, int]
    imbalance: float | None = None  # of the classes that have images, the largest count divided by the smallest
    least: float | None = None
    most: float | None = None
    mean: float | None = None
    std: float | None = None
    boxes: BoxSummary | None = None


def build_label_finding(spec: LabelSpec, values: LabelValues) -> LabelFinding:
    """Describes a label by its values, (n,) or (n, k)."""
    if spec.type in {"category", "tags"}:
        classes = {str(name): count for name, count in zip(spec.classes, spec.counts, strict=True)}
        filled = [count for count in classes.values() if count]
        return LabelFinding(spec.type, classes, max(filled) / min(filled) if filled else None)
    if spec.type == "string":
        return LabelFinding(spec.type, {})
    wide = values.astype(np.float64)
    return LabelFinding(
        spec.type, {}, least=float(wide.min()), most=float(wide.max()), mean=float(wide.mean()), std=float(wide.std())
    )


def build_box_finding(
    spec: LabelSpec, column: RaggedColumn, odd: OddBoxes, format_file: Callable[[int], str]
) -> LabelFinding:
    """Describes a label of boxes or points; `format_file` returns the name of a sample's file."""
    counts = column.counts
    kinds = ("empty", "outside", "turned", "scaled", "crowded")
    numbers: dict[str, Any] = {kind: odd.counts.get(kind, 0) for kind in (*kinds, "filled", "cornered")}
    numbers |= {f"{kind}_file": format_file(odd.first[kind]) for kind in kinds if kind in odd.first}
    boxes = BoxSummary(int(counts.sum()), int(counts.max(initial=0)), int(np.count_nonzero(counts == 0)), **numbers)
    return LabelFinding(spec.type, dict(zip(map(str, spec.classes), spec.counts, strict=True)), boxes=boxes)


def find_box_troubles(name: str, finding: LabelFinding) -> Iterator[str]:
    """Yields what is wrong with the boxes or points of a label."""
    boxes = finding.boxes
    if boxes is None:
        return
    if boxes.empty:
        yield (
            f"{name}: {format_count(boxes.empty, 'box has', 'boxes have')} no area and will not be delivered, such as "
            f"in {boxes.empty_file}; correct or remove such boxes"
        )
    if boxes.outside:
        are_boxes = finding.type == "boxes"
        lie = ("box lies", "boxes lie") if are_boxes else ("point lies", "points lie")
        effect = "is cut at its edge" if are_boxes else "is delivered as -1, -1"
        yield (
            f"{name}: {format_count(boxes.outside, *lie)} partly or wholly outside of the picture, and what is outside "
            f"{effect}, such as in {boxes.outside_file}; correct them, or unit and format if they were written for "
            "another size"
        )


def find_first_sample_of_class(spec: LabelSpec, values: LabelValues | RaggedColumn, number: int) -> int:
    """Returns the first sample of class `number` of a category, tags or boxes; the class must have a sample."""
    if isinstance(values, RaggedColumn):
        return int(np.searchsorted(values.ends, np.argmax(values.numbers[:, -1] == number), side="right"))
    if spec.type == "tags":
        return int(np.argmax(np.asarray(values, np.uint8)[:, number >> 3] & (128 >> (number & 7))))
    return int(np.argmax(values == number))


def find_label_warnings(name: str, finding: LabelFinding, *, is_shuffled: bool) -> Iterator[str]:
    """Yields what a user should know before training on this label; remedies only for streams that are shuffled.

    The other streams are for evaluation, where class weights would only change what is measured.
    """
    if finding.least is not None and finding.least == finding.most:
        yield f"{name} is {finding.least:g} for every sample: there is nothing to learn from it"
        return
    if finding.boxes is not None and not finding.boxes.count:
        yield f"{name}: not a single sample has any: there is nothing to learn from it"
        return
    if finding.boxes is not None:
        yield from _find_box_warnings(name, finding.type, finding.boxes)
    # What may be no class: words for a missing value, and a few names among numbers.
    words = [f"{each!r}" for each in finding.classes if each.casefold() in MISSING_WORDS and each not in _PLAIN_WORDS]
    if words:
        yield (
            f"{name}: {format_list(words, _SHOWN_CLASSES)} {'are classes' if words[1:] else 'is a class'}, but "
            "programs write this for a missing value; if it is one, correct the data"
        )
    names = [(number, each) for number, each in enumerate(finding.classes) if not is_whole_number(each)]
    if 0 < len(names) * 2 < len(finding.classes):
        shown = format_list([f"{each!r} has number {number}" for number, each in names], _SHOWN_CLASSES)
        yield (
            f"{name}: the classes are whole numbers, but for {format_count(len(names), 'name')}: {shown}; if that is "
            "no class, correct the data"
        )
    if empty := [f"{each!r}" for each, count in finding.classes.items() if not count]:
        yield f"{name}: no image of {format_list(empty, _SHOWN_CLASSES)}"
    if finding.type != "category":
        return
    if len(finding.classes) == 1:
        yield f"{name} has one class only: there is nothing to tell apart"
    # Classes of which one has many times the images of another.
    if finding.imbalance is not None and finding.imbalance >= _UNEVEN_CLASSES:
        filled = {each: count for each, count in finding.classes.items() if count}
        largest, smallest = max(filled, key=filled.__getitem__), min(filled, key=filled.__getitem__)
        remedy = (
            '; to even this out, use fit_data(stream, class_weight="balanced") or streamd-train --class-weight balanced'
        )
        fact = f"{largest} has {finding.imbalance:.0f} times the images of {smallest}"
        yield f"{fact}{remedy if is_shuffled else ''}"


def _find_box_warnings(name: str, what: str, boxes: BoxSummary) -> Iterator[str]:
    """Yields what a user should know of boxes or points: how they were drawn, and where they crowd."""
    if boxes.turned:
        yield (
            f"{name}: the {what} of {format_count(boxes.turned, 'picture')} were drawn on it as its file stores it, "
            f"before EXIF data turn it, such as {boxes.turned_file}; they are turned with the picture"
        )
    if boxes.scaled:
        yield (
            f"{name}: the {what} of {format_count(boxes.scaled, 'picture')} were drawn on another size of it, such as "
            f"{boxes.scaled_file}; they are scaled to the size that it has"
        )
    advice = "if they were drawn on larger pictures, correct their numbers or unit, or name those pictures"
    if boxes.cornered == boxes.filled >= _FEW_PICTURES:
        yield f"{name}: the {what} of all pictures lie in the top left quarter; {advice}"
    elif boxes.crowded:
        yield (
            f"{name}: all {what} of {format_count(boxes.crowded, 'picture')} with many of them lie in its top left "
            f"quarter, such as {boxes.crowded_file}; {advice}"
        )


@dataclass(frozen=True, slots=True)
class LabelConflict:
    """Files with the same content and different values of a label."""

    label: str
    type: LabelType
    samples: tuple[StreamSample, ...]


def find_label_conflicts(
    groups: Sequence[Sequence[StreamSample]],
    specs: Mapping[str, Mapping[str, LabelSpec]],
    values: Mapping[str, Mapping[str, LabelValues]],
) -> list[LabelConflict]:
    """Finds labels whose values differ between samples of the same content; ignores strings, which may be names.

    `specs` and `values` are by stream, then by label.
    """
    found = []
    for group in groups:
        for label in dict.fromkeys(name for stream, _ in group for name in specs[stream]):
            kind = next(specs[stream][label].type for stream, _ in group if label in specs[stream])
            having = [twin for twin in group if label in specs[twin[0]] and specs[twin[0]][label].type == kind]
            rows = [values[stream][label][sample_id] for stream, sample_id in having]
            if kind != "string" and any(not np.array_equal(row, rows[0]) for row in rows):
                found.append(LabelConflict(label, kind, tuple(having)))
    return found


@dataclass(frozen=True, slots=True)
class ClassUse:
    """A class, the number of its samples or boxes in all streams, and one of these, named "stream: file"."""

    name: str
    samples: int
    example: str


@dataclass(frozen=True, slots=True)
class SimilarClasses:
    """Classes of `label` that are probably one: a trouble, but for boxes, whose classes the data list themselves."""

    label: str
    classes: list[ClassUse]
    are_boxes: bool = False


def group_similar_names(names: Iterable[str]) -> list[list[str]]:
    """Groups similar names; returns the groups of at least two, in the order of `names`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        alike = fold_name(name)
        if len(alike) >= _MIN_LETTERS:
            groups.setdefault(alike, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def format_similar_classes(found: SimilarClasses) -> str:
    """Formats a sentence about similar classes, with the remedy."""
    unit = ("box", "boxes") if found.are_boxes else ("sample", "samples")
    uses = [f"{each.name!r} ({format_count(each.samples, *unit)}, such as {each.example})" for each in found.classes]
    remedy = "" if found.are_boxes else f", or list each in labels.{found.label}.classes"
    difference = describe_name_difference([each.name for each in found.classes])
    return (
        f"{found.label}: {' and '.join(uses)} differ only in {difference}, and are learned as "
        f"{len(uses)} classes; give them one name in the data{remedy}{', if' if remedy else ', unless'} they are meant "
        "to differ"
    )


# --- Describes the masks of a stream: class numbers with their shares, and sizes that do not fit the pictures. Pure.


_MAX_CLASSES: Final = 256  # the most frequent class numbers are kept
_BINARY: Final = 2  # class numbers


@dataclass(frozen=True, slots=True)
class SizeMismatch:
    """`count` pictures that have another size than their leader, such as that of `file`; sizes are (height, width)."""

    count: int
    file: str
    size: Size
    leader_size: Size


@dataclass(frozen=True, slots=True)
class MaskFinding:
    """The class numbers of an image. `shares` are parts of the pixels, of the most frequent of `classes` numbers.

    They were counted in `masks` masks, which are all that the stream has if `exact`. `fill` is what padding holds.
    """

    masks: int
    exact: bool
    classes: int
    shares: dict[str, float]
    fill: int


@dataclass(frozen=True, slots=True)
class FollowerFinding:
    """An image that belongs to another one, its leader, by `like` or as its mask.

    `scaled` pictures have another size in the same proportions, `skewed` ones other proportions. `is_apart`: both
    images show parts of their pictures that are chosen in different ways.
    """

    leader: str
    is_mask: bool
    is_like: bool
    is_apart: bool = False
    scaled: SizeMismatch | None = None
    skewed: SizeMismatch | None = None


@dataclass(frozen=True, slots=True)
class MaskFindings:
    """By image: the class numbers of masks, and how images fit those that they belong to."""

    classes: dict[str, MaskFinding] = field(default_factory=dict)
    followers: dict[str, FollowerFinding] = field(default_factory=dict)


def build_mask_findings(
    images: Mapping[str, ImageSpec],
    samples: int,
    pixels: Mapping[str, ClassPixels],
    sizes: Mapping[str, OddSizes],
    format_file: Callable[[int], str],
) -> MaskFindings:
    """Describes the masks of `samples` samples, and the images that belong to others.

    `format_file` returns the name of a sample's file.
    """
    classes = {}
    for name, counted in pixels.items():
        total = sum(counted.pixels.values())
        frequent = sorted(counted.pixels, key=lambda number: -counted.pixels[number])[:_MAX_CLASSES]
        shares = {str(number): counted.pixels[number] / total for number in sorted(frequent)}
        is_exact = counted.masks == samples
        classes[name] = MaskFinding(counted.masks, is_exact, len(counted.pixels), shares, images[name].fill)

    def build_mismatch(count: int, example: SizeExample | None) -> SizeMismatch | None:
        if example is None:
            return None
        return SizeMismatch(count, format_file(example.sample_id), example.size, example.leader_size)

    followers = {}
    for name, image in images.items():
        leader, odd = find_leader(name, images), sizes.get(name, OddSizes())
        if leader is None:
            continue
        is_apart = image.like is None and (image.resize == "random_crop" or image.resize != images[leader].resize)
        followers[name] = FollowerFinding(
            leader,
            image.mode == "index",
            image.like is not None,
            is_apart,
            build_mismatch(odd.scaled, odd.scaled_example),
            build_mismatch(odd.skewed, odd.skewed_example),
        )
    return MaskFindings(classes, followers)


def find_mask_troubles(findings: MaskFindings) -> Iterator[str]:
    """Yields what is wrong with masks."""
    for name, follower in findings.followers.items():
        if follower.is_mask and follower.is_apart:
            yield (
                f"{name} shows another part of the picture than {follower.leader}; add like: {follower.leader} to "
                f"images.{name}"
            )
        if follower.is_mask and follower.skewed is not None:
            yield _format_skewed_sizes(name, follower, follower.skewed)


def find_mask_warnings(findings: MaskFindings) -> Iterator[str]:
    """Yields what a user should know about masks, and that may be intended."""
    for name, follower in findings.followers.items():
        if not follower.is_mask and follower.skewed is not None:
            yield _format_skewed_sizes(name, follower, follower.skewed)
        if not follower.is_like and follower.scaled is not None:
            yield (
                f"{name}: {_format_mismatch(follower, follower.scaled)}; add like: {follower.leader} to "
                f"images.{name}, which brings both together in proportion"
            )
    for name, mask in findings.classes.items():
        numbers = list(mask.shares)
        if len(numbers) == 1:
            yield (
                f"{name}: every pixel of {format_count(mask.masks, 'mask')} is {numbers[0]}: there is nothing to "
                "learn from it"
            )
        elif len(numbers) == _BINARY and str(mask.fill) in numbers:
            yield (
                f"{name} holds the class numbers {' and '.join(numbers)} alone, and {mask.fill} is what padding "
                "holds, too; save masks of two classes with the numbers 0 and 1"
            )


def _format_skewed_sizes(name: str, follower: FollowerFinding, skewed: SizeMismatch) -> str:
    remedy = f"save each with the height and width of its {follower.leader}"
    if skewed.size == skewed.leader_size[::-1]:
        remedy = f"turn each as the EXIF data of its {follower.leader} say, or {remedy}"
    return f"{name}: {_format_mismatch(follower, skewed)}, and would be stretched out of place; {remedy}"


def _format_mismatch(follower: FollowerFinding, found: SizeMismatch) -> str:
    what = format_count(
        found.count, *(("mask has", "masks have") if follower.is_mask else ("picture has", "pictures have"))
    )
    kind = "another size than" if found is follower.scaled else "other proportions than"
    return (
        f"{what} {kind} {follower.leader}, such as in {found.file}: {found.size[0]}x{found.size[1]} where "
        f"{follower.leader} has {found.leader_size[0]}x{found.leader_size[1]}, height x width"
    )
