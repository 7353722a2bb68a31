"""`kind: tar`: WebDataset shards, and other tars of images. Headers are read once; images are read at their offsets.

Samples are in byte order of the shards' names, then of the images' names.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from streamd.core.text import escape_unprintable, format_count
from streamd.dataset.labels.cells import Cells, Column, SourceRows
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.labels.encode import EXACT_BELOW
from streamd.dataset.labels.text_encoding import decode_json, decode_text
from streamd.dataset.manifest.columns import is_packed_name_key
from streamd.dataset.manifest.types import ImageFiles, Int64s, ScannedSamples, ShardFiles, build_label_key
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, format_first_names, format_path, translate_read_errors
from streamd.dataset.paths.patterns import LeftOutNames, MatchedFiles
from streamd.dataset.sources import ImageSource, LabelSource
from streamd.dataset.tar import TarSource
from streamd.dataset.tar.samples import (
    Shard,
    TarMember,
    format_suffixes,
    list_stray_files,
    read_shard,
    suggest_near_key,
)
from streamd.errors import ConfigError, suggest_name

# --- Reads labels from shards: the text of a file beside each image, a field of its JSON, or the image's folder.

_CLASS: Final = b"cls"  # WebDataset's suffix for the number of an image's class
_JSON: Final = "json"
_SHOWN_FIELDS: Final = 20  # of a record in a message
_EMPTY_RECORD: Final = b"{}"
_PACKED_KEY: Final = re.compile(rb"[0-9]{9}")  # of a sample that streamd pack wrote
_MOST_BYTES: Final = 1 << 20  # of a file beside an image: a text, or a record of numbers
# Only the fields that labels are made of are decoded further, so that the others may hold anything.
_record_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_field_decoder: Final = msgspec.json.Decoder()

Record = dict[str, msgspec.Raw]
FieldValue = str | list[str]


@dataclass(frozen=True, slots=True)
class TarLabelSource:
    """Where a label comes from: files with a `suffix`, or a `field` of the JSON in them.

    An empty suffix means the folder of the image. Where `is_optional`, samples without it have an empty text. Where
    `is_nested`, a field may hold lists of lists, as boxes do, and is kept as JSON text.
    """

    suffix: bytes
    field: str = ""
    is_optional: bool = False
    is_nested: bool = False

    @property
    def display_name(self) -> str:
        """The name for a message."""
        name = f"its .{self.suffix.decode()}" if self.suffix else "its folder"
        return f"{self.field!r} in {name}" if self.field else name


TarLabelSources = Mapping[str, Sequence[TarLabelSource]]  # by label


def find_default_labels(shard: Shard) -> dict[str, LabelSource]:
    """Returns the label of a shard that needs no configuration: `.cls` files, else folders of one level; or none."""
    return {"label": LabelSource()} if _CLASS in shard.other_files or _has_class_folders(shard) else {}


def find_label_sources(stream: str, labels: Mapping[str, LabelSource], shard: Shard) -> TarLabelSources:
    """Returns where labels come from. The first shard with images decides where the configuration does not say it."""
    found: dict[str, list[TarLabelSource]] = {}
    for name, label in labels.items():
        key, is_nested = build_label_key(stream, name), label.boxes is not None
        # By its name alone: files with that suffix, else folders.
        if label.source is None:
            suffixes = [name.lower().encode(), *([_CLASS] if name == "label" else [])]
            suffix = next((each for each in suffixes if each in shard.other_files), b"")
            if not suffix and not _has_class_folders(shard):
                raise ConfigError(
                    f"{key}: {format_path(shard.name)} has no "
                    f"{' or '.join(f'.{each.decode()}' for each in suffixes)} files next to its images, and no folder "
                    f"for each class; it has {shard.suffix_summary}: write from: txt for the text of .txt files, from: "
                    "json:angle for a field of .json files, or labels: {} to serve no labels"
                )
            found[name] = [TarLabelSource(suffix)]
            continue
        found[name] = []
        for spelled in label.list_columns(name):
            ending, colon, field = spelled.removeprefix(".").partition(":")
            if not ending or (colon and not field) or (field and ending.rpartition(".")[2].lower() != _JSON):
                raise ConfigError(
                    f"{key}.from: {spelled!r} is not the suffix of label files in a shard; write a suffix or a field, "
                    "such as cls, txt or json:angle, or leave `from` out"
                )
            found[name].append(TarLabelSource(ending.lower().encode(), field, is_nested=is_nested))
    return found


def _has_class_folders(shard: Shard) -> bool:
    return all(image.name.count(b"/") == 1 for image in shard.images.values())


def find_packed_names(shard: Shard) -> TarLabelSource | None:
    """Returns where a shard that streamd pack wrote keeps the names of its images; None for other shards."""
    sample = next(iter(shard.images), b"")
    if not _PACKED_KEY.fullmatch(sample):
        return None
    field = next(iter(_read_json_record(shard, shard.other_files.get(_JSON.encode(), {}).get(sample))), "")
    return TarLabelSource(_JSON.encode(), field, is_optional=True) if is_packed_name_key(field) else None


def decode_json_record(data: bytes) -> Record:
    """Returns the fields of a JSON object, not yet decoded. Raises as `decode_json` does."""
    return decode_json(data, _record_decoder)


def decode_json_field(raw: msgspec.Raw) -> object:
    """Decodes a field of a record. Raises DecodeError, UnicodeDecodeError and RecursionError."""
    return _field_decoder.decode(raw)


def _read_json_record(shard: Shard, member: TarMember | None) -> Record:
    """Returns the fields of a file beside an image; none where there is no file, or it holds no JSON object."""
    if member is None or member.size > _MOST_BYTES:
        return {}
    try:
        return decode_json_record(shard.tar.read_member(member))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def read_label_values(shard: Shard, sources: TarLabelSources, stream: str) -> dict[TarLabelSource, list[FieldValue]]:
    """Returns the values of each source, one an image in their order.

    Raises ConfigError where one is missing, and OSError.
    """
    keys = {ask: build_label_key(stream, label) for label, several in sources.items() for ask in several}
    # Several labels may be fields of one JSON file, which is read once.
    first = {ask.suffix: ask for ask in reversed(keys)}
    data = {suffix: _read_label_data(shard, ask, keys[ask]) for suffix, ask in first.items()}
    records: dict[bytes, list[Record]] = {}
    found: dict[TarLabelSource, list[FieldValue]] = {}
    for ask, key in keys.items():
        if ask.field:
            if ask.suffix not in records:
                records[ask.suffix] = _decode_json_records(shard, data[ask.suffix], ask, key)
            found[ask] = _extract_json_fields(shard, records[ask.suffix], ask, key)
            continue
        # The texts of the files beside the images, or the folders of these.
        texts: list[FieldValue] = []
        for each, sample in zip(data[ask.suffix], shard.images, strict=True):
            try:
                texts.append(decode_text(each))
            except UnicodeDecodeError as error:
                raise _build_encoding_error(shard, sample, ask, key) from error
        found[ask] = texts
    return found


def _read_label_data(shard: Shard, source: TarLabelSource, key: str) -> list[bytes]:
    if not source.suffix:
        folders = [image.name.rpartition(b"/")[0] for image in shard.images.values()]
        odd = next((place for place, folder in enumerate(folders) if not folder or b"/" in folder), None)
        if odd is not None:
            raise ConfigError(
                f"{key}: {_format_member_path(shard, [*shard.images.values()][odd].name)} is not directly in a folder "
                "named after its class, as the first images are; pack it that way, or write from: with the suffix of "
                "the label files next to the images"
            )
        return folders
    files = shard.other_files.get(source.suffix, {})
    if source.is_optional:
        return [
            _read_member(shard, files[sample], key) if sample in files else _EMPTY_RECORD for sample in shard.images
        ]
    lacking = [sample for sample in shard.images if sample not in files]
    if lacking:
        more = f" (and {len(lacking) - 1} more like it)" if lacking[1:] else ""
        raise ConfigError(
            f"{key}: {_format_member_path(shard, shard.images[lacking[0]].name)} has no .{source.suffix.decode()} "
            f"file next to it{more}; the shard has {shard.suffix_summary}: "
            f"{_suggest_field(shard, lacking[0], source.suffix.decode())}"
        )
    return [_read_member(shard, files[sample], key) for sample in shard.images]


def _suggest_field(shard: Shard, sample: bytes, wanted: str) -> str:
    """Returns advice for a label without files: the field of the sample's JSON with that name, if there is one."""
    for suffix, files in shard.other_files.items():
        is_json = suffix.rpartition(b".")[2] == _JSON.encode()
        record = _read_json_record(shard, files.get(sample)) if is_json else {}
        field = next((name for name in record if name.casefold() == wanted.casefold()), None)
        if field is not None:
            spelled = suffix.decode(errors="backslashreplace")
            return (
                f"write from: {escape_unprintable(f'{spelled}:{field}')} for that field of its "
                f".{escape_unprintable(spelled)}"
            )
    return "correct from:, or pack the shard again"


