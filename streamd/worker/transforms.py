"""The user's transform, `f(image, labels, rng) -> (image, labels)`, which workers call for every sample.

`dataset.transform_source` finds its source and distinguishes its versions. This module imports it into a worker, and
tries it on built-in images before its stream is served; the results are part of the stream's pixel id.
The first part is the call itself, with the checks of what comes back.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from inspect import unwrap
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from streamd.core.import_function import lookup_function
from streamd.core.sampler import build_generators
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import ImageSpec, LabelSpec, PixelId, compute_identity
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.transform_source import compute_source_digest, find_module_file, find_source_files
from streamd.decode.pixel_id import decode_probe_samples
from streamd.errors import ConfigError
from streamd.ipc.slots import WorkerPhase
from streamd.ipc.worker_messages import TRANSFORM_RAISED, TransformPlace
from streamd.limits import GIB, WORKER_DATA_BYTES

# --- One call of the user's transform: what it receives, and the check of what it returns.
#
# The function receives the image of a sample, or under the key `images` all images in a dict. Each image must keep its
# shape and type, and the labels their names and types.

Function = Callable[[Any, dict[str, Any], Any], Any]
SampleLabels = Mapping[str, Any]
SampleImages = Mapping[str, Pixels]  # the images of one sample
LabelColumn = npt.NDArray[Any]
LabelColumns = Mapping[str, LabelColumn]  # the labels of a batch

_INT64: Final = np.iinfo(np.int64)
# The event loop's thread transforms rows while another thread may try the transform of a stream that opens. Users'
# functions need not be thread-safe, so only one runs at a time.
_ONE_AT_A_TIME: Final = threading.Lock()
_LIBRARIES: Final = "site-packages"  # an environment in the user's folder is not the user's code


class FailedTransformError(Exception):
    """A transform raised on a sample."""


class UnfitTransformError(Exception):
    """A transform returned what its stream cannot carry, and will do so on other samples, too."""


@dataclass(frozen=True, slots=True)
class StreamTransform:
    """The user's function with the labels of its stream, as the manifest declares them.

    `by_name`: it receives and returns the images of a sample in a dict, and not the only one as an array.
    """

    function: Function
    folder: Path
    labels: Mapping[str, LabelSpec]
    by_name: bool = False

    def transform_row(self, rows: SampleImages, labels: LabelColumns, place: int, rng: np.random.Generator) -> None:
        """Transforms the images of a sample, rows of a slot by name, and its labels at `place` of their columns.

        Raises FailedTransformError if the function raises, UnfitTransformError for a wrong result, and MemoryError.
        After an error the contents of the rows and labels are undefined.
        """
        # A label as a function receives it: int, float, str, or a copied array, (k,).
        given: dict[str, Any] = {}
        for name, spec in self.labels.items():
            value = labels[name][place]
            given[name] = np.array(value) if spec.width else value.decode() if spec.type == "string" else value.item()
        # Copies: a function may keep its argument, and this memory is part of a trainer's batch later.
        images, made = self._call_function({name: row.copy() for name, row in rows.items()}, given, rng)
        for name, row in rows.items():
            image, what = images[name], f"image {name!r}" if self.by_name else "an image"
            if not isinstance(image, np.ndarray):
                raise self._build_unfit_result_error(
                    f"it returns {what} of type {type(image).__name__}; it must return a NumPy array"
                )
            if image.shape != row.shape or image.dtype != row.dtype:
                raise self._build_unfit_result_error(
                    f"it returns {what} of {_describe_array(image)}; it must return {_describe_array(row)}"
                )
            row[...] = image
        for name, spec in self.labels.items():
            try:
                labels[name][place] = _encode_label(spec, labels[name], made[name])
            except ValueError as error:
                raise self._build_unfit_result_error(
                    f"it returns label {name!r} as {_describe_value(made[name])}; {error}"
                ) from None

    def _call_function(
        self, images: dict[str, Pixels], labels: dict[str, Any], rng: np.random.Generator
    ) -> tuple[Mapping[str, Any], SampleLabels]:
        # The function may change the dict that it receives, so the names are kept here.
        expected = tuple(images)
        try:
            with _ONE_AT_A_TIME:
                back = self.function(images if self.by_name else images[expected[0]], labels, rng)
        except MemoryError:
            raise  # judged by the daemon, which tries the sample alone in a fresh worker
        except BaseException as error:  # a user's program may raise anything, even SystemExit
            raise FailedTransformError(f"{TRANSFORM_RAISED} {format_user_error(error, self.folder)}") from error
        if not isinstance(back, tuple) or len(back) != 2:  # noqa: PLR2004 - the image and its labels
            pair = "(images, labels), and images is a dict" if self.by_name else "(image, labels)"
            raise self._build_unfit_result_error(f"it returns {_describe_value(back)}; it must return the pair {pair}")
        made, names = back
        # By name, it must return all images, and no other.
        if self.by_name:
            wanted = ", ".join(map(repr, expected))
            if not isinstance(made, Mapping):
                raise self._build_unfit_result_error(
                    f"it returns images as {_describe_value(made)}; it must return a dict of {wanted}"
                )
            if made.keys() != set(expected):
                missing = [name for name in expected if name not in made]
                what = f"without image {missing[0]!r}" if missing else f"of {', '.join(map(repr, made))}"
                raise self._build_unfit_result_error(f"it returns a dict {what}; it must return {wanted}")
        found = made if self.by_name else {expected[0]: made}
        if not isinstance(names, Mapping) or names.keys() != self.labels.keys():
            raise self._build_unfit_result_error(
                f"it returns labels {_describe_labels(names)}; it must return {_describe_labels(self.labels)}"
            )
        return found, names

    def _build_unfit_result_error(self, what: str) -> UnfitTransformError:
        return UnfitTransformError(f"transform at {format_function_location(self.function, self.folder)}: {what}")


def format_function_location(function: Callable[..., Any], folder: Path) -> str:
    """Returns the file and line of a function, `augment.py:12`; its name where it has none, as in C."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__name__))
    return f"{_shorten_path(code.co_filename, folder)}:{code.co_firstlineno}"


