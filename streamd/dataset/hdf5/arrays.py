"""Finds arrays in an open HDF5 file by the names that people write, and reads those of labels."""

from __future__ import annotations

import fcntl
import importlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.text import format_list
from streamd.dataset.arrays.pixels import can_hold_images
from streamd.dataset.paths.confined import format_path
from streamd.errors import ConfigError, MissingExtraError, suggest_name

_MAX_LISTED: Final = 200  # arrays of a file that are examined for a message
_SHOWN_ARRAYS: Final = 8


@dataclass(frozen=True, slots=True)
class Hdf5Array:
    """An h5py.Dataset that lies entirely in its file and can be read, or a `column` of one that is a table.

    `path` is the file, and `name` the name of the array in it. A column is named /table/column.
    """

    dataset: Any
    path: Path
    name: str
    column: str | None = None

    @property
    def display_name(self) -> str:
        """The name for a message."""
        return f"{self.name} of {format_path(self.path)}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.dataset.shape, *self._cell_dtype.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._cell_dtype.base

    @property
    def _cell_dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.dataset.dtype
        return dtype if self.column is None else dtype[self.column]

    @property
    def sliceable_rows(self) -> Any:
        """The object to slice for its rows, as NumPy arrays."""
        return self.dataset if self.column is None else self.dataset.fields(self.column)

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """The shape of a chunk, (rows, ...); None if the array is not chunked."""
        chunk = self.dataset.chunks
        return None if chunk is None else (*chunk, *self.shape[len(chunk) :])

    @property
    def has_numpy_number_format(self) -> bool:
        """Whether its numbers lie in the file as NumPy has them: with all their bits, and the exponents of IEEE.

        PyTables writes booleans as bit fields of a byte each, which HDF5 takes for another type than any of NumPy's.
        """
        if self.column is not None:
            return False
        h5t, stored = import_h5py().h5t, self.dataset.id.get_type()
        return bool(stored == h5t.STD_B8LE or stored == h5t.py_create(self.dtype, logical=True))

    @property
    def column_names(self) -> list[str]:
        """The names of a table's columns; none for a plain array."""
        return [f"{self.name}/{column}" for column in self.dtype.names or ()]

    @property
    def has_texts(self) -> bool:
        """Whether it holds texts of any length. A column of texts has them as bytes instead."""
        return self.column is None and import_h5py().check_string_dtype(self.dtype) is not None

    def read_values(self, key: str, *, as_bytes: bool = False) -> npt.NDArray[Any]:
        """Returns all values, as numbers or texts; with `as_bytes`, texts are bytes objects as they lie in the file.

        Raises ConfigError, naming `key`, where the array is damaged.
        """
        try:
            values: npt.NDArray[Any] = (
                self.dataset.asstr()[:].astype(np.str_) if self.has_texts and not as_bytes else self.sliceable_rows[:]
            )
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{key}: {self.display_name} is damaged: {error}; write it again") from error
        return values

    def read_first_rows(self, rows: int) -> npt.NDArray[Any]:
        """Reads the first `rows` rows."""
        values: npt.NDArray[Any] = self.sliceable_rows[:rows]
        return values


def find_array(file: Any, name: str, path: Path, key: str, images: int | None = None) -> Hdf5Array:
    """Finds the array `name`, such as /group/array or /table/column, in an h5py.File.

    Raises ConfigError, naming `key`. Its message lists arrays of images first; where a label for so many `images` is
    wanted, it lists arrays with as many rows first.
    """
    full = "/" + name.strip("/")
    try:
        place, column = _split_column_name(file, full)
        link = None if place == "/" else file.get(place, getlink=True)
        leads_elsewhere = isinstance(link, import_h5py().ExternalLink)
        item = None if leads_elsewhere else file.get(place)
    except (RuntimeError, OSError, UnicodeDecodeError) as error:
        # HDF5's message about a link to itself may hold bytes of memory, which h5py then fails to decode.
        reason = "HDF5 gives no readable reason" if isinstance(error, UnicodeDecodeError) else error
        raise ConfigError(
            f"{key}: {full!r} cannot be followed in {format_path(path)}: {reason}; name an array that is not a link, "
            "or fix the link: a link must not point to itself"
        ) from error
    if leads_elsewhere:
        raise _external_data_error(full, path, key)
    if not isinstance(item, import_h5py().Dataset) or item.shape is None:
        what = f"there is no array {full!r} in" if item is None else f"{full!r} is not an array in"
        raise ConfigError(f"{key}: {what} {format_path(path)}; {format_arrays(file, full, images)}")
    if not _has_numpy_dtype(item):
        raise ConfigError(
            f"{key}: {full} of {format_path(path)} holds values of a type that NumPy does not have; write it again as "
            "a type that NumPy has, such as uint8 or float32"
        )
    # The manifest has the size and mtime of one file only. Data in another file could change without notice.
    if item.file.filename != file.filename or item.is_virtual or item.external:
        raise _external_data_error(full, path, key)
    settings, known = item.id.get_create_plist(), import_h5py().h5z.filter_avail
    for number in range(settings.get_nfilters()):
        code, _, _, called = settings.get_filter(number)
        if not known(code):
            raise ConfigError(
                f"{key}: {full} of {format_path(path)} is compressed by "
                f"{called.decode(errors='replace') or f'filter {code}'}, which h5py does not have; pip install "
                "hdf5plugin, or name the folder of its plugin in HDF5_PLUGIN_PATH, or write the array again without "
                "compression: ptrepack --complevel=0 IN OUT"
            )
    return Hdf5Array(item, path, full, column)


