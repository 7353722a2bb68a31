"""A transform tried on built-in images before its stream is served, which gives its pixels their identity."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.sample_rng import generators
from streamd.core.spec import ImageSpec, PixelId, identity
from streamd.dataset.manifest.manifest import Manifest
from streamd.decode.pixel_id import probe_rows
from streamd.errors import ConfigError
from streamd.ipc.progress_page import Phase
from streamd.ipc.worker_messages import TransformPlace
from streamd.limits import GIB, WORKER_DATA_BYTES
from streamd.worker.transforms.call import PURPOSE, FailedTransformError, Transform, UnfitTransformError, where
from streamd.worker.transforms.load import load

# Who is told what is at hand, in words, before anything of the user's is run: it may never come back.
Tell = Callable[[str, Phase], None]

_MISTAKES: Final = (AttributeError, ImportError, NameError, TypeError)  # of the program, whatever the sample
_ONE_AT_A_TIME: Final = threading.Lock()  # whoever is told hears of one


@dataclass(frozen=True, slots=True)
class Tried:
    """A transform that may be used, the identity of what it makes of its stream's pixels, and what to say of it."""

    call: Transform
    pixel_id: PixelId
    remark: str


def nobody(subject: str, phase: Phase) -> None:
    """Hears nothing."""


def open_transform(
    place: TransformPlace, manifest: Manifest, image: ImageSpec, decoded: PixelId, tell: Tell = nobody
) -> Tried:
    """Imports a transform and tries it. `decoded` is the identity of the pixels that it gets.

    Raises ConfigError when it cannot be imported, is wrong whatever the sample, or gives back what no batch can carry.
    Another error is told in the remark: labels of zero may be to blame, which samples do not have.
    """
    with _ONE_AT_A_TIME:
        try:
            tell(f"module {place.module!r}", Phase.IMPORTING)
            transform = Transform(load(place), Path(place.folder), manifest.labels)
            first = _tried(transform, image, tell)
        finally:
            tell("", Phase.ELSEWHERE)
    raised = next((each for each in first if isinstance(each, str)), None)
    remark = f"on a built-in image with labels of zero, {raised}" if raised else ""
    pixel_id = PixelId(identity("streamd transformed 1", decoded, place.version, *first))
    return Tried(transform, pixel_id, remark)


def _tried(transform: Transform, image: ImageSpec, tell: Tell) -> list[bytes | str]:
    """What becomes of each built-in image, the same whenever it is tried. Raises ConfigError."""
    subject = f"transform at {where(transform.function, transform.folder)}"
    try:
        inspect.signature(transform.function).bind("image", "labels", "rng")
    except TypeError as error:
        raise ConfigError(f"{subject} is called as f(image, labels, rng), which it does not take: {error}") from error
    except ValueError:  # of a function written in C, which keeps what it takes to itself
        pass
    try:
        first, again = list(_made(transform, image, subject, tell)), list(_made(transform, image, subject, tell))
    except UnfitTransformError as error:
        raise ConfigError(str(error)) from error
    except MemoryError as error:
        most = f"{WORKER_DATA_BYTES // GIB} GiB"
        raise ConfigError(f"{subject} needs more memory on a built-in image than a worker has, {most}") from error
    if first != again:
        raise ConfigError(
            f"{subject}: the same image comes back as another one the second time: draw by chance from rng alone, and "
            "keep nothing from one call to the next"
        )
    return first


def _made(transform: Transform, image: ImageSpec, subject: str, tell: Tell) -> Iterator[bytes | str]:
    """What becomes of each built-in image and of labels that are all zero: their bytes, or what was raised."""
    for number, row in enumerate(probe_rows(image)):
        tell(subject, Phase.TRYING)  # for each anew: it has as long for each as for a row
        (rng,) = generators(0, 0, np.array([number]), PURPOSE)
        labels = {name: np.zeros((1, *_width(spec.width)), spec.dtype) for name, spec in transform.labels.items()}
        try:
            transform.apply(row, labels, 0, rng)
        except FailedTransformError as error:
            if isinstance(error.__cause__, _MISTAKES) or not isinstance(error.__cause__, Exception):
                raise ConfigError(str(error)) from error
            yield str(error)
        else:
            yield b"".join([row.tobytes(), *(labels[name].tobytes() for name in sorted(labels))])


def _width(width: int) -> tuple[int, ...]:
    return (width,) if width else ()
