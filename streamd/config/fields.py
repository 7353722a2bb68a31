"""The base of all models and the types of their keys, each with its bounds.

A type says what a key takes, by pydantic's own constraints: the JSON schema and the check are both made of them. What
is said of other values is a row of the table in `errors`, found by the name that `RefusedAs` gives.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from streamd.config.units import format_yaml_value, parse_bytes, parse_seconds
from streamd.core.text import is_encodable
from streamd.errors import ConfigError
from streamd.ipc.endpoint import check_endpoint
from streamd.limits import (
    MAX_BATCH_ROWS,
    MAX_BOXES,
    MAX_FRAME_OFFSET,
    MAX_FRAMES,
    MAX_NODES,
    MAX_RAW_CHANNELS,
    MAX_SEED,
    MAX_SHUFFLE_CHUNK,
    MAX_VIEWS,
    MIB,
)

BrokenRule = tuple[tuple[str, ...], str]  # the keys below the model that has the rule, and a sentence

MAX_SIDE: Final = 16384  # pixels; beyond it a single image is no longer a row of a batch
MAX_WORKERS: Final = 1024
_MAX_PORT: Final = 65535
_MAX_CPUS: Final = 1024
_IPC_SCHEME: Final = "ipc://"
_TCP_SCHEME: Final = "tcp://"
_HOST_PORT: Final = r"^(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})$"
_BOUNDS: Final = ("gt", "ge", "le")


class ConfigModel(BaseModel):
    """The base of all models: they are frozen, and an unknown key is an error.

    The docstring below a key goes into the JSON schema, and editors show it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    def list_rules(self) -> Iterable[BrokenRule]:
        """Returns all broken rules between keys, once each of the keys has a value of its type."""
        return ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [
            InitErrorDetails(type=PydanticCustomError("rule", "{why}", {"why": sentence}), loc=keys, input=None)
            for keys, sentence in self.list_rules()
        ]
        if broken:
            raise ValidationError.from_exception_data("rule", broken)
        return self


class RefusedAs:
    """Gives whatever a type refuses one name, with the bounds of the type, instead of pydantic's errors of its parts.

    `errors` has a sentence for each name. Places inside the value are lost, so it is for values that are read as one.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        return core_schema.custom_error_schema(
            inner,
            custom_error_type=self._name,
            custom_error_message=self._name,
            custom_error_context=_find_bounds(inner),
        )


def _find_bounds(schema: Any) -> dict[str, Any]:
    """Returns the bounds of the numbers in a type: {"ge": 1, "le": 65536}."""
    bounds = {key: schema[key] for key in _BOUNDS if key in schema}
    for part in (schema.get("schema"), *schema.get("items_schema", ()), *schema.get("choices", ())):
        bounds |= _find_bounds(part) if isinstance(part, dict) else {}
    return bounds


def build_refusal(kind: str, **facts: str) -> PydanticCustomError:
    """Returns an error of a validator, for which `errors` has a sentence."""
    return PydanticCustomError(kind, kind, facts)


def _require(kind: str, holds: Callable[[Any], bool]) -> AfterValidator:
    """Returns a validator of what constraints cannot say, which refuses values for which `holds` is false."""

    def check_value(value: Any) -> Any:
        if not holds(value):
            raise build_refusal(kind)
        return value

    return AfterValidator(check_value)


# --- text, paths and addresses


def resolve_path(path: str, info: ValidationInfo) -> str:
    """Returns `path` as absolute, relative to the configuration's folder, which `load` passes as the context."""
    if not is_encodable(path):
        raise ValueError(f"found {path!a}, whose name is not UTF-8; rename it, or give the path of a link to it")
    base: Path = (info.context or {}).get("base", Path())
    return os.path.join(base.absolute(), os.path.expanduser(path))  # noqa: PTH111,PTH118 - pathlib would rewrite globs such as a//*.tar


