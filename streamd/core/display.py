"""What people see of a batch: captions, the colours of classes, and pictures with masks, boxes and points. Pure.

A sample with one image is one picture. Of several images each is a picture, except for class numbers that follow a
picture's geometry, or the other way round: they are laid over it. Views and frames are a picture each.

All displays show the same. Notebooks and the page of a NaN loss write it as HTML, in `client.notebook`; the dashboard
and the sheet of `streamd show` as pixels, in `decode.drawn_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, BadRow
from streamd.core.spec import ImageSpec, LabelSpec, PixelType, StreamSpec
from streamd.core.text import format_count, format_number
from streamd.limits import SHOWN_CLASSES, SHOWN_PICTURES

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255
Size = tuple[int, int]  # height, width in pixels
Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[Any]


class ShownBatch(Protocol):
    """The part of `client.batch.Batch` that is shown."""

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def labels(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def weights(self) -> npt.NDArray[np.float32]: ...
    @property
    def sample_ids(self) -> npt.NDArray[np.int64]: ...
    @property
    def bad(self) -> tuple[BadRow, ...]: ...
    @property
    def epoch(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def spec(self) -> StreamSpec: ...
    def __len__(self) -> int: ...


# --- Words


_SHOWN_NUMBERS: Final = 3  # of a vector: more would not fit below a small picture
_SHOWN_LABELS: Final = 6
_LINE_CHARS: Final = 120  # more than any display shows


@dataclass(frozen=True, slots=True)
class Caption:
    """One row: a line for each of its first labels, the sample that was delivered, -1 for none, and a mark.

    `mark` is "substituted", "masked", "no sample", "weight 0" or empty; `bad` is the verdict behind the first two.
    """

    sample_id: int
    labels: tuple[str, ...]
    weight: float
    mark: str
    bad: BadRow | None


def build_captions(batch: ShownBatch, rows: int) -> list[Caption]:
    """Returns the captions of the first `rows` rows, with at most six lines for labels.

    The only label, if a class or a text, is shown without its name.
    """
    verdicts = {verdict.row: verdict for verdict in batch.bad}
    captions = []
    for row in range(min(rows, len(batch))):
        sample_id, weight, bad = int(batch.sample_ids[row]), float(batch.weights[row]), verdicts.get(row)
        # The labels of a row without a sample are zeros, which would be shown as the first class.
        labels = {} if sample_id == PAD_ID else batch.labels
        said = {name: format_label(batch.spec.labels[name], values[row]) for name, values in labels.items()}
        if len(said) == 1 and batch.spec.labels[next(iter(said))].type in {"category", "string"}:
            lines = list(said.values())
        else:
            lines = [f"{name} {words}" for name, words in said.items()]
        if len(lines) > _SHOWN_LABELS:
            lines[_SHOWN_LABELS - 1 :] = [f"and {len(lines) - _SHOWN_LABELS + 1} more labels"]
        lines = [line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS - 1]}…" for line in lines]
        mark = "" if weight else "no sample" if sample_id == PAD_ID else "weight 0"
        captions.append(Caption(sample_id, tuple(lines), weight, mark if bad is None else bad.action, bad))
    return captions


def format_label(label: LabelSpec, value: Any) -> str:
    """Returns one sample's label as text: the class, tags, the text, or numbers with three digits.

    Of boxes it says how many of each class there are, as in `3 (2 car, dog)`, and of points how many there are.
    """
    if label.type == "tags":
        return ", ".join(str(label.classes[place]) for place in np.flatnonzero(value)) or "no tags"
    if label.type == "string":
        return str(value)
    if label.type == "category" and not label.width:
        return format_class_name(label, int(value))
    if not label.is_ragged:
        numbers = np.atleast_1d(value)
        more = " …" if numbers.size > _SHOWN_NUMBERS else ""
        return " ".join(format_number(each) for each in numbers[:_SHOWN_NUMBERS].tolist()) + more
    # Boxes or points: those that are left out are -1.
    there = value[(value >= 0).any(axis=1)]
    if label.type == "points" or not len(there):
        return str(len(there))
    codes, counts = np.unique(there[:, -1].astype(np.int64), return_counts=True)
    each = [
        f"{f'{count} ' if count > 1 else ''}{format_class_name(label, code)}"
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
    ]
    more = ", …" if len(each) > _SHOWN_LABELS else ""
    return f"{len(there)} ({', '.join(each[:_SHOWN_LABELS])}{more})"


def format_class_name(label: LabelSpec, code: int) -> str:
    """Returns the name of a class, or `class 3` for one without a name."""
    return str(label.classes[code]) if 0 <= code < len(label.classes) else f"class {code}"


def format_batch_heading(batch: ShownBatch, samples: int | None = None) -> str:
    """Returns a heading such as `train 0:12 · 32 samples · 128x128 RGB`.

    `samples` is their number where `batch` is only the beginning of a batch.
    """
    if samples is None:
        samples = int(np.count_nonzero(batch.sample_ids != PAD_ID))
    place = f"{batch.spec.name} {batch.epoch}:{batch.index}"
    return f"{place} · {format_count(samples, 'sample')} · {format_stream_images(batch.spec)}"


def format_stream_images(spec: StreamSpec) -> str:
    """Returns the shape and mode of a stream's images, height first as in the configuration: `256x256 RGB, 2 views`.

    Several images have their names: `photo 512x512 RGB, mask 512x512 index`.
    """
    forms = []
    for name, image in spec.images.items():
        form = f"{image.height}x{image.width} {image.mode}"
        if image.mode == "raw":
            form += f", {format_count(image.channels, 'channel')} {image.dtype}"
        elif image.dtype != "uint8":
            form += f" {image.dtype}"
        if image.frames:
            form += f", {format_count(image.frames, 'frame')}"
        elif image.views:
            form += f", {format_count(image.views, 'view')}"
        forms.append(form if len(spec.images) == 1 else f"{name} {form}")
    return ", ".join(forms)


# --- Colours


# The first eight are those that Okabe and Ito chose so that people with any kind of colour vision tell them apart:
# https://jfly.uni-koeln.de/color/. Later classes have the same hues, first darker and then lighter.
_BLACK: Final[Colour] = (0, 0, 0)
_HUES: Final[tuple[Colour, ...]] = (
    (230, 159, 0),  # orange
    (86, 180, 233),  # sky blue
    (0, 158, 115),  # bluish green
    (240, 228, 66),  # yellow
    (0, 114, 178),  # blue
    (213, 94, 0),  # vermilion
    (204, 121, 167),  # reddish purple
)
_DARKER: Final = tuple((red * 11 // 20, green * 11 // 20, blue * 11 // 20) for red, green, blue in _HUES)
_LIGHTER: Final = tuple(((red + 255) // 2, (green + 255) // 2, (blue + 255) // 2) for red, green, blue in _HUES)
_COLOURS: Final[tuple[Colour, ...]] = (*_HUES, *_DARKER, *_LIGHTER)
_TABLE: Final[Pixels] = np.array([_BLACK, *_COLOURS], np.uint8)
_COVERED: Final = np.float32(0.5)  # so much of a pixel comes from the colour of its class
_COVERED_BY_BACKGROUND: Final = np.float32(0.35)  # ... and so much from the black of class 0
_GREYED: Final = np.float32(0.7)  # so much of a picture's own colours is taken below a mask, or they would mix
_BRIGHTNESS: Final = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue
_BRIGHT_FROM: Final = 140  # on brighter colours, black letters are read more easily than white ones

# Of a row's mark and of the frame around its pictures, in the order in which a heading counts them. Their contrast to
# white and to the dark grey of a notebook is 3.9 or more, so both show them.
_GREY: Final[Colour] = (112, 120, 131)
MARK_COLOURS: Final[Mapping[str, Colour]] = {
    "masked": (220, 38, 38),
    "substituted": (190, 98, 0),
    "no sample": _GREY,
    "weight 0": _GREY,
}


def get_class_colour(number: int) -> Colour:
    """Returns the colour of a class in a mask. Class 0, which is mostly the background, is black."""
    return _BLACK if number == 0 else _COLOURS[(number - 1) % len(_COLOURS)]


def get_box_colour(number: int) -> Colour:
    """Returns the colour of the boxes of a class, or of the point at a place. None is black."""
    return _COLOURS[number % len(_COLOURS)]


def choose_text_colour(background: Colour) -> Colour:
    """Returns black or white, whichever is read more easily on `background`."""
    red, green, blue = background
    brightness = (299 * red + 587 * green + 114 * blue) // 1000
    return _BLACK if brightness >= _BRIGHT_FROM else (255, 255, 255)


def format_hex_colour(colour: Colour) -> str:
    """Returns a colour as a web page writes it, such as `#e69f00`."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def colour_class_numbers(numbers: Numbers) -> Pixels:
    """Returns the colours of class numbers (height, width), as uint8 (height, width, 3)."""
    places = np.where(numbers == 0, 0, (numbers.astype(np.int64) - 1) % len(_COLOURS) + 1)
    return _TABLE[places]


