"""The base of all models and the types of their keys: binds the parsers to pydantic."""

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
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from streamd.config.hints import suggest_fraction
from streamd.config.parsers import (
    MAX_SIDE,
    MAX_WORKERS,
    build_bounds_parser,
    build_number_parser,
    build_whole_number_parser,
    is_host_port,
    parse_channel_levels,
    parse_host_port,
    parse_identity,
    parse_memory_bytes,
    parse_nonempty_text,
    parse_pixel_range,
    parse_scalar,
    parse_visible_share,
    parse_workers_setting,
)
from streamd.config.units import format_yaml_value, parse_bytes, parse_seconds
from streamd.core.text import is_encodable
from streamd.errors import ConfigError
from streamd.ipc.endpoint import check_endpoint
from streamd.limits import (
    MAX_BATCH_ROWS,
    MAX_BOXES,
    MAX_FRAME_OFFSET,
    MAX_FRAMES,
    MAX_RAW_CHANNELS,
    MAX_SEED,
    MAX_SHUFFLE_CHUNK,
    MAX_VIEWS,
)

_IPC_SCHEME: Final = "ipc://"
_TCP_SCHEME: Final = "tcp://"
_CROP_SCALES: Final = (0.0001, 1.0)  # of a picture's area: a crop of less than a hundredth of each side shows nothing
_CROP_RATIOS: Final = (0.01, 100.0)  # width divided by height


def build_validation_error(*problems: tuple[tuple[str, ...], str]) -> ValidationError:
    """Returns an error for keys that contradict each other.

    Each problem is a pair (keys below the model that raises the error, sentence).
    """
    return ValidationError.from_exception_data(
        "refused",
        [
            InitErrorDetails(type=PydanticCustomError("refused", "{why}", {"why": sentence}), loc=keys, input=None)
            for keys, sentence in problems
        ],
    )


class ConfigModel(BaseModel):
    """The base of all models: they are frozen, and an unknown key is an error.

    The docstring below a key goes into the JSON schema, and editors show it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def resolve_path(path: str, info: ValidationInfo) -> str:
    """Returns `path` as absolute, relative to the configuration's folder, which `load` passes as the context."""
    if not is_encodable(path):
        raise ValueError(f"found {path!a}, whose name is not UTF-8; rename it, or give the path of a link to it")
    base: Path = (info.context or {}).get("base", Path())
    return os.path.join(base.absolute(), os.path.expanduser(path))  # noqa: PTH111,PTH118 - pathlib would rewrite globs such as a//*.tar


def _parse_data_path(value: object, info: ValidationInfo) -> Path:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value  # a notebook's mapping may hold a Path
    return Path(resolve_path(str(parse_nonempty_text(text)), info))


def _parse_endpoint(value: object, info: ValidationInfo) -> str:
    text = value if isinstance(value, str) else ""
    if text.startswith(_TCP_SCHEME) and is_host_port(text.removeprefix(_TCP_SCHEME)):
        return text
    path = text.removeprefix(_IPC_SCHEME)
    if path == text or not path or "\0" in path:
        what = "an endpoint is ipc:///path/to/socket"
        raise ValueError(f"found {format_yaml_value(value)}; {what}{_suggest_endpoint(text)}")
    # ZeroMQ takes a leading @ for an abstract socket, which has no permissions, and * for a temporary file.
    if path[0] in "@*":
        raise ValueError(
            f"found {format_yaml_value(value)}; only a socket in a folder has permissions; use ipc:///path/to/socket"
        )
    if path.endswith("/"):
        raise ValueError(f"found {format_yaml_value(value)}, a folder; name a socket in it, such as {text}streamd.sock")
    address = f"{_IPC_SCHEME}{resolve_path(path, info)}"
    try:
        check_endpoint(address)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return address


def _suggest_endpoint(text: str) -> str:
    """Suggests `; did you mean 'ipc:///run/s'?` for a path or another scheme, `tcp://...` for a bare address."""
    if text.startswith(_TCP_SCHEME):
        return "; its port is missing or too large"
    rest = re.sub(r"^[a-z]+:/*(?=/)", "", text)
    if rest.startswith("/"):
        return f"; did you mean {_IPC_SCHEME + rest!r}?"
    return f"; did you mean {_TCP_SCHEME + text!r}?" if is_host_port(text) else ""


def _build_value_schema(**schema: object) -> WithJsonSchema:
    """Returns the JSON schema of a type that one of our parsers checks."""
    return WithJsonSchema(schema)


def _build_number_schema(low: float, high: float, kind: str = "integer") -> WithJsonSchema:
    return _build_value_schema(type=kind, minimum=low, maximum=high)


def _build_bounds_schema(low: float, high: float) -> WithJsonSchema:
    """Returns the JSON schema of two numbers, the smaller first."""
    return _build_value_schema(
        type="array", items={"type": "number", "minimum": low, "maximum": high}, minItems=2, maxItems=2
    )


def _build_quantity_schema(units: str, **more: object) -> WithJsonSchema:
    """Returns the JSON schema of a plain number, or a number with one of `units`, a pattern."""
    text = {"type": "string", "pattern": rf"^\s*[0-9]{{1,18}}(\.[0-9]{{1,18}})?\s*({units})?\s*$"}
    return _build_value_schema(anyOf=[{"type": "number", "minimum": 0}, text], **more)