def _format_member_path(shard: Shard, name: bytes) -> str:
    return format_path(shard.name + b"/" + name)


def _read_member(shard: Shard, member: TarMember, key: str) -> bytes:
    if member.size > _MOST_BYTES:
        place = _format_member_path(shard, member.name)
        raise ConfigError(f"{key}: {place} has {member.size:,} bytes, but a label has at most {_MOST_BYTES:,}")
    return shard.tar.read_member(member)


def _build_encoding_error(shard: Shard, sample: bytes, source: TarLabelSource, key: str) -> ConfigError:
    member = shard.other_files[source.suffix][sample] if source.suffix else shard.images[sample]
    return ConfigError(f"{key}: {_format_member_path(shard, member.name)} is not UTF-8 text; save it as UTF-8")


def _decode_json_records(shard: Shard, data: Sequence[bytes], source: TarLabelSource, key: str) -> list[Record]:
    records: list[Record] = []
    for each, sample in zip(data, shard.images, strict=True):
        try:
            records.append(decode_json_record(each))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            try:
                decode_text(each)
            except UnicodeDecodeError:
                raise _build_encoding_error(shard, sample, source, key) from error
            raise ConfigError(
                f"{key}: {_format_member_path(shard, shard.images[sample].name)}: {source.display_name} is not a JSON "
                f"object: {error}"
            ) from error
    return records


