"""A transform tried on built-in images before its stream is served, which gives its pixels their identity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from streamd.chance import generators
from streamd.decode.identity import probe_rows
from streamd.errors import ConfigError
from streamd.manifest import Manifest
from streamd.spec import ImageSpec, PixelId, identity
from streamd.tasks import TransformPlace
from streamd.transforms.call import PURPOSE, FailedTransformError, Transform, UnfitTransformError, where
from streamd.transforms.load import load

_MISTAKES: Final = (AttributeError, ImportError, NameError, TypeError)  # of the program, whatever the sample


@dataclass(frozen=True, slots=True)
class Tried:
    """A transform that may be used, the identity of what it makes of its stream's pixels, and what to say of it."""

    call: Transform
    pixel_id: PixelId
    remark: str


def open_transform(place: TransformPlace, manifest: Manifest, image: ImageSpec, decoded: PixelId) -> Tried:
    """Imports a transform and tries it. `decoded` is the identity of the pixels that it gets.

    Raises ConfigError when it cannot be imported, is wrong whatever the sample, or gives back what no batch can carry.
    Another error is told in the remark: labels of zero may be to blame, which samples do not have.
    """
    transform = Transform(load(place), Path(place.folder), manifest.labels)
    try:
        first, again = list(_made(transform, image)), list(_made(transform, image))
    except UnfitTransformError as error:
        raise ConfigError(str(error)) from error
    if first != again:
        raise ConfigError(
            f"transform at {where(transform.function, transform.folder)}: the same image comes back as another one the "
            "second time: draw by chance from rng alone, and keep nothing from one call to the next"
        )
    raised = next((each for each in first if isinstance(each, str)), None)
    remark = f"on a built-in image with labels of zero, {raised}" if raised else ""
    pixel_id = PixelId(identity("streamd transformed 1", decoded, place.version, *first))
    return Tried(transform, pixel_id, remark)


def _made(transform: Transform, image: ImageSpec) -> Iterator[bytes | str]:
    """What becomes of each built-in image and of labels that are all zero: their bytes, or what was raised."""
    for number, row in enumerate(probe_rows(image)):
        (rng,) = generators(0, 0, np.array([number]), PURPOSE)
        labels = {name: np.zeros((1, *_width(spec.width)), spec.dtype) for name, spec in transform.labels.items()}
        try:
            transform.apply(row, labels, 0, rng)
        except FailedTransformError as error:
            if isinstance(error.__cause__, _MISTAKES):
                raise ConfigError(str(error)) from error
            yield str(error)
        else:
            yield b"".join([row.tobytes(), *(labels[name].tobytes() for name in sorted(labels))])


def _width(width: int) -> tuple[int, ...]:
    return (width,) if width else ()
