"""One call of the user's transform: what it receives, and the check of what it returns.

The function receives the image of a sample, or under the key `images` all images in a dict. Each image must keep its
shape and type, and the labels their names and types.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import unwrap
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.dataset.arrays.store import Pixels
from streamd.ipc.worker_messages import TRANSFORM_RAISED

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
        given = {name: _decode_label(spec, labels[name][place]) for name, spec in self.labels.items()}
        # Copies: a function may keep its argument, and this memory is part of a trainer's batch later.
        images, made = self._call_function({name: row.copy() for name, row in rows.items()}, given, rng)
        for name, row in rows.items():
            row[...] = self._check_image(name, images[name], row)
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
        found = self._check_image_names(made, expected) if self.by_name else {expected[0]: made}
        if not isinstance(names, Mapping) or names.keys() != self.labels.keys():
            raise self._build_unfit_result_error(
                f"it returns labels {_describe_labels(names)}; it must return {_describe_labels(self.labels)}"
            )
        return found, names

    def _check_image_names(self, made: object, expected: tuple[str, ...]) -> Mapping[str, Any]:
        """Returns the dict of images. Raises UnfitTransformError unless it has all of them, and no other."""
        wanted = ", ".join(map(repr, expected))
        if not isinstance(made, Mapping):
            raise self._build_unfit_result_error(
                f"it returns images as {_describe_value(made)}; it must return a dict of {wanted}"
            )
        if made.keys() != set(expected):
            missing = [name for name in expected if name not in made]
            what = f"without image {missing[0]!r}" if missing else f"of {', '.join(map(repr, made))}"
            raise self._build_unfit_result_error(f"it returns a dict {what}; it must return {wanted}")
        return made

    def _check_image(self, name: str, made: object, row: Pixels) -> Pixels:
        """Returns an image that has the shape and the dtype of its row. Raises UnfitTransformError for any other."""
        what = f"image {name!r}" if self.by_name else "an image"
        if not isinstance(made, np.ndarray):
            raise self._build_unfit_result_error(
                f"it returns {what} of type {type(made).__name__}; it must return a NumPy array"
            )
        if made.shape != row.shape or made.dtype != row.dtype:
            raise self._build_unfit_result_error(
                f"it returns {what} of {_describe_array(made)}; it must return {_describe_array(row)}"
            )
        return made

    def _build_unfit_result_error(self, what: str) -> UnfitTransformError:
        return UnfitTransformError(f"transform at {format_function_location(self.function, self.folder)}: {what}")


def format_function_location(function: Callable[..., Any], folder: Path) -> str:
    """Returns the file and line of a function, `augment.py:12`; its name where it has none, as in C."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__name__))
    path = Path(code.co_filename)
    return f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{code.co_firstlineno}"


def _decode_label(spec: LabelSpec, value: Any) -> Any:
    """Returns a label as a transform receives it: int, float, str, or a copied array, (k,)."""
    if spec.width:
        return np.array(value)
    return value.decode() if spec.type == "string" else value.item()


def _encode_label(spec: LabelSpec, column: LabelColumn, value: Any) -> Any:
    """Returns a label as a slot's column holds it. Raises ValueError, which says what is wanted."""
    if spec.type == "string":
        return _encode_text(value, column.dtype.itemsize)
    found, shape = np.asarray(value), column.shape[1:]
    whole = spec.type in {"category", "int"}
    wanted = f"{'whole numbers' if whole else 'numbers'} of shape {shape}" if shape else "a whole number"
    if found.shape != shape or found.dtype.kind not in ("iub" if whole else "iubf"):
        raise ValueError(f"it must be {wanted if shape or whole else 'a number'}")
    low, high = (0, len(spec.classes) - 1) if spec.type == "category" else (_INT64.min, _INT64.max)
    if whole and not (low <= int(found.min()) and int(found.max()) <= high):
        raise ValueError(f"it must be from {low} to {high}")
    return found


def _encode_text(value: Any, most_bytes: int) -> bytes:
    if not isinstance(value, str):
        raise ValueError("it must be a str")  # noqa: TRY004 - the caller makes one error of all
    data = value.encode()
    if len(data) > most_bytes:
        raise ValueError(f"it can have at most {most_bytes} bytes, the length of the longest text in the stream")
    return data


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
    words = " ".join(str(error).split())
    return f"{type(error).__name__}{_format_user_line(error, folder)}{f': {words}' if words else ''}"


def _format_user_line(error: BaseException, folder: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {_shorten_path(error.filename, folder)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if Path(frame.filename).is_relative_to(folder) and _LIBRARIES not in frame.filename
    ]
    if not own:
        return ""
    return f" at {_shorten_path(own[-1].filename, folder)}:{own[-1].lineno}"


def _shorten_path(filename: str, folder: Path) -> str:
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else filename