def find_sliceable_rows(file: Any, place: str) -> Any:
    """Returns the object to slice for the rows of the array, or table column, that was found at `place`."""
    where, column = _split_column_name(file, place)
    return Hdf5Array(file[where], Path(file.filename), place, column).sliceable_rows


def _split_column_name(file: Any, full: str) -> tuple[str, str | None]:
    """Splits a name into that of a table and of its column, if it names a column."""
    table, _, column = full.rpartition("/")
    item = file.get(table) if table else None
    is_table = isinstance(item, import_h5py().Dataset) and (
        not _has_numpy_dtype(item) or column in (item.dtype.names or ())
    )
    return (table, column) if is_table else (full, None)


def _has_numpy_dtype(dataset: Any) -> bool:
    """Returns whether NumPy has a type for the values: h5py has none for times and for the largest floats."""
    try:
        dataset.dtype  # noqa: B018 - reading the property builds the dtype
    except (TypeError, ValueError):
        return False
    return True


def _external_data_error(full: str, path: Path, key: str) -> ConfigError:
    return ConfigError(
        f"{key}: {full} of {format_path(path)} only points to data in another file, which may change unnoticed; name "
        "the file that holds them, or copy all into one: h5repack IN OUT"
    )


def format_arrays(file: Any, wanted: str = "", images: int | None = None) -> str:
    """Lists the arrays of the file for a message, the most likely images, or labels of so many images, first."""
    arrays: dict[str, Hdf5Array] = {}
    path = Path(file.filename)

    def add_arrays(name: str, item: Any) -> bool | None:
        """Adds an array, or the columns of a table; returns True to end the visit."""
        if isinstance(item, import_h5py().Dataset) and item.shape is not None and _has_numpy_dtype(item):
            for column in item.dtype.names or (None,):
                full = f"/{name}" if column is None else f"/{name}/{column}"
                arrays[full] = Hdf5Array(item, path, full, column)
        return len(arrays) >= _MAX_LISTED or None

    file.visititems(add_arrays)
    if not arrays:
        return "it holds no arrays at all; correct the path"

    def rank_array(name: str) -> tuple[bool, bool]:
        shape, pictures = arrays[name].shape, can_hold_images(arrays[name].shape, arrays[name].dtype)
        return (False, not pictures) if images is None else (shape[:1] != (images,), pictures)

    ordered = sorted(arrays, key=rank_array)
    listed = format_list([f"{name} ({arrays[name].dtype} {arrays[name].shape})" for name in ordered], _SHOWN_ARRAYS)
    return f"it has {listed}{suggest_name(wanted, arrays)}"


# --- Opens an HDF5 file for reading, without locks, which a read-only disk may refuse; its errors give the reason.


_PURPOSE: Final = "a source of kind hdf5"
_PLUGIN_MODULE: Final = "hdf5plugin"  # importing it, where it is installed, registers its decompressors
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
# What h5py raises for damage, by the place where the library notices it; KeyError is a LookupError.
LIBRARY_ERRORS: Final = (OSError, RuntimeError, LookupError, ValueError, TypeError)
_FIRST_OFFSET: Final = 512  # the signature is at 0, 512, 1024, 2048, ..., after a user block, if there is one


class UnfitHdf5Error(Exception):
    """A file that the library cannot read; the message has the reason, and what to do."""


def import_h5py() -> Any:
    """Returns the module h5py. Raises MissingExtraError."""
    try:
        import h5py  # noqa: PLC0415 - an extra, which takes a while to load
    except ModuleNotFoundError as error:
        raise MissingExtraError("h5py", "hdf5", _PURPOSE) from error
    return h5py


def open_hdf5_file(descriptor: int, *, cache_bytes: int | None = None) -> Any:
    """Returns the h5py.File behind a descriptor; the caller closes it. Raises UnfitHdf5Error, MissingExtraError.

    `cache_bytes` limits what HDF5 keeps of the chunks it has read.
    """
    h5py = import_h5py()
    with suppress(ModuleNotFoundError):
        importlib.import_module(_PLUGIN_MODULE)
    place, size = 0, os.fstat(descriptor).st_size
    while place < size and os.pread(descriptor, len(_SIGNATURE), place) != _SIGNATURE:
        place = 2 * place or _FIRST_OFFSET
    if place >= size:
        raise UnfitHdf5Error("it is not an HDF5 file; correct the path")
    # Writers lock their file. Where the lock fails for another reason, nothing is known, and the file passes.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UnfitHdf5Error("another process has it open for writing; wait until it is closed there") from error
    except OSError:
        pass
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    try:
        # h5py opens the file again through /proc, so its position and its closing are independent of the descriptor.
        return h5py.File(f"/proc/self/fd/{descriptor}", "r", locking=False, rdcc_nbytes=cache_bytes)
    except OSError as error:
        message = str(error)
        reason = message.partition("(")[2].rpartition(")")[0] or message
        why = f"it is damaged: {reason}; copy it again, or write it again"
        # The message of the library is translated where the cause is known.
        if "truncated file" in message:
            why = "it is truncated; copy it again, or write it again"
        elif "already open for write" in message:
            why = "the program that wrote it did not close it; wait until it does, or repair it: h5clear --status FILE"
        raise UnfitHdf5Error(why) from error
