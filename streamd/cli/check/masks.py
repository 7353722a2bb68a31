"""Describes the masks of a stream: class numbers with their shares, and sizes that do not fit the pictures. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from streamd.cli.check.reader_messages import ClassPixels, OddSizes, SizeExample
from streamd.core.spec import ImageSpec
from streamd.core.text import format_count
from streamd.decode.geometry import Size, are_in_proportion

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


def find_leader(name: str, images: Mapping[str, ImageSpec]) -> str | None:
    """Returns the image to which image `name` belongs: the one it is like, or for a mask the first that is none."""
    image = images[name]
    if image.like is not None or image.mode != "index":
        return image.like
    return next((other for other, each in images.items() if each.mode != "index"), None)


def compare_sizes(sample_id: int, size: Size, leader_size: Size) -> OddSizes:
    """Counts a sample whose image has another size than its leader, both (height, width)."""
    example = SizeExample(sample_id, size, leader_size)
    if are_in_proportion(size, leader_size):
        return OddSizes(scaled=1, scaled_example=example)
    return OddSizes(skewed=1, skewed_example=example)


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
    return MaskFindings(
        {name: _build_mask_finding(each, samples, images[name]) for name, each in pixels.items()},
        {
            name: _build_follower_finding(name, leader, images, sizes.get(name, OddSizes()), format_file)
            for name in images
            if (leader := find_leader(name, images)) is not None
        },
    )


def _build_mask_finding(counted: ClassPixels, samples: int, image: ImageSpec) -> MaskFinding:
    total = sum(counted.pixels.values())
    frequent = sorted(counted.pixels, key=lambda number: -counted.pixels[number])[:_MAX_CLASSES]
    shares = {str(number): counted.pixels[number] / total for number in sorted(frequent)}
    return MaskFinding(counted.masks, counted.masks == samples, len(counted.pixels), shares, image.fill)


def _build_follower_finding(
    name: str, leader: str, images: Mapping[str, ImageSpec], sizes: OddSizes, format_file: Callable[[int], str]
) -> FollowerFinding:
    image = images[name]
    is_apart = image.like is None and (image.resize == "random_crop" or image.resize != images[leader].resize)

    def build_mismatch(count: int, example: SizeExample | None) -> SizeMismatch | None:
        if example is None:
            return None
        return SizeMismatch(count, format_file(example.sample_id), example.size, example.leader_size)

    return FollowerFinding(
        leader,
        image.mode == "index",
        image.like is not None,
        is_apart,
        build_mismatch(sizes.scaled, sizes.scaled_example),
        build_mismatch(sizes.skewed, sizes.skewed_example),
    )


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
    for name, finding in findings.classes.items():
        yield from _find_class_warnings(name, finding)


def _find_class_warnings(name: str, finding: MaskFinding) -> Iterator[str]:
    numbers = list(finding.shares)
    if len(numbers) == 1:
        yield (
            f"{name}: every pixel of {format_count(finding.masks, 'mask')} is {numbers[0]}: there is nothing to learn "
            "from it"
        )
    elif len(numbers) == _BINARY and str(finding.fill) in numbers:
        yield (
            f"{name} holds the class numbers {' and '.join(numbers)} alone, and {finding.fill} is what padding holds, "
            "too; save masks of two classes with the numbers 0 and 1"
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
        f"{what} {kind} {follower.leader}, such as in {found.file}: {format_size(found.size)} where "
        f"{follower.leader} has {format_size(found.leader_size)}, height x width"
    )


def format_size(size: Size) -> str:
    """Formats a (height, width)."""
    return f"{size[0]}x{size[1]}"
