"""The user's transform, `f(image, labels, rng) -> (image, labels)`, which workers call for every sample.

`dataset.transform_source` finds its source and distinguishes its versions. This module imports it into a worker, and
tries it on built-in images before its stream is served; the results are part of the stream's pixel id.
`transform_call` has the call itself, and checks what comes back.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

import numpy as np
from PIL import Image, ImageFile

from streamd.core.import_function import lookup_function
from streamd.core.sample_rng import build_generators
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import ImageSpec, PixelId, compute_identity
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.transform_source import compute_source_digest, find_module_file, find_source_files
from streamd.decode.pixel_id import decode_probe_samples
from streamd.errors import ConfigError
from streamd.ipc.progress_page import WorkerPhase
from streamd.ipc.worker_messages import TransformPlace
from streamd.limits import GIB, WORKER_DATA_BYTES
from streamd.worker.transform_call import (
    FailedTransformError,
    Function,
    StreamTransform,
    UnfitTransformError,
    format_function_location,
    format_user_error,
)

# This receives the subject, in words, and the phase, before any of the user's code runs, since that code may never
# return.
ReportTrial = Callable[[str, WorkerPhase], None]

RNG_PURPOSE: Final = "transform"  # keeps these random numbers apart from those of random crops
_MISTAKES: Final = (AttributeError, ImportError, NameError, TypeError)  # errors of the program, whatever the sample
_ONE_TRIAL_AT_A_TIME: Final = threading.Lock()  # the progress page has room for one trial
# With the first switch on, Pillow would invent what a truncated file lacks; with the second off, it would decode
# pictures of any size.
_SWITCHES: Final = ((ImageFile, "LOAD_TRUNCATED_IMAGES"), (Image, "MAX_IMAGE_PIXELS"))


@dataclass(frozen=True, slots=True)
class TriedTransform:
    """A transform that passed its trial, the id of the pixels that it makes, and a remark for the operator."""

    call: StreamTransform
    pixel_id: PixelId
    remark: str


def ignore_trial_report(subject: str, phase: WorkerPhase) -> None:
    """Ignores the report, where no progress page is shared with a daemon."""


def open_transform(
    place: TransformPlace,
    manifest: Manifest,
    images: Mapping[str, ImageSpec],
    decoded: PixelId,
    report_trial: ReportTrial = ignore_trial_report,
) -> TriedTransform:
    """Imports a transform and tries it on built-in images. `decoded` is the id of the pixels that it receives.

    Raises ConfigError if it cannot be imported, if its error cannot depend on the sample, or if it returns what no
    batch can carry. Any other error becomes the remark, since it may come from the trial's labels of zero, which real
    samples need not have.
    """
    with _ONE_TRIAL_AT_A_TIME:
        try:
            report_trial(f"module {place.module!r}", WorkerPhase.IMPORTING)
            transform = StreamTransform(load_transform(place), Path(place.folder), manifest.labels, place.by_name)
            first = _try_transform(transform, images, report_trial)
        finally:
            # Reported after an error, too: the daemon kills a worker whose trial does not end.
            report_trial("", WorkerPhase.IDLE)
    raised = next((each for each in first if isinstance(each, str)), None)
    remark = f"on a built-in image with labels of zero, {raised}" if raised else ""
    pixel_id = PixelId(compute_identity("streamd transformed 1", decoded, place.source_version, *first))
    return TriedTransform(transform, pixel_id, remark)


def _try_transform(
    transform: StreamTransform, images: Mapping[str, ImageSpec], report_trial: ReportTrial
) -> list[bytes | str]:
    """Returns the result for each built-in image, which must be the same twice. Raises ConfigError."""
    subject = f"transform at {format_function_location(transform.function, transform.folder)}"
    try:
        inspect.signature(transform.function).bind("image", "labels", "rng")
    except TypeError as error:
        raise ConfigError(
            f"{subject} is called as f(image, labels, rng), but does not accept these arguments: {error}"
        ) from error
    except ValueError:  # a function written in C may have no signature to inspect
        pass
    # Twice in one process: this finds functions that keep state, or draw from another generator than `rng`.
    try:
        first, again = (
            list(_transform_probe_samples(transform, images, subject, report_trial)),
            list(_transform_probe_samples(transform, images, subject, report_trial)),
        )
    except UnfitTransformError as error:
        raise ConfigError(str(error)) from error
    except MemoryError as error:
        most = f"{WORKER_DATA_BYTES // GIB} GiB"
        raise ConfigError(f"{subject} needs more memory on a built-in image than a worker has, {most}") from error
    if first != again:
        raise ConfigError(
            f"{subject}: it returned two different results for the same image: take random numbers only from rng, "
            "and keep no state from one call to the next"
        )
    return first


def _transform_probe_samples(
    transform: StreamTransform, images: Mapping[str, ImageSpec], subject: str, report_trial: ReportTrial
) -> Iterator[bytes | str]:
    """Yields the result for each built-in image with labels of zero and no boxes: its bytes, or the error's text."""
    for number, rows in enumerate(decode_probe_samples(images)):
        report_trial(subject, WorkerPhase.TRYING)  # once for each image, which may take as long as one row
        (rng,) = build_generators(0, 0, np.array([number]), RNG_PURPOSE)
        labels = {name: build_blank_label(spec, 1) for name, spec in transform.labels.items()}
        try:
            transform.transform_row(rows, labels, 0, rng)
        except FailedTransformError as error:
            if isinstance(error.__cause__, _MISTAKES) or not isinstance(error.__cause__, Exception):
                raise ConfigError(str(error)) from error
            yield str(error)
        else:
            yield b"".join(
                [*(row.tobytes() for row in rows.values()), *(labels[name].tobytes() for name in sorted(labels))]
            )


