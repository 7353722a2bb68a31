"""A transform tried on built-in images before its stream is served, which gives its pixels their identity."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.sample_rng import build_generators
from streamd.core.spec import ImageSpec, PixelId, compute_identity
from streamd.dataset.manifest.manifest import Manifest
from streamd.decode.pixel_id import decode_probe_images
from streamd.errors import ConfigError
from streamd.ipc.progress_page import WorkerPhase
from streamd.ipc.worker_messages import TransformPlace
from streamd.limits import GIB, WORKER_DATA_BYTES
from streamd.worker.transforms.call import (
    RNG_PURPOSE,
    FailedTransformError,
    StreamTransform,
    UnfitTransformError,
    format_function_location,
)
from streamd.worker.transforms.load import load_transform

# Who is told what is at hand, in words, before anything of the user's is run: it may never come back.
ReportTrial = Callable[[str, WorkerPhase], None]

_MISTAKES: Final = (AttributeError, ImportError, NameError, TypeError)  # of the program, whatever the sample
_ONE_AT_A_TIME: Final = threading.Lock()  # whoever is told hears of one


@dataclass(frozen=True, slots=True)
class TriedTransform:
    """A transform that may be used, the identity of what it makes of its stream's pixels, and what to say of it."""

    call: StreamTransform
    pixel_id: PixelId
    remark: str


def ignore_trial(subject: str, phase: WorkerPhase) -> None:
    """Hears nothing."""


def open_transform(
    place: TransformPlace,
    manifest: Manifest,
    image: ImageSpec,
    decoded: PixelId,
    report_trial: ReportTrial = ignore_trial,
) -> TriedTransform:
    """Imports a transform and tries it. `decoded` is the identity of the pixels that it gets.

    Raises ConfigError when it cannot be imported, is wrong whatever the sample, or gives back what no batch can carry.
    Another error is told in the remark: labels of zero may be to blame, which samples do not have.
    """
    with _ONE_AT_A_TIME:
        try:
            report_trial(f"module {place.module!r}", WorkerPhase.IMPORTING)
            transform = StreamTransform(load_transform(place), Path(place.folder), manifest.labels)
            first = _try_transform(transform, image, report_trial)
        finally:
            report_trial("", WorkerPhase.IDLE)
    raised = next((each for each in first if isinstance(each, str)), None)
    remark = f"on a built-in image with labels of zero, {raised}" if raised else ""
    pixel_id = PixelId(compute_identity("streamd transformed 1", decoded, place.source_version, *first))
    return TriedTransform(transform, pixel_id, remark)


def _try_transform(transform: StreamTransform, image: ImageSpec, report_trial: ReportTrial) -> list[bytes | str]:
    """What becomes of each built-in image, the same whenever it is tried. Raises ConfigError."""
    subject = f"transform at {format_function_location(transform.function, transform.folder)}"
    try:
        inspect.signature(transform.function).bind("image", "labels", "rng")
    except TypeError as error:
        raise ConfigError(f"{subject} is called as f(image, labels, rng), which it does not take: {error}") from error
    except ValueError:  # of a function written in C, which keeps what it takes to itself
        pass
    try:
        first, again = (
            list(_transform_probe_images(transform, image, subject, report_trial)),
            list(_transform_probe_images(transform, image, subject, report_trial)),
        )
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


def _transform_probe_images(
    transform: StreamTransform, image: ImageSpec, subject: str, report_trial: ReportTrial
) -> Iterator[bytes | str]:
    """What becomes of each built-in image and of labels that are all zero: their bytes, or what was raised."""
    for number, row in enumerate(decode_probe_images(image)):
        report_trial(subject, WorkerPhase.TRYING)  # for each anew: it has as long for each as for a row
        (rng,) = build_generators(0, 0, np.array([number]), RNG_PURPOSE)
        labels = {
            name: np.zeros((1, *_compute_label_shape(spec.width)), spec.dtype)
            for name, spec in transform.labels.items()
        }
        try:
            transform.transform_row(row, labels, 0, rng)
        except FailedTransformError as error:
            if isinstance(error.__cause__, _MISTAKES) or not isinstance(error.__cause__, Exception):
                raise ConfigError(str(error)) from error
            yield str(error)
        else:
            yield b"".join([row.tobytes(), *(labels[name].tobytes() for name in sorted(labels))])


def _compute_label_shape(width: int) -> tuple[int, ...]:
    return (width,) if width else ()