def lay_mask_over(picture: Pixels, numbers: Numbers, transparent: int) -> Pixels:
    """Returns a picture (height, width, 1 or 3) with the colours of its mask (height, width) laid over it.

    The picture shows through, in pale colours, except along the outline of a class. Where the mask holds the number
    `transparent`, the picture is as it was.
    """
    colours = colour_class_numbers(numbers).astype(np.float32)
    below = np.broadcast_to(picture, (*picture.shape[:2], len(_BRIGHTNESS))).astype(np.float32)
    pale = below + ((below @ _BRIGHTNESS)[:, :, np.newaxis] - below) * _GREYED
    # The outline: pixels of any class but 0 that have a neighbour of another class.
    outline: npt.NDArray[np.bool_] = np.zeros(numbers.shape, np.bool_)
    for one, other in (np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1]):
        differs = numbers[one] != numbers[other]
        outline[one] |= differs
        outline[other] |= differs
    cover = np.where(numbers == 0, _COVERED_BY_BACKGROUND, _COVERED)
    cover[outline & (numbers != 0)] = 1
    blended = pale + (colours - pale) * cover[:, :, np.newaxis]
    shown = np.where((numbers == transparent)[:, :, np.newaxis], below, np.rint(blended))
    return np.asarray(shown, np.uint8)