def _extract_json_fields(shard: Shard, records: Sequence[Record], source: TarLabelSource, key: str) -> list[FieldValue]:
    """Returns the field of each record, as the text that it would be in a table."""
    found: list[FieldValue] = []
    for record, image in zip(records, shard.images.values(), strict=True):
        if source.field not in record:
            if source.is_optional:
                found.append("")
                continue
            there = ", ".join(map(escape_unprintable, list(record)[:_SHOWN_FIELDS])) or "nothing"
            raise ConfigError(
                f"{key}: {_format_member_path(shard, image.name)}: there is no {source.display_name}; it has {there}"
                f"{suggest_name(source.field, record)}"
            )
        what = f"{key}: {_format_member_path(shard, image.name)}: {source.display_name}"
        try:
            raw = record[source.field]
            value = decode_json_field(raw)
            if isinstance(value, float) and abs(value) >= EXACT_BELOW:  # its text has every digit
                value = bytes(raw).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{what} cannot be read: {error}; correct it") from error
        if source.is_nested:
            found.append(msgspec.json.encode(value).decode())
        elif source.is_optional and not isinstance(value, str):
            found.append("")
        else:
            found.append(
                [_convert_json_scalar(each, what) for each in value]
                if isinstance(value, list)
                else _convert_json_scalar(value, what)
            )
    return found


def _convert_json_scalar(value: object, what: str) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
    raise ConfigError(f"{what} is an object or a list of lists; a label is a text, a number or a list of these")


def build_label_columns(
    stream: str, sources: TarLabelSources, values: Mapping[TarLabelSource, Sequence[FieldValue]], rows: SourceRows
) -> dict[str, list[Column]]:
    """Returns the columns of all labels, with the `values` from all shards."""
    cells: dict[TarLabelSource, Cells] = {}
    for ask in {ask for several in sources.values() for ask in several}:
        if any(isinstance(value, list) for value in values[ask]):
            lists = [value if isinstance(value, list) else [value] for value in values[ask]]
            cells[ask] = pa.array(lists, pa.large_list(pa.large_string()))
        else:
            cells[ask] = pa.array(values[ask], pa.large_string())
    return {
        name: [Column(cells[ask], ask.display_name, rows, build_label_key(stream, name)) for ask in several]
        for name, several in sources.items()
    }


# --- Lists the shards of a stream.

_log: Final = logging.getLogger("streamd.sources")
_THREADS: Final = 16  # a disk answers many requests at once
_QUICK_SAMPLE_S: Final = 200e-6  # in memory a sample takes a tenth of this, and threads would only wait for each other
_NAMES: Final = "\0names"  # the key under which names are read, beside the labels
_IMAGE_SUFFIX_TEXT: Final = b" ".join(IMAGE_SUFFIXES).decode()


