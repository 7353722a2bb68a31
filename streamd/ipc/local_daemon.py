"""The request of `streamd.local` to the daemon that it starts, and the answer: one line each way."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from streamd.errors import ConfigError

READY_LINE: Final = b"ready\n"  # the answer when the daemon serves; any other is the reason why it does not


class LocalDaemonRequest(msgspec.Struct):
    """What the daemon is to serve, and a folder of its own.

    `config` is a configuration, as a path or as a mapping, or the path of data from which one is made. `size` applies
    only to data: (height, width) of their images in pixels.
    """

    config: str | dict[str, object]
    folder: str
    size: tuple[int, int] | None = None

    @property
    def endpoint(self) -> str:
        return endpoint_in_folder(self.folder)

    def encode_line(self) -> bytes:
        """Returns the request as one line of JSON. Raises ConfigError for values that no configuration can hold."""
        try:
            return msgspec.json.encode(self, enc_hook=_to_json_value) + b"\n"
        except (TypeError, UnicodeEncodeError) as error:
            raise ConfigError(f"configuration: it cannot be handed to a daemon: {error}") from error


def _to_json_value(value: object) -> object:
    """Converts the values that a notebook's mapping may hold and YAML does not have: paths, and NumPy's scalars."""
    import numpy as np  # noqa: PLC0415 - the daemon's process has no use for it before its configuration is checked

    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, np.number | np.bool_):
        return value.item()
    raise TypeError(
        f"{value!r} is of type {type(value).__name__}; use only Python's own numbers, strings, lists and dicts"
    )


def endpoint_in_folder(folder: str) -> str:
    return f"ipc://{folder}/s"
