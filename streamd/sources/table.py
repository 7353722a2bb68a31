"""`kind: table`: one row a sample, in the table's order; a column of file names, and columns of labels."""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.errors import ConfigError
from streamd.sources import cells, columns
from streamd.sources import labels as labelling
from streamd.sources.files import IMAGE_SUFFIXES, Fence, reading, shown, some, stat_files
from streamd.sources.wanted import Int64s, LabelValues, Scanned, WantedLabel, WantedTable
from streamd.spec import LabelSpec

_log: Final = logging.getLogger("streamd.sources")
_TRIED_FILES: Final = 8  # looked for in other folders when all are missing
_TRIED_FOLDERS: Final = 100  # looked in
# Names that are not yet in the form `folder/file`: absolute, with empty, `.` or `..` parts, or with a NUL.
_UNTIDY: Final = r"^/|//|/$|(^|/)\.{1,2}(/|$)|\x00"


def scan(
    stream: str, source: WantedTable, labels: Mapping[str, WantedLabel], progress: Callable[[int], None]
) -> Scanned:
    """Lists the rows of a table."""
    key = f"streams.{stream}.source"
    table = columns.open_table(source.path, f"{key}.path")
    image = table.position(source.image, f"{key}.image")
    wanted = {name: _column(table, name, label, f"streams.{stream}.labels.{name}") for name, label in labels.items()}
    read = columns.read_columns(table, [image, *wanted.values()])
    root = Path(os.path.abspath(source.root or source.path.parent))  # noqa: PTH100 - resolve() would follow links
    files = _files(table, cells.as_texts(table, source.image, read[image], f"{key}.image"), root, f"{key}.root")
    values: dict[str, LabelValues] = {}
    specs: dict[str, LabelSpec] = {}
    for name, position in wanted.items():
        where = f"streams.{stream}.labels.{name}"
        values[name], specs[name] = _label(table, name, labels[name], read[position], where)
    sizes, mtimes_ns = _stat(table, root, files, f"{key}.root", progress)
    fixed = frozenset(name for name, label in labels.items() if label.type == "category" and label.classes is not None)
    return Scanned(root, files, sizes, mtimes_ns, values, specs, fixed)


def _column(table: columns.Table, name: str, label: WantedLabel, key: str) -> int:
    column = name if label.source is None else label.source
    if not isinstance(column, str):
        raise ConfigError(f"{key}.from: {column!r} is not served by this version for a table; name one column")
    return table.position(column, f"{key}.from" if label.source else key)


def _label(
    table: columns.Table, name: str, label: WantedLabel, column: columns.Cells, key: str
) -> tuple[LabelValues, LabelSpec]:
    source = str(label.source or name)
    if label.type == "category":
        texts, codes = cells.as_levels(cells.as_texts(table, source, column, key))
        fixed = None if label.classes is None else labelling.configured(label.classes, key)
        return labelling.category(name, texts, codes, fixed, table.place, key)
    kind = labelling.number_type(label.type, key)
    return labelling.number(name, kind, cells.as_numbers(table, source, column, kind, key), table.place, key)


def _files(table: columns.Table, texts: cells.Texts, root: Path, key: str) -> list[bytes]:
    """The names as relative paths below `root`: tidy, and none of them leading out. Pure but for resolving `root`."""
    windows: Any = pc.match_substring(texts, "\\")
    if windows.true_count:
        _log.warning("%s: %d names have backslashes, read as slashes", table.path.name, windows.true_count)
        texts = pc.replace_substring(texts, "\\", "/")
    files: list[bytes] = texts.cast(pa.large_binary()).to_pylist()
    roots = [os.fsencode(root), os.path.realpath(os.fsencode(root))]
    untidy: Any = pc.match_substring_regex(texts, _UNTIDY)
    for row in np.flatnonzero(untidy.to_numpy(zero_copy_only=False)).tolist():
        tidy = _below(files[row], roots)
        if tidy is None:
            raise ConfigError(
                f"{key}: {table.place(row)} names {shown(files[row])}, which is no file in {shown(root)}; "
                "correct it, or set root to a folder that holds all the files"
            )
        files[row] = tidy
    return files


def _below(name: bytes, roots: Sequence[bytes]) -> bytes | None:
    """`name` relative to the root, by its spelling alone; None when it leads out or can name no file."""
    for root in roots if b"\0" not in name else ():
        path = posixpath.normpath(posixpath.join(root, name))
        if path.startswith(root.rstrip(b"/") + b"/"):
            return path[len(root.rstrip(b"/")) + 1 :]
    return None


def _stat(
    table: columns.Table, root: Path, files: list[bytes], key: str, progress: Callable[[int], None]
) -> tuple[Int64s, Int64s]:
    with reading(root, key):
        os.stat(root)  # noqa: PTH116 - for its error alone
    sizes, mtimes_ns, missing = stat_files(Fence(os.fsencode(root), key), files, progress)
    if missing:
        names = some(files[row] for row in missing)
        if len(missing) < len(files):
            raise ConfigError(
                f"{key}: {len(missing)} of {len(files)} files of {table.path.name} are not in {shown(root)}: {names}, "
                f"the first at {table.place(missing[0])}; add them or leave their rows out"
            )
        raise ConfigError(
            f"{key}: none of the {len(files)} files of {table.path.name} is in {shown(root)}: {names}; "
            f"{_advice(table.path.parent, root, files[:_TRIED_FILES])}"
        )
    return sizes, mtimes_ns


def _advice(folder: Path, root: Path, files: Sequence[bytes]) -> str:
    """Where the files may be: the table's folder, its parent, a sub-folder of either or of the root."""
    near = (folder, folder.parent, *_subfolders(root), *_subfolders(folder), *_subfolders(folder.parent))
    for suffix in (b"", *IMAGE_SUFFIXES):
        found = next((place for place in near if any(_is_file(place, name + suffix) for name in files)), None)
        if found is not None and suffix:
            return (
                f"with {suffix.decode()} behind the names some are in {shown(found)}: write whole names into the table"
            )
        if found is not None:
            return f"some are in {shown(found)}: set root to it"
    return "set root to the folder that the names begin at"


def _is_file(folder: Path, name: bytes) -> bool:
    return (folder / os.fsdecode(name)).is_file()


def _subfolders(folder: Path) -> list[Path]:
    try:
        inner = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir())
    except OSError:  # it is only advice that is looked for
        return []
    return inner[:_TRIED_FOLDERS]
