"""The pictures of a batch, as people look at them: masks over photos, boxes, points, views and frames. Pure.

A sample with one image is one picture. Of several images each is a picture, except for class numbers that follow a
picture's geometry, or the other way round: they are laid over it. Views and frames are a picture each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamd.core.captions import format_class_name
from streamd.core.class_colours import Colour, Pixels, get_box_colour, get_class_colour, lay_mask_over
from streamd.core.sampler import PAD_ID
from streamd.core.shown_pixels import build_shown_pixels, describe_shown_numbers, measure_levels
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.limits import SHOWN_CLASSES, SHOWN_PICTURES

Numbers = npt.NDArray[Any]

_COUNTED_PIXELS: Final = 1 << 20  # at a time


class ShownBatch(Protocol):
    """The part of `client.batch.Batch` that its pictures need."""

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def labels(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def sample_ids(self) -> npt.NDArray[np.int64]: ...
    @property
    def spec(self) -> StreamSpec: ...


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """One picture of every sample: an image, or at `place` one of its views or frames, with a mask and boxes on it.

    `size` is (height, width) as delivered. `title` is empty where samples have one picture only. `mask` names the image
    of class numbers that is laid over it, and `labels` the boxes and points that are drawn on it.
    """

    title: str
    image: str
    size: tuple[int, int]
    place: int | None = None
    mask: str | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownBox:
    """A box, in pixels of the delivered image, with the name of its class."""

    left: float
    top: float
    right: float
    bottom: float
    name: str
    colour: Colour


@dataclass(frozen=True, slots=True)
class ShownPoint:
    """A point, in pixels of the delivered image. Points at the same place among their sample's have one colour."""

    x: float
    y: float
    colour: Colour


@dataclass(frozen=True, slots=True, eq=False)
class ShownPicture:
    """One picture of one sample: `pixels` (height, width, 1 or 3), and the class numbers of its mask (height, width).

    Both may be subsampled. Pixels with the class number `transparent` show no mask.
    """

    plan: PicturePlan
    pixels: Pixels
    mask: Numbers | None = None
    transparent: int = 255
    boxes: tuple[ShownBox, ...] = ()
    points: tuple[ShownPoint, ...] = ()

    def blend_mask(self) -> Pixels:
        """Returns the picture with its mask laid over it, if it has one."""
        return self.pixels if self.mask is None else lay_mask_over(self.pixels, self.mask, self.transparent)


@dataclass(frozen=True, slots=True)
class ShownClass:
    """A class of the masks, for the legend."""

    number: int
    name: str
    colour: Colour


class BatchPictures:
    """The pictures of the first `rows` rows of a batch.

    `plans` are the pictures of each sample, and `left_out` is the number of those beyond SHOWN_PICTURES. With
    `max_side` they are subsampled, so that no side has more pixels.
    """

    def __init__(self, batch: ShownBatch, rows: int, max_side: int | None = None) -> None:
        self._batch = batch
        self._rows = rows
        self._max_side = max_side
        plans = plan_pictures(batch.spec, {name: array.shape[1:] for name, array in batch.arrays.items()})
        self.plans = plans[:SHOWN_PICTURES]
        self.left_out = len(plans) - len(self.plans)
        self._levels = {
            name: measure_levels(batch.arrays[name][:rows], image)
            for name, image in batch.spec.images.items()
            if image.mode == "raw"
        }

    @property
    def notes(self) -> list[str]:
        """Sentences on what is not shown as it is: the range of raw numbers, and pictures that are left out."""
        images = self._batch.spec.images
        found = [f"{name}: {describe_shown_numbers(images[name], levels)}" for name, levels in self._levels.items()]
        if self.left_out:
            pictures = len(self.plans) + self.left_out
            found.append(f"the first {len(self.plans)} of {pictures} pictures a sample are shown")
        return found

    def list_classes(self) -> tuple[list[ShownClass], int]:
        """Returns the classes that occur in the masks, and the number of those beyond SHOWN_CLASSES."""
        found: set[int] = set()
        for name, image in self._batch.spec.images.items():
            if image.mode == "index":
                rows = np.flatnonzero(self._batch.sample_ids[: self._rows] != PAD_ID)
                for row in rows.tolist():
                    found |= _find_class_numbers(self._batch.arrays[name][row])
                found.discard(image.fill)
        numbers = sorted(found)
        shown = [ShownClass(each, str(each), get_class_colour(each)) for each in numbers[:SHOWN_CLASSES]]
        return shown, len(numbers) - len(shown)

    def build_row(self, row: int) -> list[ShownPicture]:
        """Returns the pictures of a row."""
        return [self._build_picture(plan, row) for plan in self.plans]

    def _build_picture(self, plan: PicturePlan, row: int) -> ShownPicture:
        image = self._batch.spec.images[plan.image]
        pixels = build_shown_pixels(self._read_image(plan.image, plan, row), image, self._levels.get(plan.image))
        is_sample = self._batch.sample_ids[row] != PAD_ID
        mask = None
        if plan.mask is not None and is_sample:
            mask = resample_mask(self._read_image(plan.mask, plan, row), pixels.shape[:2])
        fill = 0 if plan.mask is None else self._batch.spec.images[plan.mask].fill
        boxes: list[ShownBox] = []
        points: list[ShownPoint] = []
        for name in plan.labels:
            label, rows = self._batch.spec.labels[name], self._batch.labels[name][row]
            if label.type == "boxes":
                boxes += _list_boxes(label, rows)
            else:
                points += _list_points(rows)
        return ShownPicture(plan, pixels, mask, fill, tuple(boxes), tuple(points))

    def _read_image(self, name: str, plan: PicturePlan, row: int) -> Numbers:
        """Returns an image of a row, or one of its views or frames, subsampled."""
        values: Numbers = self._batch.arrays[name][row]
        if plan.place is not None:
            values = values[plan.place]
        return values if self._max_side is None else subsample_image(values, self._max_side)