def _parse_data_path(value: object, info: ValidationInfo) -> Path:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value  # a notebook's mapping may hold a Path
    if not isinstance(text, str) or not text or "\0" in text:
        raise build_refusal("text")
    return Path(resolve_path(text, info))


def is_host_port(text: str) -> bool:
    """Whether `text` is address:port, such as 127.0.0.1:9191, [::1]:9191 or *:9191."""
    found = re.fullmatch(_HOST_PORT, text, re.ASCII)
    return found is not None and int(found[1]) <= _MAX_PORT


def _parse_endpoint(value: object, info: ValidationInfo) -> str:
    text = value if isinstance(value, str) else ""
    if text.startswith(_TCP_SCHEME) and is_host_port(text.removeprefix(_TCP_SCHEME)):
        return text
    path = text.removeprefix(_IPC_SCHEME)
    if path == text or not path or "\0" in path:
        # A path, another scheme or a bare address is nearly right: say what was probably meant.
        near, rest = "", re.sub(r"^[a-z]+:/*(?=/)", "", text)
        if text.startswith(_TCP_SCHEME):
            near = "; its port is missing or too large"
        elif rest.startswith("/"):
            near = f"; did you mean {_IPC_SCHEME + rest!r}?"
        elif is_host_port(text):
            near = f"; did you mean {_TCP_SCHEME + text!r}?"
        raise ValueError(f"found {format_yaml_value(value)}; an endpoint is ipc:///path/to/socket{near}")
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


Text = Annotated[
    str, Field(strict=True, min_length=1), _require("text", lambda text: "\0" not in text), RefusedAs("text")
]
DataPath = Annotated[
    Path, BeforeValidator(_parse_data_path), WithJsonSchema({"type": "string", "minLength": 1})
]  # pydantic's own schema of a Path has a format that editors do not know
DataGlob = Annotated[Text, AfterValidator(resolve_path)]
Identity = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{32}$"), RefusedAs("identity")]
Transform = Annotated[
    str, Field(strict=True, pattern=r"^[^\W\d][\w.]*:[^\W\d]\w*$", examples=["augment:flip"]), RefusedAs("transform")
]
HostPort = Annotated[
    str,
    Field(strict=True, pattern=_HOST_PORT, examples=["127.0.0.1:9191"]),
    _require("host_port", is_host_port),
    RefusedAs("host_port"),
]
Endpoint = Annotated[
    str,
    BeforeValidator(_parse_endpoint),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(ipc://(?![@*]).*[^/]|tcp://[^\s/]+:[0-9]{1,5})$",
            "examples": ["ipc:///run/streamd/streamd.sock"],
        }
    ),
]


# --- numbers and quantities


def _build_quantity_schema(units: str, **more: object) -> WithJsonSchema:
    """Returns the JSON schema of a plain number, or a number with one of `units`, a pattern."""
    text = {"type": "string", "pattern": rf"^\s*[0-9]{{1,18}}(\.[0-9]{{1,18}})?\s*({units})?\s*$"}
    return WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, text], **more})


_SIZE_SCHEMA: Final = _build_quantity_schema("[kKmMgGtT]?[iI]?[bB]", examples=["512MiB", "1GiB", "20GB"])
_WHOLE_NUMBER: Final = RefusedAs("whole_number")

