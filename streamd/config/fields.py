"""Models and the types of their fields: the readers, bound to the library that validates."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from streamd.config.hints import fraction
from streamd.config.parsers import (
    MAX_SIDE,
    MAX_WORKERS,
    is_host_port,
    number_between,
    read_bounds,
    read_host_port,
    read_levels,
    read_memory,
    read_range,
    read_scalar,
    read_text,
    read_workers,
    whole,
)
from streamd.config.units import parse_bytes, parse_seconds, show
from streamd.core.text import is_encodable
from streamd.errors import ConfigError
from streamd.ipc.endpoint import check_endpoint
from streamd.limits import MAX_BATCH_ROWS

_IPC: Final = "ipc://"
_TCP: Final = "tcp://"
_MAX_SEED: Final = (1 << 63) - 1
_MAX_CHUNK: Final = 1 << 32  # samples or chunks: more than any store holds
_SCALES: Final = (0.0001, 1.0)  # of a picture's area: less than a hundredth of its sides shows nothing
_RATIOS: Final = (0.01, 100.0)  # width by height


def refused(*problems: tuple[tuple[str, ...], str]) -> ValidationError:
    """An error for facts that do not fit together: each problem is (keys below the model it is raised in, sentence)."""
    return ValidationError.from_exception_data(
        "refused",
        [
            InitErrorDetails(type=PydanticCustomError("refused", "{why}", {"why": sentence}), loc=keys, input=None)
            for keys, sentence in problems
        ],
    )


class Model(BaseModel):
    """What all models share: they do not change, and a key they do not know is an error.

    The text below a key is what editors show of it, by way of the JSON schema.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def absolute(path: str, info: ValidationInfo) -> str:
    """`path` as seen from the configuration's folder, which `load` passes as the context."""
    if not is_encodable(path):
        raise ValueError(f"found {path!a}, whose name is not UTF-8; rename it, or name a link to it")
    base: Path = (info.context or {}).get("base", Path())
    return os.path.join(base.absolute(), os.path.expanduser(path))  # noqa: PTH111,PTH118 - pathlib would rewrite globs such as a//*.tar


def _data_path(value: object, info: ValidationInfo) -> Path:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value  # a notebook's mapping may hold a Path
    return Path(absolute(str(read_text(text)), info))


def _endpoint(value: object, info: ValidationInfo) -> str:
    text = value if isinstance(value, str) else ""
    if text.startswith(_TCP) and is_host_port(text.removeprefix(_TCP)):
        return text
    path = text.removeprefix(_IPC)
    if path == text or not path or "\0" in path:
        what = "an endpoint is ipc:///path/to/socket or tcp://address:port"
        raise ValueError(f"found {show(value)}; {what}{_near_endpoint(text)}")
    if path[0] in "@*":
        raise ValueError(f"found {show(value)}; only a socket in a folder has permissions, use ipc:///path/to/socket")
    if path.endswith("/"):
        raise ValueError(f"found {show(value)}, a folder; name a socket in it, such as {text}streamd.sock")
    address = f"{_IPC}{absolute(path, info)}"
    try:
        check_endpoint(address)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return address


def _near_endpoint(text: str) -> str:
    """`; did you mean 'ipc:///run/s'?` for a path or another scheme, `tcp://...` for a bare address."""
    if text.startswith(_TCP):
        return "; its port is missing or too large"
    rest = re.sub(r"^[a-z]+:/*(?=/)", "", text)
    if rest.startswith("/"):
        return f"; did you mean {_IPC + rest!r}?"
    return f"; did you mean {_TCP + text!r}?" if is_host_port(text) else ""


def _shown_as(**schema: object) -> WithJsonSchema:
    """What the JSON schema says of a type that a reader of ours checks."""
    return WithJsonSchema(schema)


def _number(low: float, high: float, kind: str = "integer") -> WithJsonSchema:
    return _shown_as(type=kind, minimum=low, maximum=high)


def _bounds(low: float, high: float) -> WithJsonSchema:
    """Two numbers, the smaller first."""
    return _shown_as(type="array", items={"type": "number", "minimum": low, "maximum": high}, minItems=2, maxItems=2)


