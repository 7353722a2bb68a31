"""`kind: lmdb`: images that ml-pyxis wrote into an LMDB file, one array of each sample, with other arrays as labels.

Samples are in the order of their numbers. Each is read once, and the offset of its image in the file is kept, so that
workers need neither LMDB nor msgpack.

LMDB maps its file and follows page numbers without checking them, so a damaged file may kill this process. It is the
one that lists the samples, and ends anyway. Nothing is locked or written; the number of the last commit shows whether
another process wrote meanwhile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
import numpy.typing as npt

from streamd.core.text import format_count
from streamd.dataset.arrays.npy_scan import ArrayRequest, Images, find_arrays_in_file, list_npy_images
from streamd.dataset.arrays.pixels import INSPECTED_IMAGES, format_range_warning, inspect_image_array
from streamd.dataset.labels import columns
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.lmdb import LmdbSource
from streamd.dataset.lmdb.pyxis_layout import (
    COMMIT_COLUMN,
    COUNT_KEY,
    DATA_DB,
    HEAD_BYTES,
    META_DB,
    OFFSETS_COLUMN,
    ArrayField,
    LmdbHead,
    UnfitValueError,
    ValueTemplate,
    build_sample_key,
    find_memory_address,
    is_file_whole,
    parse_lmdb_head,
)
from streamd.dataset.manifest.columns import is_packed_name_key
from streamd.dataset.manifest.types import (
    ArrayFiles,
    ImageArrays,
    Int64s,
    ScannedSamples,
    StorageFormat,
    build_label_key,
    build_row_name,
)
from streamd.dataset.paths.confined import PROGRESS_FILES, ConfinedRoot, format_path, stat_files, translate_read_errors
from streamd.dataset.sources import ArrayForm, LabelSource
from streamd.errors import ConfigError, suggest_name

_log: Final = logging.getLogger("streamd.sources")
_DATA_FILE: Final = "data.mdb"
_LAYOUT: Final = (
    "ml-pyxis keeps samples in the databases data_db and meta_db, under the keys 0000000000, 0000000001 and so on: "
    "write the file with pyxis.Writer, or with streamd pack --format lmdb"
)
_KEYS_SHOWN: Final = 3
_KEY_CHARS: Final = 40  # of a key in a message
_TEXT_KINDS: Final = "SU"  # of dtypes
_MAPS: Final = Path("/proc/self/maps")


def scan_lmdb(
    stream: str,
    source: LmdbSource,
    labels: Mapping[str, LabelSource],
    progress: Callable[[int], None],
    *,
    images: Images | None = None,
    raw: ArrayForm | None = None,
) -> ScannedSamples:
    """Lists the samples of an LMDB file.

    `images` are those of a sample; None means the source's own, which hold what `raw` says. Raises ConfigError.
    """
    key = f"streams.{stream}.source.path"
    with translate_read_errors(source.path, key):
        data = source.path / _DATA_FILE if source.path.is_dir() else source.path
        if source.path.is_dir() and not data.exists():
            raise ConfigError(
                f"{key}: the folder {format_path(source.path)} holds no {_DATA_FILE}, as LMDB's do; correct the path"
            )
        path = data.resolve(strict=True)
    files = [os.fsencode(path.name)]
    sizes, mtimes_ns, _ = stat_files(ConfinedRoot(os.fsencode(path.parent), key), files, progress)
    asked = {name: label.list_columns(name) for name, label in labels.items() if label.file is None}
    keys = {array: f"{build_label_key(stream, name)}.from" for name, several in asked.items() for array in several}
    with open_pyxis_file(path, key) as file:
        own, inside, npy_images = find_arrays_in_file(stream, source.images, images, raw)
        listing = _LmdbListing(file, source, [own, *inside.values()], keys, f"streams.{stream}.source.names")
        listing.read_samples(progress)

    # The file is closed from here on. The collectors have copies of the labels' values.
    found: dict[str, list[Column]] = {}
    for name, several in asked.items():
        for array in several:
            values, label_key = listing.collectors[array].join_values(), build_label_key(stream, name)
            column = columns.build_array_column(values, path, f"{path.name}:{array}", label_key, file.count)
            found.setdefault(name, []).append(column)
    # All images lie in the same file.
    commit = np.array([file.commit])
    offsets = ({OFFSETS_COLUMN: listing.offsets[image.name], COMMIT_COLUMN: commit} for image in listing.images)
    first, *more = (
        ImageArrays(arrays, files, sizes, mtimes_ns, extra=extra)
        for arrays, extra in zip(listing.arrays, offsets, strict=True)
    )
    beside = list_npy_images(stream, npy_images, file.count, source.range, path.parent, progress)
    return ScannedSamples(
        path.parent,
        files,
        sizes,
        mtimes_ns,
        *convert_labels(labels, found | columns.read_label_files(stream, labels, file.count)),
        arrays=first.arrays,
        extra=first.extra,
        display_names=listing.join_display_names(),
        image_arrays=dict(zip(inside, more, strict=True)) | beside,
    )


@dataclass(slots=True)
class _ArrayCollector:
    """Collects the values of one array, sample by sample."""

    fields: list[ArrayField] = field(default_factory=list)  # one a run: the place of the array in its last value
    runs: list[bytearray] = field(default_factory=list)  # each has the values of one dtype, one after the other

    def set_array_field(self, found: ArrayField) -> None:
        """Sets the place of the array in the values that follow. A new dtype begins a new run."""
        if not self.fields or found.dtype != self.fields[-1].dtype:
            self.runs.append(bytearray())
            self.fields.append(found)
        self.fields[-1] = found

    def add_value(self, value: memoryview) -> None:
        place = self.fields[-1]
        self.runs[-1] += value[place.start : place.stop]

    def join_values(self) -> npt.NDArray[Any]:
        """Returns all values, (n, ...), in a dtype that holds those of all runs."""
        runs = zip(self.runs, self.fields, strict=True)
        return np.concatenate([np.frombuffer(run, each.dtype).reshape(-1, *each.shape) for run, each in runs])


class _LmdbListing:
    """Lists a file in one pass. `keys` maps the name of each label's array to the configuration key that needs it.

    `arrays` describes the `images`, in their order, and `offsets` has where each array lies in the file. `collectors`
    have the values of the other arrays, once all samples were read.
    """

    def __init__(
        self,
        file: PyxisFile,
        source: LmdbSource,
        images: Sequence[ArrayRequest],
        keys: Mapping[str, str],
        names_key: str,
    ) -> None:
        self._file = file
        self.images = images
        self._range = source.range
        self._keys = dict(keys)
        self._name_array = source.names
        self._names_key = names_key
        self._first: dict[str, ArrayField] = {}
        self.collectors = {name: _ArrayCollector() for name in keys}
        self.offsets: dict[str, Int64s] = {image.name: np.zeros(file.count, np.int64) for image in images}
        self.arrays: list[ArrayFiles] = []

    def read_samples(self, progress: Callable[[int], None]) -> None:
        """Finds the offsets of the images, and collects the labels. Raises ConfigError."""
        known: dict[int, ValueTemplate] = {}  # by the length of a value, which depends on the texts in it
        template, origin = None, 0
        for number, value in enumerate(self._file.read_sample_values()):
            found = known.get(len(value))
            # Nearly all values have a known layout, which a comparison of a few bytes shows. Only the others are
            # decoded.
            if found is None or not found.matches_value(value):
                origin = origin or read_mapping_base_address(value, self._file)
                found = known[len(value)] = self._inspect_new_layout(number, value)
            if found is not template:
                template = found
                for name, column in self.collectors.items():
                    column.set_array_field(template.fields[name])
            start = find_memory_address(value) - origin
            for name, offsets in self.offsets.items():
                offsets[number] = start + template.fields[name].start
            for column in self.collectors.values():
                column.add_value(value)
            if number % PROGRESS_FILES == 0:
                progress(number)
        progress(self._file.count)
        template = next(iter(known.values()))
        for image in self.images:
            if self._range is None or image.form is not None:
                continue
            if warning := format_range_warning(self._read_images_to_inspect(template, image.name), self._range):
                _log.warning("%s: %r of %s: %s", image.key, image.name, format_path(self._file.path), warning)

    def _inspect_new_layout(self, number: int, value: memoryview) -> ValueTemplate:
        """Decodes a sample whose layout is new, and checks it against the first one. Raises ConfigError."""
        try:
            template = ValueTemplate.from_value(value)
        except UnfitValueError as error:
            raise ConfigError(
                f"{self._file.key}: {self._format_sample(number)} is not as ml-pyxis writes it: {error}; write the "
                "file again"
            ) from error
        if not self.arrays:
            # The first sample decides which array holds the names. That array is added to `_keys` now, so that the loop
            # below checks it too.
            fields = template.fields
            packed = (name for name, each in fields.items() if is_packed_name_key(name) and each.dtype.kind == "S")
            self._name_array = self._name_array or next(packed, None)
            if self._name_array is not None:
                found = fields.get(self._name_array)
                if found is not None and (found.dtype.kind not in _TEXT_KINDS or prod(found.shape) != 1):
                    raise ConfigError(
                        f"{self._names_key}: {self._name_array!r} is {found} in {self._format_sample(0)}, but a name "
                        "must be a single text; name another array"
                    )
                self._keys.setdefault(self._name_array, self._names_key)
                self.collectors.setdefault(self._name_array, _ArrayCollector())
        for name, key in (*self._keys.items(), *((image.name, image.key) for image in self.images)):
            self._check_sample_array(number, name, key, template.fields)
        if not self.arrays:
            # The first sample also decides what the images are, and whether the arrays of labels can be labels.
            count, file = self._file.count, format_path(self._file.path)
            for image in self.images:
                each = template.fields[image.name]
                asked = StorageFormat("lmdb", image.name, range=self._range if image.form is None else None)
                first = partial(self._read_images_to_inspect, template, image.name)
                what = f"{image.key}: {image.name!r} of {file}"
                shape, stored = inspect_image_array(what, (count, *each.shape), each.dtype, asked, first, image.form)
                self.arrays.append(ArrayFiles(shape, (0, count), (0,), stored))
            for name, key in self._keys.items():
                each = template.fields[name]
                columns.check_label_array((count, *each.shape), each.dtype, file, key, count)
        return template

    def join_display_names(self) -> list[bytes] | None:
        """Returns the name of each sample; None where the file has no names."""
        if self._name_array is None:
            return None
        texts = self.collectors[self._name_array].join_values().reshape(-1)
        encoded: list[bytes] = (np.char.encode(texts, "utf-8") if texts.dtype.kind == "U" else texts).tolist()
        return encoded

    def _check_sample_array(self, number: int, name: str, key: str, fields: Mapping[str, ArrayField]) -> None:
        """Raises ConfigError unless the sample has the array, and it is like that of the first sample."""
        if name not in fields:
            there = ", ".join(f"{each!r} ({field})" for each, field in fields.items()) or "none"
            raise ConfigError(
                f"{key}: {self._format_sample(number)} has no array {name!r}; its arrays are: "
                f"{there}; write the name of one of them{suggest_name(name, fields)}"
            )
        found, first = fields[name], self._first.setdefault(name, fields[name])
        if not found.stop:
            raise ConfigError(
                f"{key}: {name!r} is {found} in {self._format_sample(number)}, which is empty; write it again"
            )
        kinds = (found.dtype, first.dtype) if name in self.offsets else (found.dtype.kind, first.dtype.kind)
        if found.shape != first.shape or kinds[0] != kinds[1]:
            raise ConfigError(
                f"{key}: {name!r} is {found} in {self._format_sample(number)}, and {first} in "
                f"{self._format_sample(0)}; all samples of a stream must have arrays of the same shape and type: keep "
                "those that differ in a file of their own"
            )

    def _format_sample(self, number: int) -> str:
        return format_path(build_row_name(os.fsencode(self._file.path), number))

    def _read_images_to_inspect(self, template: ValueTemplate, name: str) -> npt.NDArray[Any]:
        """Reads the first images as they are stored."""
        column = _ArrayCollector()
        column.set_array_field(template.fields[name])
        for value in filter(template.matches_value, islice(self._file.read_sample_values(), INSPECTED_IMAGES)):
            column.add_value(value)
        return column.join_values()


@dataclass(frozen=True, slots=True)
class PyxisFile:
    """An open file of `count` samples, at least one; `commit` is the number of its last commit.

    `key` is the configuration key that names it. Values are views of mapped memory: none may outlive
    the context of `open_pyxis_file`.
    """

    path: Path
    key: str
    count: int
    commit: int
    _cursor: lmdb.Cursor[memoryview]

    def read_sample_values(self) -> Iterator[memoryview]:
        """Yields the value of each sample, in order. Raises ConfigError when one is missing."""
        self._cursor.first()
        items = self._cursor.iternext()
        for number in range(self.count):
            found, value = next(items, (b"", memoryview(b"")))
            if found != build_sample_key(number):
                raise ConfigError(
                    f"{self.key}: {format_path(self.path)} claims {format_count(self.count, 'sample')}, but has none "
                    f"under the key {build_sample_key(number).decode()}; {_LAYOUT}"
                )
            yield value


@contextmanager
def open_pyxis_file(path: Path, key: str) -> Iterator[PyxisFile]:
    """Opens the samples of the data file at `path`. Raises ConfigError unless it is whole and laid out by ml-pyxis.

    Raises ConfigError at the end, too, if another process has written to it.
    """
    # Without a lock, a writer may reuse pages that are being read. Equal commits before and after show that none did.
    head = _read_lmdb_head(path, key)
    try:
        with (
            lmdb.open(str(path), subdir=False, readonly=True, lock=False, create=False, max_dbs=2) as environment,
            environment.begin(buffers=True) as transaction,
        ):
            what = f"{key}: {format_path(path)}"
            try:
                data, meta = (environment.open_db(name, transaction, create=False) for name in (DATA_DB, META_DB))
            except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
                with transaction.cursor() as keys:
                    first = [bytes(found[:_KEY_CHARS]) for found in islice(keys.iternext(values=False), _KEYS_SHOWN)]
                texts = ", ".join(repr(found.decode("utf-8", "backslashreplace")) for found in first)
                raise ConfigError(
                    f"{what} holds {f'the keys {texts}' if first else 'nothing'}, but no samples in the format of "
                    f"ml-pyxis; {_LAYOUT}"
                ) from error
            said = transaction.get(COUNT_KEY, db=meta)
            if said is None or not bytes(said).isdigit():
                raise ConfigError(
                    f"{what} does not say how many samples it has; close its pyxis.Writer, which writes that last"
                )
            if not (count := int(bytes(said))):
                raise ConfigError(f"{what} has no samples; put some in, or name another")
            with transaction.cursor(data) as cursor:
                yield PyxisFile(path, key, count, head.commit, cursor)
    except lmdb.Error as error:
        raise ConfigError(f"{key}: {format_path(path)} cannot be read by LMDB: {error}; write it again") from error
    if _read_lmdb_head(path, key).commit != head.commit:
        raise ConfigError(
            f"{key}: {format_path(path)} was written to while its samples were listed; start again when its writer "
            "has finished"
        )


def _read_lmdb_head(path: Path, key: str) -> LmdbHead:
    with translate_read_errors(path, key), path.open("rb") as file:
        head = parse_lmdb_head(file.read(HEAD_BYTES))
        size = path.stat().st_size
        whole = head is not None and (size >= head.end_offset or is_file_whole(np.memmap(file, mode="r").data, head))
    if head is None:
        raise ConfigError(f"{key}: {format_path(path)} is not an LMDB file, or is one of another version; {_LAYOUT}")
    if not whole:
        raise ConfigError(
            f"{key}: {format_path(path)} is truncated: it has {size} of {head.end_offset} bytes; copy or write it again"
        )
    return head


def read_mapping_base_address(value: memoryview, file: PyxisFile) -> int:
    """Returns the address at which the file is mapped in this process, in one piece. `value` is any of its values.

    Raises ConfigError when the system's answer proves wrong.
    """
    address = find_memory_address(value)
    lines = _MAPS.read_text(errors="replace").splitlines()
    maps = ((*span.split("-"), offset) for span, _, offset, *_ in (line.split(maxsplit=3) for line in lines))
    spans = ((int(start, 16), int(stop, 16), int(offset, 16)) for start, stop, offset in maps)
    origin = next((start - offset for start, stop, offset in spans if start <= address < stop), address)
    with translate_read_errors(file.path, file.key), file.path.open("rb") as opened_file:
        opened_file.seek(address - origin)
        if opened_file.read(len(value)) != value:
            raise ConfigError(
                f"{file.key}: {format_path(file.path)} is not mapped where {_MAPS} says, so no other process can read "
                "it; on a machine where it can be read, pack its stream into another format"
            )
    return origin
