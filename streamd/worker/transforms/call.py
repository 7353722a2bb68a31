"""One call of a transform: what it is given, and whether what it gives back is what was agreed."""

from __future__ import annotations

import threading
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
from streamd.worker.transforms.load import Function, format_user_error

SampleLabels = Mapping[str, Any]
LabelColumn = npt.NDArray[Any]
LabelColumns = Mapping[str, LabelColumn]  # the labels of a batch

RNG_PURPOSE: Final = "transform"  # of what is drawn by chance
_INT64: Final = np.iinfo(np.int64)
_ONE_AT_A_TIME: Final = threading.Lock()  # a stream that opens tries its transform beside another's row


class FailedTransformError(Exception):
    """A transform raised on a sample."""


class UnfitTransformError(Exception):
    """A transform gives back what its stream cannot carry, on this sample and so on others."""


@dataclass(frozen=True, slots=True)
class StreamTransform:
    """A function as a stream calls it: `labels` are those of the manifest, with their classes."""

    function: Function
    folder: Path
    labels: Mapping[str, LabelSpec]

    def transform_row(self, row: Pixels, labels: LabelColumns, place: int, rng: np.random.Generator) -> None:
        """Transforms a row of a slot, (height, width, channels), and its labels, at `place` of their columns.

        Raises FailedTransformError and UnfitTransformError, which leave anything there; MemoryError.
        """
        given = {name: _decode_label(spec, labels[name][place]) for name, spec in self.labels.items()}
        image, made = self._call_function(
            row.copy(), given, rng
        )  # a copy: what it keeps must not be a trainer's batch later
        if image.shape != row.shape or image.dtype != np.uint8:
            raise self._build_unfit_error(
                f"an image of {_describe_array(image)} comes back; uint8 {row.shape} is wanted"
            )
        row[...] = image
        for name, spec in self.labels.items():
            try:
                labels[name][place] = _encode_label(spec, labels[name], made[name])
            except ValueError as error:
                raise self._build_unfit_error(
                    f"label {name!r} comes back as {_describe_value(made[name])}; {error}"
                ) from None

    def _call_function(
        self, image: Pixels, labels: dict[str, Any], rng: np.random.Generator
    ) -> tuple[Pixels, SampleLabels]:
        try:
            with _ONE_AT_A_TIME:
                back = self.function(image, labels, rng)
        except MemoryError:
            raise
        except BaseException as error:  # a user's program may raise anything, even SystemExit
            raise FailedTransformError(f"{TRANSFORM_RAISED} {format_user_error(error, self.folder)}") from error
        if not isinstance(back, tuple) or len(back) != 2:  # noqa: PLR2004 - the image and its labels
            raise self._build_unfit_error(f"{_describe_value(back)} comes back; the pair (image, labels) is wanted")
        made, names = back
        if not isinstance(made, np.ndarray):
            raise self._build_unfit_error(f"an image of type {type(made).__name__} comes back; a NumPy array is wanted")
        if not isinstance(names, Mapping) or names.keys() != self.labels.keys():
            raise self._build_unfit_error(
                f"labels {_describe_labels(names)} come back; {_describe_labels(self.labels)} are wanted"
            )
        return made, names

    def _build_unfit_error(self, what: str) -> UnfitTransformError:
        return UnfitTransformError(f"transform at {format_function_location(self.function, self.folder)}: {what}")


def format_function_location(function: Callable[..., Any], folder: Path) -> str:
    """File and line of a function, `augment.py:12`; its name where it has none."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__name__))
    path = Path(code.co_filename)
    return f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{code.co_firstlineno}"


def _decode_label(spec: LabelSpec, value: Any) -> Any:
    """A label as a transform gets it: int, float, str, or an array of its own, (k,)."""
    if spec.width:
        return np.array(value)
    return value.decode() if spec.type == "string" else value.item()


def _encode_label(spec: LabelSpec, column: LabelColumn, value: Any) -> Any:
    """A label as it goes into a slot's column. Raises ValueError, which says what is wanted."""
    if spec.type == "string":
        return _encode_text(value, column.dtype.itemsize)
    found, shape = np.asarray(value), column.shape[1:]
    whole = spec.type in {"category", "int"}
    wanted = f"{'whole numbers' if whole else 'numbers'} of shape {shape}" if shape else "a whole number"
    if found.shape != shape or found.dtype.kind not in ("iub" if whole else "iubf"):
        raise ValueError(f"{wanted if shape or whole else 'a number'} is wanted")
    low, high = (0, len(spec.classes) - 1) if spec.type == "category" else (_INT64.min, _INT64.max)
    if whole and not (low <= int(found.min()) and int(found.max()) <= high):
        raise ValueError(f"{low} to {high} is wanted")
    return found


def _encode_text(value: Any, most_bytes: int) -> bytes:
    if not isinstance(value, str):
        raise ValueError("a str is wanted")  # noqa: TRY004 - the caller makes one error of all
    data = value.encode()
    if len(data) > most_bytes:
        raise ValueError(f"at most {most_bytes} bytes are wanted, as many as the longest of the stream has")
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
