"""The files that a path names, and what the headers of .npy files say. Nothing in them is unpickled."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy

from streamd.core.text import format_count
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.paths.confined import Fence, reading, shown, stat_files
from streamd.errors import ConfigError
from streamd.limits import MAX_ARRAY_FILES

SUFFIX: Final = ".npy"
_ZIP: Final = b"PK\x03\x04"
# What NumPy raises for a header beside ValueError; MemoryError is what Python calls too deep an expression.
_DAMAGE: Final = (SyntaxError, TokenError, TypeError, MemoryError, RecursionError)
_BRACES: Final = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Header:
    """An array in a file, in C order: `offset` bytes before it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def end(self) -> int:
        return self.offset + prod(self.shape) * self.dtype.itemsize


def read_header(path: Path, key: str) -> Header:
    """The header of an .npy file. Raises ConfigError, naming `key`, unless it holds a whole array in C order."""
    with reading(path, key), path.open("rb") as file:
        header, in_columns = _parse(file, path, key)
        size = os.fstat(file.fileno()).st_size
    if header.dtype.hasobject:
        raise ConfigError(f"{key}: {shown(path)} holds Python objects; save numbers or texts: array.astype(...)")
    if in_columns:
        raise ConfigError(
            f"{key}: {shown(path)} is in Fortran order, where a row lies in pieces; save it with "
            "np.save(path, np.ascontiguousarray(array))"
        )
    if size < header.end:
        raise ConfigError(f"{key}: {shown(path)} is cut off: {size} bytes of {header.end}; write it anew")
    return header


def _parse(file: BinaryIO, path: Path, key: str) -> tuple[Header, bool]:
    """The header, and whether the array is in Fortran order."""
    if file.read(len(_ZIP)) == _ZIP:
        raise ConfigError(f"{key}: {shown(path)} is an archive of arrays; save each with np.save in a file of its own")
    file.seek(0)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, in_columns, dtype = read(file)
    except ValueError as error:
        raise ConfigError(f"{key}: {shown(path)} is no .npy file: {error}; write it with np.save") from error
    except _DAMAGE as error:
        raise ConfigError(f"{key}: {shown(path)} has a header that cannot be read; write it with np.save") from error
    if any(side < 0 for side in shape):
        raise ConfigError(f"{key}: {shown(path)} is damaged: its header speaks of an array of {shape}; write it anew")
    return Header(shape, dtype, file.tell()), in_columns


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a path, by bytes of their names, which are relative to `root`; their sizes in bytes and mtimes."""

    root: Path
    names: list[bytes]
    sizes: Int64s
    mtimes_ns: Int64s

    def path(self, number: int) -> Path:
        return self.root / os.fsdecode(self.names[number])


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of one `suffix`; `most` of them make a stream."""

    suffix: str
    most: int | None = None


ARRAYS: Final = Kind(SUFFIX, MAX_ARRAY_FILES)
TARS: Final = Kind(".tar")


def find(path: str, key: str, besides: Collection[Path], progress: Callable[[int], None], kind: Kind = ARRAYS) -> Files:
    """The files that `path` names: one, those of a folder, or those that a pattern fits, but for `besides`.

    Raises ConfigError when there is none, or too many.
    """
    root, names = _named(path, key, kind.suffix)
    others = {os.path.realpath(each) for each in besides}
    names = sorted(name for name in names if os.path.realpath(root / os.fsdecode(name)) not in others)
    if not names:
        raise ConfigError(
            f"{key}: {shown(path)} names no {kind.suffix} file; correct it, or name the folder of the files"
        )
    if kind.most is not None and len(names) > kind.most:
        raise ConfigError(
            f"{key}: {shown(path)} names {format_count(len(names), 'file')}, each of which every worker keeps open; "
            f"{kind.most} are the most: join some with np.concatenate"
        )
    fence = Fence(os.fsencode(root), key)
    sizes, mtimes_ns, missing = stat_files(fence, names, progress)
    if missing:
        raise _missing(fence, names[missing[0]], key)
    return Files(root, names, sizes, mtimes_ns)


def _missing(fence: Fence, name: bytes, key: str) -> ConfigError:
    """Files hold many samples each: a stream does without none of them unasked."""
    if fence.is_link(name):
        return ConfigError(f"{key}: the link {shown(name)} leads nowhere; remove or mend it")
    return ConfigError(f"{key}: {shown(fence.path(name))} was removed while the files were listed; list them again")


def _named(path: str, key: str, suffix: str) -> tuple[Path, list[bytes]]:
    """The root, and the names below it."""
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links of the user's own choice
    if not whole.exists() and glob.has_magic(path):
        root = next(parent for parent in whole.parents if not glob.has_magic(str(parent)))
        with reading(root, key):
            root.stat()
        pattern = str(whole.relative_to(root))
        return root, [os.fsencode(name) for name in glob.glob(pattern, root_dir=root)]  # noqa: PTH207 - names, not paths
    if not whole.exists() and _BRACES.search(path):  # as WebDataset writes a range of shards
        raise ConfigError(f"{key}: {shown(path)}: braces stand for nothing here; write {shown(_BRACES.sub('*', path))}")
    with reading(whole, key):
        if whole.is_dir():
            return whole, [os.fsencode(name) for name in glob.glob(f"*{suffix}", root_dir=whole)]  # noqa: PTH207 - as above
        whole.stat()
    real = whole.resolve()  # a file that is named by itself may be a link to anywhere
    return real.parent, [os.fsencode(real.name)]
