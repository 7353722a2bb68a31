"""What the host gives a process: folders to keep things in, files by their names, processors and memory.

Each place is looked for in one order, and an error names the variable that decides it. A file that somebody names is
opened only if it is a regular file: the open of a FIFO would wait for ever, and a device never ends.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from streamd.errors import ConfigError

_STATE_SUFFIX: Final = "streamd"
_HOME_STATE: Final = Path(".local/state")
FilePath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
# NONBLOCK: a FIFO that takes the place of a file must not hang us. Windows has none of these but BINARY.
_OPEN_FLAGS: Final = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
_HANDED_DESCRIPTOR: Final = re.compile(r"/dev/stdin|(?:/dev/fd|/proc/self/fd)/([0-9]{1,9})")
_OTHER_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # of a blank in /proc/self/mountinfo
_GROUP_VERSION_2: Final = "cgroup2"
_PIPE_BYTES: Final = 1 << 16  # read at a time
_NO_LIMIT: Final = 1 << 62  # cgroups of version 1 have a number near it where they have no limit


# --- folders


def find_state_folder() -> Path:
    """Returns where state is kept: $STATE_DIRECTORY, else $XDG_STATE_HOME/streamd, else ~/.local/state/streamd.

    Raises ConfigError for a user without a home.
    """
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given) / _STATE_SUFFIX
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises without a home
    if home == "~":
        raise ConfigError(
            f"there is no place to keep state in: user {os.geteuid()} has no home folder, and $HOME is not set; set "
            "STATE_DIRECTORY to a folder that you can write to"
        )
    return Path(home) / _HOME_STATE / _STATE_SUFFIX


def list_runtime_folders() -> dict[str, Path]:
    """Returns the folders for sockets that the environment names, by the names of their variables, best one first."""
    service, user = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0], os.environ.get("XDG_RUNTIME_DIR", "")
    return {name: Path(place) for name, place in (("RUNTIME_DIRECTORY", service), ("XDG_RUNTIME_DIR", user)) if place}


def make_temporary_folder(prefix: str, parent: str | None = None) -> Path:
    """Makes a folder of mode 0700 in `parent`, else in $TMPDIR, /tmp, or where Python looks. Raises ConfigError."""
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        where = f" in {parent}" if parent else ""
        raise ConfigError(
            f"no temporary folder can be made{where}: {error.strerror}; set TMPDIR to a folder that you can write to"
        ) from error


@contextmanager
def hold_temporary_folder(prefix: str) -> Iterator[Path]:
    """Makes such a folder, and removes it at the end with what it holds."""
    folder = make_temporary_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- files


def open_regular_descriptor(path: FilePath, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Opens a regular file that somebody named. Raises OSError, whose text says what else it is."""
    # Asked before the open: opening a device may do something, and the error of a socket names no reason.
    check_regular_file(path)
    descriptor = os.open(path, flags | _OPEN_FLAGS, mode)
    try:
        _check_kind(os.fstat(descriptor), path)  # it may have been replaced since
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular_file(path: FilePath) -> BinaryIO:
    """Opens a regular file that somebody named, for reading bytes. Raises OSError, whose text says what else it is."""
    return os.fdopen(open_regular_descriptor(path), "rb")


def read_regular_file(path: FilePath, most_bytes: int | None = None) -> bytes:
    """Reads a whole file that somebody named, of at most `most_bytes`; None: what the memory here allows.

    A pipe is read if it was handed over with its descriptor, as by a shell's <(command): this waits for nobody else.
    Raises OSError, whose text says what else the file is, or that it is too large.
    """
    most = measure_memory().limit_bytes if most_bytes is None else most_bytes
    handed = _HANDED_DESCRIPTOR.fullmatch(os.fsdecode(path))
    with open(int(handed[1] or 0), "rb", closefd=False) if handed else open_regular_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size <= most:
            if stat.S_ISREG(found.st_mode):
                return file.read()
            data = bytearray()
            while len(data) <= most and (more := file.read(_PIPE_BYTES)):
                data += more
            if len(data) <= most:
                return bytes(data)
    raise OSError(errno.EFBIG, f"it has more than {most:,} bytes, and so large a file is not read", os.fsdecode(path))


def check_regular_file(path: FilePath) -> None:
    """Raises OSError for something at `path` that is no regular file: a folder, a FIFO, a socket, a device."""
    with suppress(FileNotFoundError):  # the open reports it, or makes the file
        _check_kind(os.stat(path), path)  # noqa: PTH116 - names may be bytes


def _check_kind(found: os.stat_result, path: FilePath) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    kind = next((words for is_kind, words in _OTHER_KINDS if is_kind(found.st_mode)), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, and not a regular file", os.fsdecode(path))


# --- processors and memory


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The memory that processes here can take together, and what sets this limit, in words."""

    limit_bytes: int
    source: str


def count_processors(root: Path = Path("/")) -> int:
    """Returns how many processors this process may keep busy: those of its affinity, and of its cgroups' quotas.

    A quota of 1.5 processors counts as 1, one below 1 as 1. Processes that use more than the quota are all stopped for
    the rest of each period, the daemon's event loop too; what is left over goes to it.
    """
    processors = len(os.sched_getaffinity(0))
    for folder, is_2 in _iterate_group_folders(root, "cpu"):
        if is_2:
            values = _read_text(folder / "cpu.max").split()
        else:
            values = [_read_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        # A quota and its period. No limit is the word `max` in version 2, and -1 in version 1.
        if len(values) == 2 and all(each.isdecimal() for each in values) and int(values[0]) and int(values[1]):  # noqa: PLR2004 - two
            processors = min(processors, int(values[0]) // int(values[1]))
    return max(1, processors)


def measure_memory(root: Path = Path("/")) -> MemoryLimit:
    """Returns the memory of this machine, or what the cgroups of this process allow, if that is less.

    `root` is where /proc and the cgroups' mounts are looked for.
    """
    total = re.search(r"MemTotal:\s+(\d+) kB", _read_text(root / "proc/meminfo"))
    least = MemoryLimit(int(total[1]) * 1024 if total else _NO_LIMIT, "this machine")
    for folder, is_2 in _iterate_group_folders(root, "memory"):
        name = "memory.max" if is_2 else "memory.limit_in_bytes"
        limit = _read_text(folder / name).strip()
        if limit.isdecimal() and int(limit) < least.limit_bytes:
            least = MemoryLimit(int(limit), f"the cgroup of this process ({folder / name})")
    return least


def _iterate_group_folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yields the folders of this process's cgroups with a controller, from its own up, and whether of version 2."""
    groups: dict[str, str] = {}  # by controller; version 2 has one hierarchy, without a name
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, _, names_and_group = line.partition(":")
        names, colon, group = names_and_group.partition(":")
        if colon:
            groups.update(dict.fromkeys(names.split(","), group))
    for line in _read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3:  # noqa: PLR2004 - as proc(5) lists them
            continue
        is_2 = kinds[0] == _GROUP_VERSION_2
        name = "" if is_2 else controller
        if name not in groups or not (is_2 or (kinds[0] == "cgroup" and controller in kinds[2].split(","))):
            continue
        shown, place = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), each) for each in fields[3:5])
        # In a container, the mount shows only a part of the hierarchy: the group's path is below it, or not visible.
        below = Path(os.path.relpath(groups[name], shown))
        top = root / place.lstrip("/")
        parts = [] if ".." in below.parts else below.parts
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth]), is_2


def _read_text(path: Path) -> str:
    """Returns the text of a kernel's file, "" if there is none that can be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
