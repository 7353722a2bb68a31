"""`kind: filelist`: a text file with one sample a line, `path label`, in the order of the list.

Blank lines and lines that begin with # are left out. A path may contain spaces: it is quoted, or ends at a tab, or ends
with the last image suffix that white space, a comma or a semicolon follows. In a line with none of these, the last word
is the label (with several labels, as many words as there are labels).

A single label is all text after the path, spaces included; as int or float it is a vector where it holds several
numbers. Several labels have one value each, in the order of the configuration. Tabs separate the values; in a list
without tabs, commas or semicolons do; in a list without these, white space.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.core.text import format_count
from streamd.dataset.files import FilelistSource, lookup
from streamd.dataset.labels.cells import THOUSANDS, Column, DecimalMark, SourceRows, Texts, find_empty_texts, trim_texts
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.labels.encode import raise_collected_faults
from streamd.dataset.labels.text_encoding import build_text_error, choose_text_encoding
from streamd.dataset.manifest.types import Int64s, ScannedSamples
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, format_path, translate_read_errors
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError
from streamd.limits import MIB

ChunkedTexts: TypeAlias = Any  # a ChunkedArray of large strings

_log: Final = logging.getLogger("streamd.sources")
_GAP: Final = r"(?:\s*[,;]\s*|\s+)"
_GAP_WITHOUT_COMMA: Final = r"(?:\s*;\s*|\s+)"
_WHOLE_NUMBER: Final = r"^[+-]?[0-9]+$"
_SPACED_THOUSANDS: Final = r"^[+-]?[1-9][0-9]{0,2}(?:\s[0-9]{3})+$"
_PERHAPS_DECIMAL: Final = r"[+-]?[0-9]*(?:,[0-9]+(?:[eE][+-]?[0-9]+)?)?"
_WITH_DECIMAL_COMMAS: Final = rf"^{_PERHAPS_DECIMAL}(?:{_GAP_WITHOUT_COMMA}{_PERHAPS_DECIMAL})*$"
_CERTAIN_DECIMAL_COMMA: Final = (
    r"(?:^|[\s;])[+-]?,|[+-]0+,|,0(?:[0-9]|[0-9]{3,})(?:$|[\s;eE])"  # whole numbers are not written so
)
_SUFFIX: Final = "|".join(re.escape(suffix.decode()) for suffix in IMAGE_SUFFIXES)
_BY_SUFFIX: Final = rf'(?i)^(?:"(?P<quoted>[^"]+)"|(?P<path>[^\t]*(?:{_SUFFIX})))(?:{_GAP}(?P<rest>.*))?$'
_BLOCK_CHARS: Final = 4 * MIB  # of a list, split at a time
_VALUE_SEPARATORS: Final = (r"\s*\t\s*", r"\s*[,;]\s*", r"\s+")  # the first one that occurs in a list separates values


def scan_filelist(
    stream: str, source: FilelistSource, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> ScannedSamples:
    """Lists the samples of a list file. Raises ConfigError."""
    key = f"streams.{stream}.source"
    paths, rests, rows = _read_filelist(source.path, source.encoding, f"{key}.path", max(1, len(labels or {})))
    root = lookup.resolve_root(source.root, source.path)
    labels_key, has_labels = f"streams.{stream}.labels", not pc.all(find_empty_texts(rests)).as_py()
    with raise_collected_faults() as faults:
        for name, label in (labels or {}).items():
            if label.source not in {None, name}:
                raise ConfigError(
                    f"{labels_key}.{name}.from: a list has no column {label.source!r}; its labels are what comes after "
                    "the paths: leave `from` out, or use kind table"
                )
        if labels and not has_labels:
            raise ConfigError(
                f"{labels_key}: no line of {rows.path.name} has a label after its path, but the configuration asks "
                f"for: {', '.join(labels)}; write lines `path label`, or labels: {{}}"
            )
        # Without configured labels, a list that has any has one.
        default = {"label": LabelSource()} if has_labels else {}
        wanted = default if labels is None else labels
        # A mistake in a label does not keep the paths from being checked: one message names both.
        with faults.collect():
            columns = _build_label_columns(rows, rests, wanted, labels_key, source.decimal)
            values, specs, fixed = convert_labels(wanted, columns)
            del columns
        files = lookup.normalize_file_names(rows, paths, root, f"{key}.root")
        # Both are as large as the list, and are not needed while the files are looked up: `files` has the names.
        del paths, rests
        pa.default_memory_pool().release_unused()
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, f"{key}.root", progress)
    return ScannedSamples(root, files, sizes, mtimes_ns, values, specs, fixed)


def _read_filelist(path: Path, configured: str | None, key: str, words: int) -> tuple[Texts, ChunkedTexts, SourceRows]:
    """Returns the paths of the lines that name samples, the text after each, and their rows.

    See `split_paths_from_labels`; `words` is passed on to it.
    """
    with translate_read_errors(path, key):
        if path.is_dir():
            raise ConfigError(
                f"{key}: {format_path(path)} is a folder, but kind filelist needs a file; give the path of a file, or "
                "use kind folder"
            )
        encoding = choose_text_encoding(path, configured, key)
        # A block of lines is read and split at a time, since splitting takes several times the memory of the text.
        numbers, paths, rests = list[Int64s](), list[Texts](), list[Texts]()  # of the lines that name samples
        count = left_out = 0
        try:
            with path.open(encoding=encoding) as file:
                for text in _read_whole_lines(file):
                    # The lines are a column, since Python's strings would take four times the memory. It refers to
                    # the text itself and to the offsets of its lines, each with its break, which is trimmed.
                    data = text.encode()
                    breaks = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
                    last = np.array([] if data.endswith(b"\n") else [len(data)], np.int64)
                    ends = np.concatenate([[0], breaks + 1, last]).astype(np.int64)
                    buffers = pa.py_buffer(ends.data), pa.py_buffer(data)
                    lines = trim_texts(pa.LargeStringArray.from_buffers(ends.size - 1, *buffers))
                    comments: Any = pc.starts_with(lines, "#")
                    named: Any = pc.invert(pc.or_(comments, find_empty_texts(lines)))
                    numbers.append(np.flatnonzero(named.to_numpy(zero_copy_only=False)) + count)
                    before, after = split_paths_from_labels(lines.filter(named), words)
                    paths.append(before)
                    rests.append(after)
                    count, left_out = count + len(lines), left_out + comments.true_count
        except UnicodeError as error:
            raise build_text_error(path, encoding, key, error) from error
    kept = np.concatenate(numbers)
    if not kept.size:
        raise ConfigError(f"{key}: {format_path(path)} names no file; write one line `path label` for each sample")
    if left_out:
        _log.info("%s: left out %s of %s that begin with #", key, format_count(left_out, "line"), path.name)
    joined = pa.chunked_array(paths, pa.large_string()).combine_chunks()
    rows = SourceRows(path, lambda row: f"{path.name}, line {kept[row] + 1}")
    return joined, pa.chunked_array(rests, pa.large_string()), rows


def _read_whole_lines(file: TextIO) -> Iterator[str]:
    """Yields all text of a file in blocks of whole lines, each with its \\n; the last one may lack it."""
    rest = ""
    while data := file.read(_BLOCK_CHARS):
        lines, end, rest = (rest + data).rpartition("\n")
        if end:
            yield lines + end
    yield rest


def split_paths_from_labels(lines: Texts, words: int) -> tuple[Texts, Texts]:
    """Returns the path of each line, and the text after it.

    In a line whose path has no image suffix, the last `words` words are that text.
    """
    found: Any = pc.extract_regex(lines, _BY_SUFFIX)
    paths, rests = _select_nonempty_field(found, "quoted", "path"), pc.struct_field(found, "rest")
    # The first expression fits nearly all lines. The others are matched by a second one, and put back in their places.
    odd = found.is_null()
    if odd.true_count:
        by_words = (
            rf"^(?:(?P<tabbed>[^\t]+)\t\s*(?P<after>.*)|"
            rf"(?P<path>.*[^\s,;]){_GAP}(?P<rest>[^\s,;]+(?:{_GAP}[^\s,;]+){{{words - 1}}}))$"
        )
        plain = lines.filter(odd)
        others: Any = pc.extract_regex(plain, by_words)
        paths = pc.replace_with_mask(paths, odd, pc.coalesce(_select_nonempty_field(others, "tabbed", "path"), plain))
        rests = pc.replace_with_mask(rests, odd, pc.fill_null(_select_nonempty_field(others, "after", "rest"), ""))
    return pc.utf8_trim_whitespace(paths), pc.replace_substring_regex(rests, r'^"(.*)"$', r"\1")


def _select_nonempty_field(found: Any, one: str, other: str) -> Texts:
    first = pc.struct_field(found, one)
    return pc.if_else(find_empty_texts(first), pc.struct_field(found, other), first)


def _build_label_columns(
    rows: SourceRows, rests: ChunkedTexts, wanted: Mapping[str, LabelSource], key: str, decimal: DecimalMark | None
) -> dict[str, list[Column]]:
    if len(wanted) == 1:
        ((name, label),) = wanted.items()
        column = Column(rests, f"label {name!r}", rows, f"{key}.{name}", decimal)
        return {name: [_split_label_numbers(column, label.type) if label.type in {"int", "float"} else column]}
    if not wanted:
        return {}
    between = next(
        mark for mark in _VALUE_SEPARATORS if pc.any(pc.match_substring_regex(rests, mark)).as_py() or mark == r"\s+"
    )
    lists: Any = pc.split_pattern_regex(rests, between)
    lengths, count = pc.list_value_length(lists).to_numpy(zero_copy_only=False), len(wanted)
    if (lengths != count).any():
        row = int(np.argmax(lengths != count))
        raise ConfigError(
            f"{key}: {', '.join(wanted)}: {rows.format_location(row)} has {format_count(int(lengths[row]), 'value')} "
            f"after its path, but {format_count(count, 'label')} are needed, one value each; correct it, or keep a "
            "single label, which takes everything after the path"
        )
    flat: list[Any] = [pc.list_flatten(part) for part in lists.chunks]
    columns: dict[str, list[Column]] = {}
    for number, name in enumerate(wanted):
        taken = [part.take(pa.array(np.arange(number, len(part), count))) for part in flat]
        # A comma inside a value is left where tabs separate the values.
        cells = pa.chunked_array(taken, pa.large_string())
        columns[name] = [Column(cells, f"label {name!r}", rows, f"{key}.{name}", decimal or "either")]
    return columns


def _split_label_numbers(column: Column, kind: str) -> Column:
    """Returns a label of numbers as a column of lists, one number or several a line; of texts if no line has several.

    Raises ConfigError where each comma may stand before a fraction or between two whole numbers.
    """
    rests, mark = column.cells, column.decimal_mark
    texts = pc.filter(rests, pc.invert(find_empty_texts(rests)))
    may_be_decimal = (
        mark != "."
        and pc.any(pc.match_substring(texts, ",")).as_py()
        and pc.all(pc.match_substring_regex(texts, _WITH_DECIMAL_COMMAS)).as_py()
    )
    if mark is None and may_be_decimal:
        has_one_number = pc.any(pc.match_substring_regex(texts, _WHOLE_NUMBER)).as_py()
        if pc.any(pc.match_substring_regex(texts, _CERTAIN_DECIMAL_COMMA)).as_py():
            mark = ","
        # A line of one number beside lines of two would be a vector of another length; a comma may mark thousands.
        elif has_one_number:
            mark = "either"
        elif kind == "float" or pc.all(pc.match_substring_regex(texts, THOUSANDS)).as_py():
            row = int(np.argmax(np.asarray(pc.match_substring(rests, ","))))
            raise ConfigError(
                f"{column.describe_cell(row)} holds {rests[row].as_py()[:80]!r}, whose comma may be a decimal comma or "
                "separate two numbers, as in every line of the list; add decimal: ',' under source for one number, or "
                "decimal: '.' for two"
            )
    if (
        pc.all(pc.match_substring_regex(texts, _SPACED_THOUSANDS)).as_py()
        and (spaced := np.asarray(pc.match_substring_regex(rests, r"\s0"))).any()
    ):
        row = int(np.argmax(spaced))
        raise ConfigError(
            f"{column.describe_cell(row)} holds {rests[row].as_py()[:80]!r}, whose blank seems to mark thousands, "
            "since no whole number begins with 0; write numbers without blanks in them"
        )
    lists = pc.split_pattern_regex(rests, _GAP_WITHOUT_COMMA if mark in {",", "either"} else _GAP)
    is_single = pc.max(pc.list_value_length(lists)).as_py() == 1
    return replace(column, cells=rests if is_single else lists, decimal_mark=mark)
