"""What a node keeps of the daemon's files: manifests and the modules of transforms, in a folder of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from streamd.core.host import make_temporary_folder
from streamd.core.spec import compute_identity
from streamd.dataset.transform_source import compute_source_digest
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import TransformPlace

_PREFIX: Final = "streamd-node-"
_LOCK: Final = "lock"


class NodeFiles:
    """A folder for as long as the actor lives. Names are digests, so nothing from outside chooses a path."""

    def __init__(self) -> None:
        # An actor that is killed leaves its folder; the lock in it goes with the process, so the next one removes it.
        _remove_abandoned_folders()
        self._folder = make_temporary_folder(_PREFIX)  # of mode 0700
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def find_manifest(self, key: str) -> Path | None:
        """Returns the manifest that was received under this key, if there is one."""
        path = self._manifest_path(key)
        return path if path.is_file() else None

    def _manifest_path(self, key: str) -> Path:
        return self._folder / f"{compute_identity('streamd node manifest 1', key)}.manifest"

    def write_manifest(self, key: str, data: memoryview) -> None:
        """Keeps a manifest, whole or not at all."""
        path = self._manifest_path(key)
        partial = path.with_suffix(".part")
        partial.write_bytes(data)
        partial.replace(path)

    def place_transform(self, place: TransformPlace, sources: Mapping[str, bytes]) -> TransformPlace:
        """Writes the modules of a transform, by path below their folder; returns the place where they lie here.

        Without sources the module is an installed one. Raises ConfigError if its source here is another version.
        """
        folder = self._folder / place.digest
        if sources and not folder.exists():
            partial = Path(tempfile.mkdtemp(dir=self._folder))
            for name, data in sources.items():
                path = (partial / name).resolve()
                if not path.is_relative_to(partial):
                    raise ConfigError(f"a module of transform {place.module!r} lies outside its folder: {name!r}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            partial.rename(folder)
        folder.mkdir(exist_ok=True)
        if compute_source_digest(place.module, folder) != place.digest:
            raise ConfigError(
                f"transform {place.module!r} has another source on this node than on the daemon's host: install the "
                "same version on both"
            )
        return replace(place, folder=str(folder))

    def close(self) -> None:
        """Removes the folder. Processes that have a manifest open keep it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._release_lock()

    def _release_lock(self) -> None:
        os.close(self._lock)


def _remove_abandoned_folders() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or just removed
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:  # its actor lives
            pass
        finally:
            os.close(descriptor)