def _quantity(units: str, **more: object) -> WithJsonSchema:
    """A plain number, or one with a unit."""
    text = {"type": "string", "pattern": rf"^\s*[0-9]{{1,18}}(\.[0-9]{{1,18}})?\s*({units})?\s*$"}
    return _shown_as(anyOf=[{"type": "number", "minimum": 0}, text], **more)


_NOT_EMPTY: Final = _shown_as(type="string", minLength=1)
_SIZE: Final = _quantity("[kKmMgGtT]?[iI]?[bB]", examples=["512MiB", "1GiB", "20GB"])

Text = Annotated[str, BeforeValidator(read_text), _NOT_EMPTY]
ScalarValue = Annotated[str | int | float | bool, BeforeValidator(read_scalar)]
DataPath = Annotated[Path, BeforeValidator(_data_path), _NOT_EMPTY]
DataGlob = Annotated[Text, AfterValidator(absolute)]
Endpoint = Annotated[
    str,
    BeforeValidator(_endpoint),
    _shown_as(
        type="string",
        pattern=r"^(ipc://(?![@*]).*[^/]|tcp://[^\s/]+:[0-9]{1,5})$",
        examples=["ipc:///run/streamd/streamd.sock"],
    ),
]
HostPort = Annotated[
    str,
    BeforeValidator(read_host_port),
    _shown_as(type="string", pattern=r"^[^\s/]+:[0-9]{1,5}$", examples=["127.0.0.1:9191"]),
]
Memory = Annotated[int, BeforeValidator(read_memory), _SIZE]
Bytes = Annotated[int, BeforeValidator(parse_bytes), _SIZE]
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    _quantity("[mM]?[sS]|[mM]([iI][nN])?|[hH]", examples=["10s", "250ms", "2m"]),
]
Fraction = Annotated[
    float, BeforeValidator(number_between(0, 1, fraction)), _shown_as(type="number", exclusiveMinimum=0, maximum=1)
]
Seed = Annotated[int, BeforeValidator(whole(0, _MAX_SEED)), _number(0, _MAX_SEED)]
BatchSize = Annotated[int, BeforeValidator(whole(1, MAX_BATCH_ROWS)), _number(1, MAX_BATCH_ROWS)]
ChunkCount = Annotated[int, BeforeValidator(whole(1, _MAX_CHUNK)), _number(1, _MAX_CHUNK)]
Workers = Annotated[
    int | Literal["auto"],
    BeforeValidator(read_workers),
    _shown_as(anyOf=[{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS}]),
]
Size = Annotated[
    tuple[int, int],
    _shown_as(
        type="array",
        items={"type": "integer", "minimum": 1, "maximum": MAX_SIDE},
        minItems=2,
        maxItems=2,
        examples=[[128, 128]],
    ),
]
CropScale = Annotated[tuple[float, float], BeforeValidator(read_bounds(*_SCALES)), _bounds(*_SCALES)]
CropRatio = Annotated[tuple[float, float], BeforeValidator(read_bounds(*_RATIOS)), _bounds(*_RATIOS)]
PixelRange = Annotated[
    tuple[float, float],
    BeforeValidator(read_range),
    _shown_as(type="array", items={"type": "number"}, minItems=2, maxItems=2, examples=[[0, 1]]),
]
Levels = Annotated[
    tuple[float, ...],
    BeforeValidator(read_levels),
    _shown_as(type="array", items={"type": "number", "minimum": 0, "maximum": 255}, minItems=1),
]
Classes = Annotated[
    tuple[int | str, ...],
    _shown_as(type="array", items={"type": ["integer", "string"]}, minItems=1, uniqueItems=True),
]
Columns = Annotated[tuple[str, ...], _shown_as(type="array", items={"type": "string", "minLength": 1}, minItems=1)]
Transform = Annotated[
    str,
    _shown_as(type="string", pattern=r"^[^\W\d][\w.]*:[^\W\d]\w*$", examples=["augment:flip"]),
]
