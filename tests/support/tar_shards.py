"""Tar files as users pack them, written by the standard library."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def pack(
    path: Path, files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], *, form: int = tarfile.GNU_FORMAT
) -> Path:
    """A tar of files, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def pack_folder(path: Path, folder: Path) -> Path:
    """A tar of all files below a folder, each named as it is there."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    return pack(path, {each.relative_to(folder).as_posix(): each.read_bytes() for each in files})