_TEXT_TYPE: Final = _build_value_schema(type="string", minLength=1)
_SIZE_TYPE: Final = _build_quantity_schema("[kKmMgGtT]?[iI]?[bB]", examples=["512MiB", "1GiB", "20GB"])

Text = Annotated[str, BeforeValidator(parse_nonempty_text), _TEXT_TYPE]
ScalarValue = Annotated[str | int | float | bool, BeforeValidator(parse_scalar)]
DataPath = Annotated[Path, BeforeValidator(_parse_data_path), _TEXT_TYPE]
DataGlob = Annotated[Text, AfterValidator(resolve_path)]
Endpoint = Annotated[
    str,
    BeforeValidator(_parse_endpoint),
    _build_value_schema(
        type="string",
        pattern=r"^(ipc://(?![@*]).*[^/]|tcp://[^\s/]+:[0-9]{1,5})$",
        examples=["ipc:///run/streamd/streamd.sock"],
    ),
]
HostPort = Annotated[
    str,
    BeforeValidator(parse_host_port),
    _build_value_schema(type="string", pattern=r"^[^\s/]+:[0-9]{1,5}$", examples=["127.0.0.1:9191"]),
]
Identity = Annotated[str, BeforeValidator(parse_identity), _build_value_schema(type="string", pattern="^[0-9a-f]{32}$")]
Memory = Annotated[int, BeforeValidator(parse_memory_bytes), _SIZE_TYPE]
Bytes = Annotated[int, BeforeValidator(parse_bytes), _SIZE_TYPE]
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    _build_quantity_schema("[mM]?[sS]|[mM]([iI][nN])?|[hH]", examples=["10s", "250ms", "2m"]),
]
Fraction = Annotated[
    float,
    BeforeValidator(build_number_parser(0, 1, suggest_fraction)),
    _build_value_schema(type="number", exclusiveMinimum=0, maximum=1),
]
Seed = Annotated[int, BeforeValidator(build_whole_number_parser(0, MAX_SEED)), _build_number_schema(0, MAX_SEED)]
BatchSize = Annotated[
    int, BeforeValidator(build_whole_number_parser(1, MAX_BATCH_ROWS)), _build_number_schema(1, MAX_BATCH_ROWS)
]
BoxCount = Annotated[int, BeforeValidator(build_whole_number_parser(1, MAX_BOXES)), _build_number_schema(1, MAX_BOXES)]
VisibleShare = Annotated[float, BeforeValidator(parse_visible_share), _build_number_schema(0, 1, "number")]
ChunkCount = Annotated[
    int, BeforeValidator(build_whole_number_parser(1, MAX_SHUFFLE_CHUNK)), _build_number_schema(1, MAX_SHUFFLE_CHUNK)
]
ChannelCount = Annotated[
    int, BeforeValidator(build_whole_number_parser(1, MAX_RAW_CHANNELS)), _build_number_schema(1, MAX_RAW_CHANNELS)
]
ViewCount = Annotated[int, BeforeValidator(build_whole_number_parser(1, MAX_VIEWS)), _build_number_schema(1, MAX_VIEWS)]
FrameOffset = Annotated[
    int,
    BeforeValidator(build_whole_number_parser(-MAX_FRAME_OFFSET, MAX_FRAME_OFFSET)),
    _build_number_schema(-MAX_FRAME_OFFSET, MAX_FRAME_OFFSET),
]
FrameOffsets = Annotated[tuple[FrameOffset, ...], Field(min_length=1, max_length=MAX_FRAMES)]
Workers = Annotated[
    int | Literal["auto"],
    BeforeValidator(parse_workers_setting),
    _build_value_schema(anyOf=[{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS}]),
]
Size = Annotated[
    tuple[int, int],
    _build_value_schema(
        type="array",
        items={"type": "integer", "minimum": 1, "maximum": MAX_SIDE},
        minItems=2,
        maxItems=2,
        examples=[[128, 128]],
    ),
]
CropScale = Annotated[
    tuple[float, float], BeforeValidator(build_bounds_parser(*_CROP_SCALES)), _build_bounds_schema(*_CROP_SCALES)
]
CropRatio = Annotated[
    tuple[float, float], BeforeValidator(build_bounds_parser(*_CROP_RATIOS)), _build_bounds_schema(*_CROP_RATIOS)
]
PixelRange = Annotated[
    tuple[float, float],
    BeforeValidator(parse_pixel_range),
    _build_value_schema(type="array", items={"type": "number"}, minItems=2, maxItems=2, examples=[[0, 1]]),
]
Levels = Annotated[
    tuple[float, ...],
    BeforeValidator(parse_channel_levels),
    _build_value_schema(type="array", items={"type": "number"}, minItems=1),
]
Classes = Annotated[
    tuple[int | str, ...],
    _build_value_schema(type="array", items={"type": ["integer", "string"]}, minItems=1, uniqueItems=True),
]
Columns = Annotated[
    tuple[str, ...], _build_value_schema(type="array", items={"type": "string", "minLength": 1}, minItems=1)
]
Transform = Annotated[
    str,
    _build_value_schema(type="string", pattern=r"^[^\W\d][\w.]*:[^\W\d]\w*$", examples=["augment:flip"]),
]