# --- Pixels of 8 bits for numbers of any kind


_RGB_CHANNELS: Final = 3  # of RGBA they are the first, and alpha the fourth
_WHITE: Final = 255
_SQUARES: Final = 16  # of a checkerboard, along the longer side
_LIGHT_SQUARE: Final = 250
_DARK_SQUARE: Final = 205
_MEASURED_PIXELS: Final = 1 << 16  # of a batch: enough to find the range of its numbers
_OUTER_PERCENTILES: Final = (1, 99)  # a few broken sensors' pixels would leave the rest black
_RANGES: Final[dict[PixelType, tuple[float, float]]] = {
    "uint8": (0.0, 255.0),
    "uint16": (0.0, 65535.0),
    "float32": (0.0, 1.0),
}


def get_number_range(image: ImageSpec) -> tuple[float, float]:
    """Returns the numbers that are black and white: those that the image says, or the bounds of its dtype."""
    return _RANGES[image.dtype] if image.range is None else image.range


def measure_levels(numbers: Numbers, image: ImageSpec) -> tuple[float, float]:
    """Returns the numbers that are shown as black and white in raw images (B, ..., height, width, channels).

    Numbers of 8 bits are shown from the image's range. Of others, of which a batch seldom holds all, the range is that
    of the shown channels, without the hundredth at either end.
    """
    if image.dtype == "uint8" or not numbers.size:
        return get_number_range(image)
    pixels = numbers.reshape(-1, numbers.shape[-1])
    some = pixels[:: -(-len(pixels) // _MEASURED_PIXELS), : _count_shown_channels(numbers.shape[-1])]
    known = some[np.isfinite(some)]
    if not known.size:
        return get_number_range(image)
    low, high = np.percentile(known, _OUTER_PERCENTILES).tolist()
    if low == high:
        low, high = float(known.min()), float(known.max())
    return (low, high) if low < high else (low - 1, high + 1)


def _count_shown_channels(channels: int) -> int:
    return _RGB_CHANNELS if channels >= _RGB_CHANNELS else 1


def describe_shown_numbers(image: ImageSpec, levels: tuple[float, float]) -> str:
    """Returns how raw numbers are shown: `120 is black and 3,120 white; the first 3 of 4 channels`."""
    low, high = map(format_number, levels)
    shown = _count_shown_channels(image.channels)
    left_out = f"; the first {shown} of {image.channels} channels" if shown > 1 else "; the first channel"
    return f"{low} is black and {high} white{left_out if shown < image.channels else ''}"


def build_shown_pixels(numbers: Numbers, image: ImageSpec, levels: tuple[float, float] | None = None) -> Pixels:
    """Returns an image of a batch, or one of its views or frames, as uint8 (height, width, 1 or 3).

    RGBA is laid on a checkerboard. Of raw numbers the first three channels are shown, or one if there are fewer than
    three; `levels` has the numbers that are black and white, by default those of the image's range. What is no number
    is black. Class numbers have the colours of their classes; the image's fill is a checkerboard.
    """
    if image.mode == "raw":
        low, high = levels or get_number_range(image)
        channels = numbers[:, :, : _count_shown_channels(numbers.shape[2])]
        grey = (channels.astype(np.float32) - np.float32(low)) * np.float32(_WHITE / (high - low))
        return np.asarray(np.rint(np.clip(np.nan_to_num(grey, nan=0.0), 0, _WHITE)), np.uint8)
    if image.mode not in {"index", "RGBA"}:
        return numbers
    # A checkerboard of grey squares, as many on pictures of any size, shows where there is nothing.
    height, width = numbers.shape[:2]
    side = max(1, -(-max(height, width) // _SQUARES))
    is_dark = (np.arange(height)[:, np.newaxis] // side + np.arange(width) // side) % 2 == 1
    board = np.where(is_dark, _DARK_SQUARE, _LIGHT_SQUARE).astype(np.uint8)[:, :, np.newaxis]
    if image.mode == "index":
        return np.where((numbers == image.fill)[:, :, np.newaxis], board, colour_class_numbers(numbers))
    alpha = numbers[:, :, _RGB_CHANNELS:].astype(np.uint16)
    blended = (numbers[:, :, :_RGB_CHANNELS] * alpha + board * (_WHITE - alpha)) // _WHITE
    return np.asarray(blended, np.uint8)


# --- Pictures


_COUNTED_PIXELS: Final = 1 << 20  # at a time


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """One picture of every sample: an image, or at `place` one of its views or frames, with a mask and boxes on it.

    `size` is as delivered. `title` is empty where samples have one picture only. `mask` names the image of class
    numbers that is laid over it, and `labels` the boxes and points that are drawn on it.
    """

    title: str
    image: str
    size: Size
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

    @property
    def is_drawn_on(self) -> bool:
        """Whether a mask, boxes or points lie on it."""
        return self.mask is not None or bool(self.boxes or self.points)

    def blend_mask(self) -> Pixels:
        """Returns the picture with its mask laid over it, if it has one."""
        return self.pixels if self.mask is None else lay_mask_over(self.pixels, self.mask, self.transparent)


class BatchDisplay:
    """How the first `rows` rows of a batch are shown.

    `captions` has one for each of these rows. `plans` are the pictures of each sample, and `left_out` is the number of
    those beyond SHOWN_PICTURES. With `max_side` they are subsampled, so that no side has more pixels.
    """

    def __init__(self, batch: ShownBatch, rows: int, max_side: int | None = None) -> None:
        self._batch = batch
        self._max_side = max_side
        self.captions = build_captions(batch, rows)
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

    def list_classes(self) -> list[tuple[str, Colour | None]]:
        """Returns the legend of the masks: each class that occurs, with its colour.

        Beyond SHOWN_CLASSES they are counted in an entry that has no colour.
        """
        found: set[int] = set()
        for name, image in self._batch.spec.images.items():
            if image.mode != "index":
                continue
            for row, caption in enumerate(self.captions):
                numbers = self._batch.arrays[name][row].reshape(-1)
                # Counted in parts, since counting takes eight bytes a pixel.
                for start in range(0, numbers.size if caption.sample_id != PAD_ID else 0, _COUNTED_PIXELS):
                    counts = np.bincount(numbers[start : start + _COUNTED_PIXELS])
                    found |= {*np.flatnonzero(counts).tolist()} - {image.fill}
        legend: list[tuple[str, Colour | None]] = [
            (str(number), get_class_colour(number)) for number in sorted(found)[:SHOWN_CLASSES]
        ]
        left_out = len(found) - len(legend)
        return [*legend, (f"and {left_out:,} more classes", None)] if left_out else legend

    def build_row(self, row: int) -> list[ShownPicture]:
        """Returns the pictures of a row; one without a sample has no mask."""
        spec, shown = self._batch.spec, []
        for plan in self.plans:
            image, mask, transparent = spec.images[plan.image], None, 0
            pixels = build_shown_pixels(self._read_image(plan.image, plan, row), image, self._levels.get(plan.image))
            if plan.mask is not None:
                transparent = spec.images[plan.mask].fill
                if self.captions[row].sample_id != PAD_ID:
                    mask = resample_mask(self._read_image(plan.mask, plan, row), pixels.shape[:2])
            boxes: list[ShownBox] = []
            points: list[ShownPoint] = []
            for name in plan.labels:
                label, values = spec.labels[name], self._batch.labels[name][row]
                # Rows behind the last box, and points that are not visible, are -1.
                if label.type == "boxes":
                    for left, top, right, bottom, code in values[values[:, -1] >= 0].tolist():
                        class_name, colour = format_class_name(label, int(code)), get_box_colour(int(code))
                        boxes.append(ShownBox(left, top, right, bottom, class_name, colour))
                else:
                    for place, (x, y) in enumerate(values.tolist()):
                        if x >= 0 and y >= 0:
                            points.append(ShownPoint(x, y, get_box_colour(place)))
            shown.append(ShownPicture(plan, pixels, mask, transparent, tuple(boxes), tuple(points)))
        return shown

    def _read_image(self, name: str, plan: PicturePlan, row: int) -> Numbers:
        """Returns an image of a row, or one of its views or frames, of which every n-th row and column fits."""
        values: Numbers = self._batch.arrays[name][row]
        if plan.place is not None:
            values = values[plan.place]
        if self._max_side is None:
            return values
        step = -(-max(values.shape[:2]) // self._max_side)
        return values[::step, ::step]


def plan_pictures(spec: StreamSpec, shapes: Mapping[str, tuple[int, ...]]) -> list[PicturePlan]:
    """Plans the pictures of each sample; `shapes` has the shape of one sample's array of each image.

    The array of an image with views or frames has them as its first dimension.
    """
    # Class numbers lie over the first picture whose geometry they have; a picture may have several such masks.
    masks: dict[str, list[str | None]] = {}
    for name, image in spec.images.items():
        root = image.like or name
        pictures = ((other, shown) for other, shown in spec.images.items() if shown.mode != "index")
        below = next((other for other, shown in pictures if root in {other, shown.like}), None)
        if image.mode == "index" and below is not None:
            masks.setdefault(below, []).append(name)
    covered = {mask for laid in masks.values() for mask in laid}
    # Boxes and points are drawn once, on the first picture of the image that they follow, or of its mask.
    drawn: dict[str, list[str]] = {}
    for label in spec.labels.values():
        if label.is_ragged:
            drawn.setdefault(label.image or next(iter(spec.images)), []).append(label.name)
    plans: list[PicturePlan] = []
    for name, image in spec.images.items():
        shape = shapes[name]
        for mask in masks.get(name, [None] if name not in covered else []):
            labels = tuple(drawn.pop(name, [])) + tuple(drawn.pop(mask, []) if mask else [])
            title = name if mask is None else f"{name} + {mask}"
            if len(shape) == len(image.picture_shape):
                plans.append(PicturePlan(title, name, (shape[0], shape[1]), None, mask, labels))
                continue
            for place in range(shape[0]):
                numbered = f"{title} {place + 1} of {shape[0]}"
                plans.append(PicturePlan(numbered, name, (shape[1], shape[2]), place, mask, labels))
    if len(plans) == 1 and plans[0].mask is None:
        return [replace(plans[0], title="")]
    return plans


def resample_mask(numbers: Numbers, size: tuple[int, ...]) -> Numbers:
    """Returns class numbers in the size of their picture, each that of the nearest pixel."""
    if numbers.shape == size:
        return numbers
    rows, columns = ((np.arange(new) * 2 + 1) * old // (2 * new) for new, old in zip(size, numbers.shape, strict=True))
    resampled: Numbers = numbers[rows[:, np.newaxis], columns]
    return resampled


def scale_size(size: Size, longer_side: int) -> Size:
    """Returns the size of a picture whose longer side is drawn with `longer_side` pixels."""
    height, width = (max(1, round(side * longer_side / max(size))) for side in size)
    return height, width
