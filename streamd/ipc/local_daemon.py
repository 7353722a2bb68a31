"""The request of `streamd.local` to the daemon that it starts, and the answer."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from streamd.errors import ConfigError
from streamd.limits import DRAIN_S

LOCAL_STOP_S: Final = DRAIN_S + 5.0  # from the end of its owner to the end of the daemon, however stuck it is
READY_LINE: Final = b"ready\n"  # the answer when the daemon serves; any other is the reason why it does not
REFUSED_LINE: Final = b"refused\n"  # before the reason where the request is wrong: an exit status may be lost


class LocalDaemonRequest(msgspec.Struct):
    """What the daemon is to serve, and a folder of its own.

    `config` is a configuration, as a path or as a mapping, or the path of data from which one is made. `size` applies
    only to data: (height, width) of their images in pixels. So do `root`, `labels` and `encoding`, which decide how
    they are read.
    """

    config: str | dict[str, object]
    folder: str
    size: tuple[int, int] | None = None
    root: str | None = None
    labels: tuple[str, ...] = ()
    encoding: str | None = None

    @property
    def endpoint(self) -> str:
        return endpoint_in_folder(self.folder)

    def encode(self) -> bytes:
        """Returns the request as JSON. Raises ConfigError for values that no configuration can hold."""
        try:
            return msgspec.json.encode(self, enc_hook=_to_json_value)
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


class LifeLock:
    """A lock on a file in memory, which this process holds until it releases it, ends, or executes another program.

    It is a POSIX lock, which belongs to the process: no thread, forked child or copy of its descriptor has a part in
    it. The end of a pipe would not tell: every forked child holds a pipe open. `content` is what the file holds, for a
    daemon that inherits `descriptor`.
    """

    def __init__(self, content: bytes) -> None:
        import fcntl  # noqa: PLC0415 - other systems, which run no daemon, do not have it

        made = os.memfd_create("streamd.life", os.MFD_CLOEXEC)
        # The numbers up to 2 are the daemon's standard files, also where this process has closed its own.
        self.descriptor = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(made)
        os.write(self.descriptor, content)
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Releases the lock. May be called again."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def wait_for_release(descriptor: int) -> None:
    """Waits until the process that made a LifeLock holds it no more. `descriptor` is an inherited one."""
    import fcntl  # noqa: PLC0415 - as above

    fcntl.lockf(descriptor, fcntl.LOCK_EX)


def endpoint_in_folder(folder: str) -> str:
    return f"ipc://{folder}/s"
