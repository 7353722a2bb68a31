"""Finds labels beside the images of the first shard: classes, numbers and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from streamd.daemon.starter.data_survey import PATH_KEY
from streamd.daemon.starter.label_types import guess_label_type
from streamd.dataset.labels.text_encoding import decode_text
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import format_path, translate_read_errors
from streamd.dataset.tar.labels import decode_json_field, decode_json_record, find_default_labels
from streamd.dataset.tar.samples import Shard, TarMember, read_shard

_READ_SAMPLES: Final = 2000  # of the first shard: the types of labels are guessed from these
_MAX_LABEL_BYTES: Final = 1 << 16  # a larger file beside an image is no label
_JSON: Final = "json"
_TEXT: Final = "txt"


@dataclass(frozen=True, slots=True)
class ShardLabels:
    """The labels to write, or None for the class that shards have by themselves; and why others are left out.

    `images` counts the images of the first shard.
    """

    images: int
    labels: dict[str, object] | None
    left_out: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def survey_shard_labels(path: Path) -> ShardLabels:
    """Finds the labels in the first shard at `path`, a tar or a folder of tars. Raises ConfigError."""
    files = patterns.find_files(str(path), PATH_KEY, (), lambda _: None, patterns.TAR_FILES)
    first = files.file_path(0)
    with translate_read_errors(first, PATH_KEY), first.open("rb", buffering=0) as file:
        return _find_labels(read_shard(files.names[0], file.fileno(), int(files.sizes[0]), PATH_KEY, lambda _: None))


def _find_labels(shard: Shard) -> ShardLabels:
    # Only a file that stands beside every image can be a label.
    complete = {suffix: files for suffix, files in shard.other_files.items() if shard.images.keys() <= files.keys()}
    if shard.images and find_default_labels(shard):
        others = ", ".join(f".{suffix.decode(errors='replace')}" for suffix in complete if suffix != b"cls")
        beside = (
            (f"next to the images are {others}: labels: {{name: {{from: json:FIELD, type: float}}}} takes a field"),
        )
        return ShardLabels(len(shard.images), None, notes=beside if others else ())
    labels: dict[str, object] = {}
    left_out: dict[str, str] = {}
    for name, source, texts in _iterate_fields(shard, complete):
        guess = guess_label_type(name, pa.array(texts, pa.large_string()))
        if guess.type is None:
            left_out[source] = guess.left_out
        else:
            labels[name] = {"from": source, "type": guess.type}
    note = f"the labels and their types were guessed from {format_path(shard.name)} alone"
    return ShardLabels(len(shard.images), labels, left_out, (note,) if labels else ())


def _iterate_fields(
    shard: Shard, complete: Mapping[bytes, Mapping[bytes, TarMember]]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the name, the `from` and the texts of each possible label: fields of .json files, and .txt files."""
    samples = list(shard.images)[:_READ_SAMPLES]
    for suffix, files in complete.items():
        spelled = suffix.decode(errors="replace")
        if spelled not in {_JSON, _TEXT} or any(files[each].size > _MAX_LABEL_BYTES for each in samples):
            continue
        contents = [shard.tar.read_member(files[each]) for each in samples]
        if spelled == _TEXT:
            yield "label", _TEXT, [_decode_text(each).strip() for each in contents]
        else:
            yield from ((name, f"{_JSON}:{name}", texts) for name, texts in collect_json_fields(contents))


def _decode_text(data: bytes) -> str:
    """Returns the text of a label; wrong bytes are replaced, since the listing reports them with their place."""
    try:
        return decode_text(data)
    except UnicodeDecodeError:
        return data.decode(errors="replace")


def collect_json_fields(contents: list[bytes]) -> Iterator[tuple[str, list[str]]]:
    """Yields the fields that are a text or a number in every record, as texts; none if a record is no JSON object."""
    try:
        records = [decode_json_record(each) for each in contents]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for name in records[0] if records else ():
        try:
            values = [decode_json_field(record[name]) if name in record else None for record in records]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if name and all(isinstance(value, str | int | float) for value in values):
            yield name, [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
