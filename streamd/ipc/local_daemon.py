"""What `streamd.local` asks of the daemon that it starts, and what that answers: one line each way."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from streamd.errors import ConfigError

READY_LINE: Final = b"ready\n"  # what the daemon says when it serves; anything else is why it does not


class LocalDaemonRequest(msgspec.Struct):
    """What the daemon's process is to serve, and a folder of its own.

    `config` is a configuration, as a path or as it is, or the path of data that one is made from; `size` is for data
    alone: (height, width) of their images.
    """

    config: str | dict[str, object]
    folder: str
    size: tuple[int, int] | None = None

    @property
    def endpoint(self) -> str:
        return endpoint_in_folder(self.folder)

    def encode_line(self) -> bytes:
        """It as the daemon reads it. Raises ConfigError for values that no configuration can hold."""
        try:
            return msgspec.json.encode(self, enc_hook=_to_json_value) + b"\n"
        except (TypeError, UnicodeEncodeError) as error:
            raise ConfigError(f"configuration: it cannot be handed to a daemon: {error}") from error


def _to_json_value(value: object) -> object:
    """What a notebook's mapping may hold beside what YAML has: paths, and numbers that NumPy worked out."""
    import numpy as np  # noqa: PLC0415 - the daemon's process has no use for it before its configuration is checked

    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, np.number | np.bool_):
        return value.item()
    raise TypeError(f"{value!r} is of type {type(value).__name__}; write numbers, texts, lists and mappings of Python")


def endpoint_in_folder(folder: str) -> str:
    return f"ipc://{folder}/s"
