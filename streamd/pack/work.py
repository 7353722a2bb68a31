"""Where a pack lies until it is whole: a hidden folder beside its place, on the same file system, one process's own."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from streamd.errors import ConfigError, PackError
from streamd.manifest import sync_folder
from streamd.printable import printable

_JOURNAL: Final = "journal.json"
_PRODUCT: Final = "pack"


class Work:
    """The folder `.NAME.packing` beside `destination`. A context: others are kept out of it.

    `journal` and `product` are the paths of what lies in it; the product becomes the destination by one rename.
    """

    def __init__(self, destination: Path) -> None:
        """Raises ConfigError when there is something at `destination`, or no folder for it."""
        self.destination = Path(os.path.abspath(destination))  # noqa: PTH100 - links stay as they are
        if not self.destination.name:
            raise ConfigError(f"{_shown(self.destination)} is there already; name a folder or file that is to be made")
        self.folder = self.destination.with_name(f".{self.destination.name}.packing")
        self.journal, self.product = self.folder / _JOURNAL, self.folder / _PRODUCT
        self.scratch = self.folder / "scratch"
        self._descriptor = -1
        self._check()

    def _check(self) -> None:
        parent = self.destination.parent
        if not parent.is_dir():
            raise ConfigError(f"{_shown(parent)}: there is no such folder; make it, or name another place")
        if os.path.lexists(self.destination):
            raise ConfigError(f"{_shown(self.destination)} is there already; remove it, or name another place")

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(exist_ok=True)
            self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise PackError(f"another streamd pack is writing {_shown(self.destination)}; wait for it") from error
        except OSError as error:
            raise PackError(f"cannot write in {_shown(self.destination.parent)}: {error.strerror}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leaves what the next run goes on with, and else nothing."""
        if self.folder.exists() and not self.journal.exists():
            shutil.rmtree(self.folder)
        os.close(self._descriptor)

    def clear(self) -> None:
        """Throws away what is there."""
        for entry in self.folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def publish(self) -> None:
        """Puts the product into its place, in one step, and removes the rest. Raises PackError, OSError."""
        sync_tree(self.product)
        self._check()
        self.product.rename(self.destination)
        sync_folder(self.destination.parent)
        shutil.rmtree(self.folder)


def sync_tree(path: Path) -> None:
    """Returns when a file, or all in a folder and its names, are safe on the disk. Raises OSError."""
    if not path.is_dir():
        _sync_file(path)
        return
    for entry in path.iterdir():
        sync_tree(entry)
    sync_folder(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shown(path: Path) -> str:
    return printable(str(path))