Bytes = Annotated[int, BeforeValidator(parse_bytes), _SIZE_SCHEMA]
Memory = Annotated[int, Field(ge=MIB), RefusedAs("memory"), BeforeValidator(parse_bytes), _SIZE_SCHEMA]
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    _build_quantity_schema("[mM]?[sS]|[mM]([iI][nN])?|[hH]", examples=["10s", "250ms", "2m"]),
]
Fraction = Annotated[float, Field(strict=True, gt=0, le=1), RefusedAs("fraction")]
VisibleShare = Annotated[float, Field(strict=True, ge=0, le=1), RefusedAs("visible_share")]
Seed = Annotated[int, Field(strict=True, ge=0, le=MAX_SEED), _WHOLE_NUMBER]
BatchSize = Annotated[int, Field(strict=True, ge=1, le=MAX_BATCH_ROWS), _WHOLE_NUMBER]
BoxCount = Annotated[int, Field(strict=True, ge=1, le=MAX_BOXES), _WHOLE_NUMBER]
ChunkCount = Annotated[int, Field(strict=True, ge=1, le=MAX_SHUFFLE_CHUNK), _WHOLE_NUMBER]
ChannelCount = Annotated[int, Field(strict=True, ge=1, le=MAX_RAW_CHANNELS), _WHOLE_NUMBER]
ViewCount = Annotated[int, Field(strict=True, ge=1, le=MAX_VIEWS), _WHOLE_NUMBER]
FrameOffset = Annotated[int, Field(strict=True, ge=-MAX_FRAME_OFFSET, le=MAX_FRAME_OFFSET), _WHOLE_NUMBER]
Workers = Annotated[
    Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=MAX_WORKERS)], RefusedAs("auto_or_number")
]
NodeCount = Annotated[
    Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)], RefusedAs("auto_or_number")
]
CpuCount = Annotated[float, Field(gt=0, le=_MAX_CPUS), RefusedAs("cpu_count")]
ResourceCount = Annotated[float, Field(gt=0), RefusedAs("resource_count")]
ScalarValue = Annotated[
    StrictStr | StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)], RefusedAs("scalar")
]
Remainder = Annotated[StrictBool | Literal["pad"], RefusedAs("remainder")]


# --- lists


def _require_list(value: object) -> object:
    """Refuses what pydantic would take for a tuple and what has no order, such as a set of classes."""
    if not isinstance(value, list | tuple):
        raise build_refusal("tuple_type")
    return value


def _check_classes_differ(classes: tuple[int | str, ...]) -> tuple[int | str, ...]:
    (name, count), *_ = Counter(classes).most_common(1)
    if count > 1:
        raise build_refusal("repeated_class", name=format_yaml_value(name))
    return classes


# YAML has sets, and pydantic would take one for a tuple, in any order.
_LIST: Final = BeforeValidator(_require_list)
_ASCENDING: Final = _require("bounds", lambda ends: ends[0] <= ends[1])
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Side = Annotated[int, Field(strict=True, ge=1, le=MAX_SIDE)]
# The part of a picture's area: a crop of less than a hundredth of each side shows nothing.
_CropShare = Annotated[float, Field(strict=True, ge=0.0001, le=1)]
_WidthByHeight = Annotated[float, Field(strict=True, ge=0.01, le=100)]

Size = Annotated[
    Annotated[tuple[_Side, _Side], _LIST, Field(examples=[[128, 128]])] | Literal["stored"] | None,
    RefusedAs("image_size"),
]
CropScale = Annotated[tuple[_CropShare, _CropShare], _LIST, _ASCENDING, RefusedAs("bounds")]
CropRatio = Annotated[tuple[_WidthByHeight, _WidthByHeight], _LIST, _ASCENDING, RefusedAs("bounds")]
PixelRange = Annotated[
    tuple[_Number, _Number],
    _LIST,
    Field(examples=[[0, 1]]),
    RefusedAs("pixel_range"),
    _require("pixel_range_order", lambda ends: ends[0] < ends[1]),
]
Levels = Annotated[tuple[_Number, ...], Field(min_length=1), _LIST, RefusedAs("levels")]
StdLevels = Annotated[Levels, _require("zero_std", all)]
Classes = Annotated[
    tuple[StrictInt | StrictStr, ...],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    _LIST,
    RefusedAs("classes"),
    AfterValidator(_check_classes_differ),
]
Columns = Annotated[tuple[Annotated[str, Field(strict=True, min_length=1)], ...], Field(min_length=1), _LIST]
From = Annotated[Text | Columns | None, RefusedAs("from")]
FrameOffsets = Annotated[tuple[FrameOffset, ...], Field(min_length=1, max_length=MAX_FRAMES), _LIST]
