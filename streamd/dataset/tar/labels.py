"""Reads labels from shards: the text of a file beside each image, a field of its JSON, or the image's folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from streamd.core.text import escape_unprintable
from streamd.dataset.labels.cells import Cells, Column, SourceRows
from streamd.dataset.labels.encode import EXACT_BELOW
from streamd.dataset.labels.text_encoding import decode_json, decode_text
from streamd.dataset.manifest.columns import is_packed_name_key
from streamd.dataset.manifest.types import build_label_key
from streamd.dataset.paths.confined import format_path
from streamd.dataset.sources import LabelSource
from streamd.dataset.tar.samples import Shard, TarMember
from streamd.errors import ConfigError, suggest_name

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