def _find_class_numbers(mask: Numbers) -> set[int]:
    # Counted in parts, since counting takes eight bytes a pixel.
    flat = mask.reshape(-1)
    parts = (flat[start : start + _COUNTED_PIXELS] for start in range(0, flat.size, _COUNTED_PIXELS))
    return {number for part in parts for number in np.flatnonzero(np.bincount(part)).tolist()}


def plan_pictures(spec: StreamSpec, shapes: Mapping[str, tuple[int, ...]]) -> list[PicturePlan]:
    """Plans the pictures of each sample; `shapes` has the shape of one sample's array of each image.

    The array of an image with views or frames has them as its first dimension.
    """
    masks = _pair_masks(spec.images)
    covered = {mask for laid in masks.values() for mask in laid}
    drawn: dict[str, list[str]] = {}
    for label in spec.labels.values():
        if label.is_ragged:
            drawn.setdefault(label.image or next(iter(spec.images)), []).append(label.name)
    plans: list[PicturePlan] = []
    for name in spec.images:
        for mask in masks.get(name, [None] if name not in covered else []):
            labels = tuple(drawn.pop(name, [])) + tuple(drawn.pop(mask, []) if mask else [])
            plans += _plan_places(name, mask, labels, spec.images[name], shapes[name])
    if len(plans) == 1 and plans[0].mask is None:
        return [PicturePlan("", plans[0].image, plans[0].size, plans[0].place, None, plans[0].labels)]
    return plans


def _pair_masks(images: Mapping[str, ImageSpec]) -> dict[str, list[str | None]]:
    """Returns the masks of each picture that has any: images of class numbers with the same geometry."""
    pairs: dict[str, list[str | None]] = {}
    pictures = {name: image for name, image in images.items() if image.mode != "index"}
    for name, image in images.items():
        if image.mode == "index":
            root = image.like or name
            below = next((other for other, shown in pictures.items() if root in {other, shown.like}), None)
            if below is not None:
                pairs.setdefault(below, []).append(name)
    return pairs


def _plan_places(
    name: str, mask: str | None, labels: tuple[str, ...], image: ImageSpec, shape: tuple[int, ...]
) -> Iterator[PicturePlan]:
    title = name if mask is None else f"{name} + {mask}"
    if len(shape) == len(image.picture_shape):
        yield PicturePlan(title, name, (shape[0], shape[1]), None, mask, labels)
        return
    for place in range(shape[0]):
        yield PicturePlan(f"{title} {place + 1} of {shape[0]}", name, (shape[1], shape[2]), place, mask, labels)


def resample_mask(numbers: Numbers, size: tuple[int, ...]) -> Numbers:
    """Returns class numbers in the size of their picture, each that of the nearest pixel."""
    if numbers.shape == size:
        return numbers
    rows, columns = ((np.arange(new) * 2 + 1) * old // (2 * new) for new, old in zip(size, numbers.shape, strict=True))
    resampled: Numbers = numbers[rows[:, np.newaxis], columns]
    return resampled


def _list_boxes(label: LabelSpec, rows: Numbers) -> list[ShownBox]:
    """Returns the boxes of a sample; rows behind the last one are -1."""
    there = rows[rows[:, -1] >= 0].tolist()
    return [
        ShownBox(left, top, right, bottom, format_class_name(label, int(code)), get_box_colour(int(code)))
        for left, top, right, bottom, code in there
    ]


def _list_points(rows: Numbers) -> list[ShownPoint]:
    """Returns the visible points of a sample; the others are -1."""
    return [ShownPoint(x, y, get_box_colour(place)) for place, (x, y) in enumerate(rows.tolist()) if x >= 0 and y >= 0]


def subsample_image(image: Numbers, max_side: int) -> Numbers:
    """Returns every n-th row and column of an image, so that no side exceeds `max_side` pixels."""
    step = -(-max(image.shape[:2]) // max_side)
    return image[::step, ::step]