def scan_tar(
    stream: str,
    source: TarSource,
    labels: Mapping[str, LabelSource] | None,
    progress: Callable[[int], None],
    images: Mapping[str, ImageSource] | None = None,
) -> ScannedSamples:
    """Lists the images in shards, with their labels; `images` names the suffixes of several. Raises ConfigError."""
    key = f"streams.{stream}.source.path"
    files = patterns.find_files(source.path, key, (), lambda _: None, patterns.TAR_FILES)
    suffixes = {name: str(image.place).lstrip(".").lower().encode() for name, image in (images or {}).items()}
    listing = _TarListing(stream, files, labels, progress, suffixes)
    parts = list(listing.list_shards())
    if not listing.samples or listing.plan is None:
        raise ConfigError(
            f"{key}: no images in {format_count(len(listing.files.names), 'shard')} of "
            f"{format_path(listing.files.root)}; looked for {_IMAGE_SUFFIX_TEXT}, but there is "
            f"{format_suffixes(listing.passed_over)}; correct the path, or pack images"
        )
    # Files that are not served.
    if listing.passed_over:
        counts, first = format_suffixes(listing.passed_over), format_first_names(listing.first_passed_over)
        _log.info("%s: skipped files that belong to no image: %s, the first %s", key, counts, first)
    listing.left_out.log_names(key)
    names = list(chain.from_iterable(part.names for part in parts))
    rows = SourceRows(files.root, lambda row: format_path(names[row]))
    asked = {ask for several in listing.plan.sources.values() for ask in several}
    values = {ask: list(chain.from_iterable(part.values.get(ask, []) for part in parts)) for ask in asked}
    columns = build_label_columns(stream, listing.plan.sources, values, rows)
    named = listing.plan.names
    shown = [str(each).encode() for part in parts for each in part.values[named]] if named else None
    return ScannedSamples(
        files.root,
        names,
        np.concatenate([part.sizes for part in parts]),
        np.empty(0, np.int64),
        *convert_labels(listing.plan.labels, columns),
        shards=ShardFiles(tuple(files.names), tuple(files.sizes.tolist()), tuple(files.mtimes_ns.tolist())),
        extra={
            "shard": np.repeat(np.arange(len(parts)), [len(part.names) for part in parts]),
            "offset": np.concatenate([part.offsets for part in parts]),
        },
        display_names=shown,
        images={
            name: ImageFiles(
                list(chain.from_iterable(part.more[suffix][0] for part in parts)),
                np.concatenate([part.more[suffix][1] for part in parts]),
                np.empty(0, np.int64),
                offsets=np.concatenate([part.more[suffix][2] for part in parts]),
            )
            for name, suffix in list(listing.suffixes.items())[1:]
        },
    )


@dataclass(frozen=True, slots=True)
class _LabelPlan:
    """The configured labels, and where they come from in every shard; `names` says where a pack keeps its names."""

    labels: Mapping[str, LabelSource]
    sources: TarLabelSources
    names: TarLabelSource | None = None


@dataclass(frozen=True, slots=True)
class _ShardContents:
    """The contents of one shard: its images in order, the values of each label source, one an image, and warnings."""

    names: list[bytes]
    offsets: Int64s
    sizes: Int64s
    values: dict[TarLabelSource, list[FieldValue]]
    strays: list[tuple[bytes, bytes]]  # suffix and sample of the files that belong to no image
    warnings: list[str]
    more: dict[bytes, tuple[list[bytes], Int64s, Int64s]]  # by suffix: names, sizes and offsets of further images
    left_out: LeftOutNames


