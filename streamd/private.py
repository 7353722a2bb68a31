"""`streamd.local`: a daemon of one's own, for a notebook, a script or a test. It ends with the process that asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from streamd import endpoint
from streamd.client import Client
from streamd.errors import ConfigError, StreamdError
from streamd.limits import CONNECT_TIMEOUT_S, DRAIN_S

_SHORT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a folder there that nobody else may enter
READY: Final = b"ready\n"  # what the daemon says when it serves; anything else is why it does not
_END_S: Final = DRAIN_S + 5.0

Given = str | os.PathLike[str] | Mapping[str, object]


class Errand(msgspec.Struct):
    """What the daemon's process is told: the configuration, as a path or as it is, and a folder of its own."""

    config: str | dict[str, object]
    folder: str

    @property
    def endpoint(self) -> str:
        return _endpoint(self.folder)

    def line(self) -> bytes:
        """It as the daemon reads it. Raises ConfigError for values that no configuration can hold."""
        try:
            return msgspec.json.encode(self, enc_hook=_plain) + b"\n"
        except (TypeError, UnicodeEncodeError) as error:
            raise ConfigError(f"configuration: it cannot be handed to a daemon: {error}") from error


def _plain(value: object) -> object:
    """What a notebook's mapping may hold beside what YAML has: paths, and numbers that NumPy worked out."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, np.number | np.bool_):
        return value.item()
    raise TypeError(f"{value!r} is of type {type(value).__name__}; write numbers, texts, lists and mappings of Python")


def local(config: Given, *, timeout: float = CONNECT_TIMEOUT_S, patience: float | None = None) -> PrivateClient:
    """A client of a private daemon that serves `config`: the path of a config.yaml, or a mapping like one.

    The samples are listed each time, so it sees the files as they are; `listen` and `monitor` of the configuration do
    not count. Relative paths are relative to the file, those of a mapping to the current folder. Closing the client
    ends the daemon; so does the end of this process, however it comes. Warnings of the daemon go to stderr.

    Raises ConfigError for whatever is wrong with the configuration or the data.
    """
    given = dict(config) if isinstance(config, Mapping) else os.path.abspath(os.fsdecode(config))  # noqa: PTH100 - links stay as they are
    errand = Errand(given, _folder())
    try:
        process = _start(errand)
    except BaseException:
        shutil.rmtree(errand.folder, ignore_errors=True)  # the daemon may have removed it already
        raise
    return PrivateClient(process, errand, timeout, patience)


def _folder() -> str:
    """A new folder for socket and manifests: where programs make theirs, unless the socket's path is too long there."""
    folder = tempfile.mkdtemp(prefix="streamd-")
    if endpoint.fits(_endpoint(folder)):
        return folder
    Path(folder).rmdir()
    return tempfile.mkdtemp(prefix="streamd-", dir=_SHORT)


def _endpoint(folder: str) -> str:
    return f"ipc://{folder}/s"


def _start(errand: Errand) -> subprocess.Popen[bytes]:
    """Starts the daemon and waits until it serves, however long it takes to list the samples."""
    line = errand.line()
    command = [sys.executable, "-P", "-m", "streamd.attached"]
    # A session of its own: Ctrl-C is for the script, and reaches the daemon as the end of its input.
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}  # as `streamd serve` has it
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    try:
        process.stdin.write(line)
        process.stdin.flush()
        said = process.stdout.readline()
        if said == READY:
            return process
        said += process.stdout.read()
    except BrokenPipeError:
        said = process.stdout.read()
    except BaseException:
        _end(process, errand.folder)
        raise
    status = process.wait()
    _end(process, errand.folder)
    kind = ConfigError if status == ConfigError.exit_status else StreamdError
    raise kind(said.decode(errors="replace").strip() or f"the private daemon ended with status {status}")


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    """Ends the daemon by the end of its input, and by force if it does not hear of it."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)  # left only by a daemon that was killed


class PrivateClient(Client):
    """A client whose daemon is its own. Made by `streamd.local`."""

    def __init__(
        self, process: subprocess.Popen[bytes], errand: Errand, timeout_s: float, patience_s: float | None
    ) -> None:
        super().__init__(errand.endpoint, timeout_s, patience_s)
        self.pid = process.pid
        self._daemon = weakref.finalize(self, _end_here, os.getpid(), process, errand.folder)

    def close(self) -> None:
        """Closes every stream opened here, and ends the daemon."""
        super().close()
        self._daemon()


def _end_here(owner: int, process: subprocess.Popen[bytes], folder: str) -> None:
    """Only the process that started the daemon ends it: a forked child has a copy of the client, and no say."""
    if os.getpid() == owner:
        _end(process, folder)
