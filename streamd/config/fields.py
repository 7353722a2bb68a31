"""Models and the types of their fields: the readers, bound to the library that validates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from streamd.config.readers import (
    is_host_port,
    number_between,
    read_host_port,
    read_levels,
    read_memory,
    read_scalar,
    read_text,
    whole,
)
from streamd.config.units import parse_bytes, parse_seconds, show
from streamd.limits import MAX_BATCH_ROWS

_MAX_SEED: Final = (1 << 63) - 1
_MAX_CHUNK: Final = 1 << 32  # samples or chunks: more than any store holds


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
    """What all models share: they do not change, and a key they do not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def absolute(path: str, info: ValidationInfo) -> str:
    """`path` as seen from the configuration's folder, which `load` passes as the context."""
    base: Path = (info.context or {}).get("base", Path())
    return os.path.join(base.absolute(), os.path.expanduser(path))  # noqa: PTH111,PTH118 - pathlib would rewrite globs such as a//*.tar


def _data_path(value: object, info: ValidationInfo) -> Path:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value  # a notebook's mapping may hold a Path
    return Path(absolute(str(read_text(text)), info))


def _endpoint(value: object, info: ValidationInfo) -> str:
    text = value if isinstance(value, str) else ""
    if text.startswith("tcp://") and is_host_port(text.removeprefix("tcp://")):
        return text
    path = text.removeprefix("ipc://")
    if path == text or not path or "\0" in path:
        raise ValueError(f"found {show(value)}; an endpoint is ipc:///path/to/socket or tcp://address:port")
    if path[0] in "@*":
        raise ValueError(f"found {show(value)}; only a socket in a folder has permissions, use ipc:///path/to/socket")
    return f"ipc://{absolute(path, info)}"


Text = Annotated[str, BeforeValidator(read_text)]
Scalar = Annotated[str | int | float | bool, BeforeValidator(read_scalar)]
DataPath = Annotated[Path, BeforeValidator(_data_path)]
DataGlob = Annotated[Text, AfterValidator(absolute)]
Endpoint = Annotated[str, BeforeValidator(_endpoint)]
HostPort = Annotated[str, BeforeValidator(read_host_port)]
Memory = Annotated[int, BeforeValidator(read_memory)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Fraction = Annotated[float, BeforeValidator(number_between(0, 1))]
Seed = Annotated[int, BeforeValidator(whole(0, _MAX_SEED))]
BatchSize = Annotated[int, BeforeValidator(whole(1, MAX_BATCH_ROWS))]
ChunkCount = Annotated[int, BeforeValidator(whole(1, _MAX_CHUNK))]
Levels = Annotated[tuple[float, ...], BeforeValidator(read_levels)]