@dataclass(slots=True)
class _TarListing:
    """Lists the shards of one stream: one after the other, or several at a time where the disk is slow."""

    stream: str
    files: MatchedFiles
    labels: Mapping[str, LabelSource] | None
    progress: Callable[[int], None]
    suffixes: Mapping[str, bytes] = field(default_factory=dict)
    plan: _LabelPlan | None = None
    samples: int = 0
    passed_over: Counter[bytes] = field(default_factory=Counter)  # files beside no image, by suffix
    left_out: LeftOutNames = field(default_factory=LeftOutNames)
    first_passed_over: list[bytes] = field(default_factory=list)  # their samples, of the first shard that has any

    @property
    def path_key(self) -> str:
        return f"streams.{self.stream}.source.path"

    def list_shards(self) -> Iterator[_ShardContents]:
        """Yields the contents of the shards, in their order."""
        numbers, began_s = iter(range(len(self.files.names))), time.monotonic()
        # Threads start only after a shard has made the plan. The plan does not change from then on, so they need no
        # lock for it.
        for number in numbers:
            yield self._record_shard(self._list_shard(number))
            if self.plan is not None and time.monotonic() - began_s > self.samples * _QUICK_SAMPLE_S:
                break
        # The remaining shards, if any, are listed by threads, which also report progress. The results come in order,
        # and only this thread counts them and logs their warnings.
        with ThreadPoolExecutor(_THREADS, "streamd-tar") as pool:
            yield from map(self._record_shard, pool.map(self._list_shard, numbers))

    def _record_shard(self, part: _ShardContents) -> _ShardContents:
        self.samples += len(part.names)
        self.passed_over += Counter(suffix for suffix, _ in part.strays)
        self.first_passed_over = self.first_passed_over or [sample for _, sample in part.strays]
        self.left_out.add_counts(part.left_out)
        for warning in part.warnings:
            _log.warning("%s: %s", self.path_key, warning)
        self.progress(self.samples)
        return part

    def _list_shard(self, number: int) -> _ShardContents:
        """Lists one shard. Runs in several threads; the result does not depend on the others."""
        name, path = self.files.names[number], self.files.file_path(number)
        before, size = self.samples, int(self.files.sizes[number])
        with translate_read_errors(path, self.path_key), path.open("rb", buffering=0) as file:
            shard = read_shard(
                name,
                file.fileno(),
                size,
                self.path_key,
                lambda seen: self.progress(before + seen),
                tuple(dict.fromkeys(self.suffixes.values())),
            )
            images, warnings = shard.images.values(), list[str]()
            if not shard.tar.has_end_mark:
                warnings.append(f"{format_path(name)} has no end marker: if it is truncated, samples are missing")
            if not images:
                warnings.append(f"{format_path(name)} holds no image, only {shard.suffix_summary}")
            more = {}  # the further images, in the order of the samples
            for suffix, members in shard.parts.items():
                several = [members[sample] for sample in shard.images]
                sizes, offsets = [each.size for each in several], [each.offset for each in several]
                inside = [b"%b/%b" % (shard.name, each.name) for each in several]
                more[suffix] = inside, np.array(sizes, np.int64), np.array(offsets, np.int64)
            part = _ShardContents(
                [b"%b/%b" % (shard.name, image.name) for image in images],
                np.array([image.offset for image in images], np.int64),
                np.array([image.size for image in images], np.int64),
                self._read_planned_labels(shard) if images else {},
                list_stray_files(shard),
                warnings,
                more,
                shard.left_out,
            )
            found = os.fstat(file.fileno())
        if (found.st_size, found.st_mtime_ns) != (size, int(self.files.mtimes_ns[number])):
            raise ConfigError(
                f"{self.path_key}: {format_path(name)} is still being written; list it once it is complete"
            )
        return part

    def _read_planned_labels(self, shard: Shard) -> dict[TarLabelSource, list[FieldValue]]:
        # The first shard with images makes the plan. Where no labels are configured, each shard must lead to the same.
        if self.plan is None or self.labels is None:
            labels = find_default_labels(shard) if self.labels is None else self.labels
            names = find_packed_names(shard) if self.plan is None else self.plan.names
            found = _LabelPlan(labels, find_label_sources(self.stream, labels, shard), names)
            if self.plan is not None and found.sources != self.plan.sources:
                raise ConfigError(
                    f"{self.path_key}: {format_path(shard.name)}, which has {shard.suffix_summary}, differs from the "
                    "shards before it in whether its images have a class, or in where the class is stored; write "
                    "labels, or name only shards that belong together"
                )
            self.plan = self.plan or found
        plan = self.plan
        # Labels without an image show that the image has been lost.
        suffixes = {ask.suffix for several in plan.sources.values() for ask in several if ask.suffix}
        lone = [each for suffix in suffixes for each in shard.other_files.get(suffix, {}) if each not in shard.images]
        if lone:
            raise ConfigError(
                f"{self.path_key}: {format_path(shard.name)} has labels without an image, of the samples "
                f"{format_first_names(sorted(lone))}; it has {shard.suffix_summary}: an image must have the same name "
                f"as its label file, with one of the suffixes {_IMAGE_SUFFIX_TEXT}"
                f"{suggest_near_key(lone, shard.images)}"
            )
        packed = {} if plan.names is None else {_NAMES: [plan.names]}
        return read_label_values(shard, {**plan.sources, **packed}, self.stream)
