"""Saved states of a training run: one folder each, complete or absent. Independent of any framework.

    step-0000123/state.json     {"version", "digest" of the body, "body": {"content", "arrays"}}
    step-0000123/arrays.bin     the arrays, one after the other, in the machine's byte order

A state is written to a temporary folder, made durable and renamed into place, so that a kill at any moment leaves the
state before it. Data that the disk damages later fail their digest, and the state is skipped.

A folder belongs to one training at a time: two trainings in one folder would resume from each other's states, and
delete them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.host import read_regular_file
from streamd.errors import ConfigError

if sys.platform != "win32":
    import fcntl

Array = npt.NDArray[Any]

_VERSION: Final = 1
_STATE: Final = "state.json"
_ARRAYS: Final = "arrays.bin"
_STATE_NAME: Final = re.compile(r"step-(\d{7,})")
_UNFINISHED: Final = ".tmp"  # a state's folder until the state is complete
_WRITE_TEST: Final = ".try-"  # prefix of a folder that tests whether the directory is writable
_REMOVED: Final = ".old"  # a state is renamed to this before its files are deleted, so half of one is never found
_LOCK: Final = ".lock"

IsAtWork = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SavedState:
    """A saved state. `content` is JSON, which refers to `arrays` by number."""

    folder: Path
    content: dict[str, Any]
    arrays: list[Array]


class _DamagedError(Exception):
    """A folder does not contain what was written to it."""


class Checkpoints:
    """The newest `keep` states of a run, in its own folder. Calls `warn` with a line for each damaged state.

    Raises ConfigError when the folder cannot be written to.
    """

    def __init__(self, directory: Path, keep: int, warn: Callable[[str], None]) -> None:
        self.directory = directory
        self._keep = keep
        self._warn = warn
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=_WRITE_TEST, dir=directory):
                pass  # another training's unfinished state is left alone: `claim_folder` decides whose folder it is
        except OSError as error:
            raise ConfigError(
                f"nothing can be saved in {directory} ({error.strerror}): name a folder that you may write to"
            ) from error

    def has_states(self) -> bool:
        """Returns whether a folder has the name of a state; its content is not read."""
        try:
            return bool(self._list_states())
        except OSError:
            return False

    def claim_folder(self, is_at_work: IsAtWork) -> None:
        """Creates the folder again if it was removed, and claims it, since it may be a new one at the same path.

        Raises as the function `claim_folder` does.
        """
        if not self.directory.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._warn(
                f"{self.directory} was removed, together with the states saved there: it is created again for new "
                "states"
            )
        claim_folder(self.directory, is_at_work)

    def save_state(self, step: int, content: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Saves the state after `step` steps and removes old states. Raises OSError; earlier states are then kept."""
        # Order matters: the new state is durable under its final name before any older one is removed.
        written = self.directory / _UNFINISHED
        try:
            shutil.rmtree(written, ignore_errors=True)  # of an earlier process that was killed
            written.mkdir()
            _write_state(written, content, arrays)
            target = self.directory / f"step-{step:07}"
            self._remove_state(target)  # exists only if it was damaged, since this run would have resumed from it
            written.rename(target)
            _sync_folder(self.directory)
        except OSError:
            shutil.rmtree(written, ignore_errors=True)  # frees what was written, as on a full disk
            raise
        # States of later steps were damaged and skipped, or this run would have resumed from them.
        known = sorted(self._list_states(), reverse=True)
        kept = [each for each in known if each[0] <= step][: self._keep]
        for each in known:
            if each not in kept:
                self._remove_state(each[1])

    def load_newest_state(self) -> SavedState | None:
        """Returns the newest complete state, None if there is none. Raises ConfigError when one cannot be read."""
        for _, folder in sorted(self._list_states(), reverse=True):
            try:
                return _read_state(folder)
            except (_DamagedError, FileNotFoundError) as error:
                why = f"{Path(error.filename).name} is missing" if isinstance(error, FileNotFoundError) else error
                self._warn(f"{folder} is damaged and is skipped: {why}")
            except OSError as error:
                raise ConfigError(
                    f"{folder} cannot be read ({error.strerror}): fix that, or move the folder away to continue from "
                    "an earlier state"
                ) from error
        return None

    def _list_states(self) -> list[tuple[int, Path]]:
        matches = [(_STATE_NAME.fullmatch(path.name), path) for path in self.directory.iterdir()]
        return [(int(match[1]), path) for match, path in matches if match]

    def _remove_state(self, folder: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            dropped = self.directory / _REMOVED
            shutil.rmtree(dropped, ignore_errors=True)
            folder.rename(dropped)
            shutil.rmtree(dropped, ignore_errors=True)


def _write_state(folder: Path, content: dict[str, Any], arrays: Sequence[Array]) -> None:
    records = []
    with (folder / _ARRAYS).open("wb") as file:
        for array in arrays:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            # A type that a library registered, such as bfloat16, is known to np.dtype by its name.
            dtype = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
            records.append({"dtype": dtype, "shape": array.shape, "digest": _compute_digest(data)})
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    body = {"content": content, "arrays": records}
    with (folder / _STATE).open("w", encoding="utf-8") as text:
        json.dump({"version": _VERSION, "digest": _compute_digest(json.dumps(body).encode()), "body": body}, text)
        text.flush()
        os.fsync(text.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, on systems where a folder can be opened."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_state(folder: Path) -> SavedState:
    """Reads a state and checks its digests.

    Raises _DamagedError, ConfigError for another version, OSError, of which FileNotFoundError is damage too.
    """
    try:
        state = json.loads(read_regular_file(folder / _STATE))
        version, digest, body = state["version"], state["digest"], state["body"]
        is_genuine = _compute_digest(json.dumps(body).encode()) == digest
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _DamagedError(f"{_STATE} is truncated or not a state") from error
    # A state of another version is whole, so it is no reason to take the one before it.
    if version != _VERSION:
        raise ConfigError(
            f"{folder} is of version {version}, but this streamd reads version {_VERSION}: continue with the streamd "
            "that saved it, or choose another folder to start from the beginning"
        )
    if not is_genuine:
        raise _DamagedError(f"{_STATE} is not what was written")
    memory, arrays, start = read_regular_file(folder / _ARRAYS), [], 0
    for number, record in enumerate(body["arrays"]):
        dtype, shape = np.dtype(record["dtype"]), tuple(record["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        data = memory[start : start + count * dtype.itemsize]
        if _compute_digest(data) != record["digest"]:
            raise _DamagedError(f"array {number} is not what was written")
        arrays.append(np.frombuffer(data, dtype, count).reshape(shape))
        start += len(data)
    return SavedState(folder, body["content"], arrays)


def _compute_digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# By process (a fork inherits none of its locks) and folder: whether the training that claimed it is still at work, and
# the descriptor of the lock file, which keeps other processes out; None where no lock is possible.
_CLAIMS: Final[dict[tuple[int, Path], tuple[IsAtWork, int | None]]] = {}
_CLAIMS_LOCK: Final = Lock()


def claim_folder(folder: Path, is_at_work: IsAtWork) -> None:
    """Claims a folder for a training, within this process while `is_at_work()`, against others while the process lives.

    The same `is_at_work` may claim the folder again, and does so when the folder may have been created anew or the lock
    lost. Raises ConfigError when another training has the folder, OSError when it cannot be written to. Without file
    locks (Windows, some network file systems), other processes are not kept out.
    """
    # POSIX locks belong to a process, so they cannot tell two fits of one process apart: `_CLAIMS` does that. The lock
    # around it serialises threads that claim at the same time.
    with _CLAIMS_LOCK:
        key = os.getpid(), folder.resolve()
        holder, descriptor = _CLAIMS.get(key, (is_at_work, None))
        if holder != is_at_work and holder():
            raise ConfigError(f"another fit in this process is saving to {folder}: give each one a folder of its own")
        _CLAIMS[key] = is_at_work, _lock_folder(folder, descriptor)


def _lock_folder(folder: Path, descriptor: int | None) -> int | None:
    """Locks the folder's lock file and returns its descriptor; None where no lock is possible.

    `descriptor`, from an earlier call, is used again if it still is the folder's lock file. It is locked again, since
    closing any descriptor of the file in this process loses the lock. Raises ConfigError when another process has the
    lock, OSError when the file cannot be opened.
    """
    if sys.platform == "win32":
        return descriptor
    opened = None
    with contextlib.suppress(FileNotFoundError):
        if descriptor is not None and os.path.samestat(os.fstat(descriptor), (folder / _LOCK).stat()):
            opened = descriptor
    if opened is None:
        opened = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    is_locked = True
    try:
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError | PermissionError):  # POSIX leaves open which of them it is
            if opened != descriptor:  # an earlier descriptor is kept for a later claim
                os.close(opened)
            raise ConfigError(
                f"another trainer is saving to {folder}: give each one, and each rank, a folder of its own"
            ) from error
        os.close(opened)
        is_locked = False
    if descriptor is not None and descriptor != opened:  # the lock of a folder that was removed
        os.close(descriptor)
    return opened if is_locked else None