def load_transform(place: TransformPlace) -> Function:
    """Imports the function at a place. The module stays imported: a process can load one version of a module only.

    Raises ConfigError if there is no such function, if its module cannot be imported, or if its source is not the
    version that the place names.
    """
    folder = Path(place.folder)
    _check_source_digest(place, folder)
    switches = [getattr(*switch) for switch in _SWITCHES]
    module = _import_module(place.module, folder)
    if turned := _restore_pillow_switches(switches):
        del sys.modules[module.__name__]  # otherwise the next import would run nothing, and it would be accepted
        raise ConfigError(
            f"module {place.module!r} sets {' and '.join(turned)} when it is imported, which would change how images "
            "are decoded: remove that"
        )
    _check_source_digest(place, folder)  # again, since the file may have been changed during the import
    _check_module_names(place.module, folder)
    return lookup_function(module, place.module, place.function)


def _check_source_digest(place: TransformPlace, folder: Path) -> None:
    """Raises ConfigError if the source is not what the daemon has read.

    Otherwise a worker that starts later would make other pixels.
    """
    if compute_source_digest(place.module, folder) != place.digest:
        raise ConfigError(
            f"the source of transform {place.module!r} was changed after streamd had read it: send SIGHUP to use the "
            "new source, or undo the change"
        )


def _check_module_names(module: str, folder: Path) -> None:
    """Raises ConfigError if a library hides a module of the folder: then other code runs than the source shows."""
    for name, path in find_source_files(module, folder).items():
        file = getattr(sys.modules.get(name), "__file__", None) if name in sys.modules else str(path)
        if file != str(path) and (name != module or "." in name):
            raise ConfigError(
                f"{path.name} is hidden by {file or 'a part of Python'}, which is a library: rename your file"
            )


def _restore_pillow_switches(before: Sequence[object]) -> list[str]:
    """Sets Pillow's switches as they were, since the decoder depends on them. Returns those that had been changed."""
    turned = [switch for switch, value in zip(_SWITCHES, before, strict=True) if getattr(*switch) != value]
    for switch, value in zip(_SWITCHES, before, strict=True):
        setattr(*switch, value)
    return [f"{place.__name__}.{name}" for place, name in turned]


def _import_module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: placed first, a file named like a library would hide it from the worker
    sys.dont_write_bytecode = True  # a compiled file is matched by seconds and size, which may miss an edit
    importlib.invalidate_caches()  # the cached listing of the folder may lack a file that was written since
    try:
        file = None if "." in name else find_module_file(name, folder)
        return importlib.import_module(name) if file is None else _import_file(file)
    except BaseException as error:
        raise ConfigError(f"module {name!r} cannot be imported: {format_user_error(error, folder)}") from error


def _import_file(file: Path) -> ModuleType:
    """Imports the module in a file, under a name that no library has."""
    name = f"transform@{file}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    assert spec is not None  # noqa: S101 - its suffix is .py
    assert spec.loader is not None  # noqa: S101 - as above
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