def _encode_label(spec: LabelSpec, column: LabelColumn, value: Any) -> Any:
    """Returns a label as a slot's column holds it. Raises ValueError, which says what is wanted."""
    if spec.type == "string":
        if not isinstance(value, str):
            raise ValueError("it must be a str")
        data, most_bytes = value.encode(), column.dtype.itemsize
        if len(data) > most_bytes:
            raise ValueError(f"it can have at most {most_bytes} bytes, the length of the longest text in the stream")
        return data
    found, shape = np.asarray(value), column.shape[1:]
    whole = spec.type in {"category", "int"}
    wanted = f"{'whole numbers' if whole else 'numbers'} of shape {shape}" if shape else "a whole number"
    if found.shape != shape or found.dtype.kind not in ("iub" if whole else "iubf"):
        raise ValueError(f"it must be {wanted if shape or whole else 'a number'}")
    low, high = (0, len(spec.classes) - 1) if spec.type == "category" else (_INT64.min, _INT64.max)
    if whole and not (low <= int(found.min()) and int(found.max()) <= high):
        raise ValueError(f"it must be from {low} to {high}")
    return found


def _describe_array(image: LabelColumn) -> str:
    return f"{image.dtype} {image.shape}"


def _describe_labels(labels: object) -> str:
    if not isinstance(labels, Mapping):
        return f"of type {type(labels).__name__}"
    return ", ".join(map(repr, labels)) or "none"


def _describe_value(value: object) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of {_describe_array(value)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return " ".join(f"{type(value).__name__} {value!r}".split())[:60]


def format_user_error(error: BaseException, folder: Path) -> str:
    """Formats an error of the user's program with the line that raised it: `ValueError at augment.py:12: words`."""
    words, line = " ".join(str(error).split()), ""
    if isinstance(error, SyntaxError) and error.filename:
        line = f" at {_shorten_path(error.filename, folder)}:{error.lineno}"
    else:
        # The last line of the user's own program, and not of a library that it keeps beside it.
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            each for each in frames if Path(each.filename).is_relative_to(folder) and _LIBRARIES not in each.filename
        ]
        line = f" at {_shorten_path(own[-1].filename, folder)}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}{line}{f': {words}' if words else ''}"


def _shorten_path(filename: str, folder: Path) -> str:
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else filename


# --- The import of the function, and its trial on built-in images.

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
    # Pillow's switches are set as they were, since the decoder depends on them.
    turned = [
        f"{owner.__name__}.{name}"
        for (owner, name), value in zip(_SWITCHES, switches, strict=True)
        if getattr(owner, name) != value
    ]
    for switch, value in zip(_SWITCHES, switches, strict=True):
        setattr(*switch, value)
    if turned:
        del sys.modules[module.__name__]  # otherwise the next import would run nothing, and it would be accepted
        raise ConfigError(
            f"module {place.module!r} sets {' and '.join(turned)} when it is imported, which would change how images "
            "are decoded: remove that"
        )
    _check_source_digest(place, folder)  # again, since the file may have been changed during the import
    # A library may hide a module of the folder: then other code runs than the source shows.
    for name, path in find_source_files(place.module, folder).items():
        file = getattr(sys.modules.get(name), "__file__", None) if name in sys.modules else str(path)
        if file != str(path) and (name != place.module or "." in name):
            raise ConfigError(
                f"{path.name} is hidden by {file or 'a part of Python'}, which is a library: rename your file"
            )
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


def _import_module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: placed first, a file named like a library would hide it from the worker
    sys.dont_write_bytecode = True  # a compiled file is matched by seconds and size, which may miss an edit
    importlib.invalidate_caches()  # the cached listing of the folder may lack a file that was written since
    own = ""
    try:
        if "." in name or (file := find_module_file(name, folder)) is None:
            return importlib.import_module(name)
        # A module in a file of the folder is imported under a name that no library has.
        if f"transform@{file}" in sys.modules:
            return sys.modules[f"transform@{file}"]
        own = f"transform@{file}"
        spec = spec_from_file_location(own, file)
        assert spec is not None  # noqa: S101 - its suffix is .py
        assert spec.loader is not None  # noqa: S101 - as above
        module = sys.modules[own] = module_from_spec(spec)
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(own, None)
        raise ConfigError(f"module {name!r} cannot be imported: {format_user_error(error, folder)}") from error
    return module
