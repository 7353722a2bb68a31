"""Surveys what may be labels: the columns of a table, and what stands beside the images in tars. Loads pyarrow."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.core.text import format_count, format_list
from streamd.daemon.starter.survey import PATH_KEY, SMALL_SAMPLES, DataSurvey, StarterChoices, build_part_sources
from streamd.dataset.files.lookup import iterate_likely_roots
from streamd.dataset.files.table import read_requested_columns
from streamd.dataset.labels import cells, columns
from streamd.dataset.labels.cells import Column, Texts, find_empty_texts
from streamd.dataset.labels.convert import compute_vector_width
from streamd.dataset.labels.encode import MISSING_WORDS, NUMBER, raise_collected_faults
from streamd.dataset.labels.text_encoding import decode_text
from streamd.dataset.layouts import PART_OF_WORD, TEST, TRAIN, VALIDATION, Settings, split_words
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, format_path, is_file_beneath, translate_read_errors
from streamd.dataset.sources import Scalar
from streamd.dataset.tar.samples import Shard, TarMember, read_shard
from streamd.dataset.tar.scan import decode_json_field, decode_json_record, find_default_labels
from streamd.errors import ConfigError, suggest_name

# --- the type of a column of texts as a label: category, int or float; or why it is no label

MAX_CLASSES: Final = 1000  # a column with more different texts holds names or remarks
_WHOLE: Final = r"^[+-]?[0-9]{1,18}$"
_CODE: Final = r"^0[0-9]+$"  # 007 is a name and not the number 7
# Whole numbers in a column with such a name are classes; in any other column they are quantities.
_CLASS_NAME: Final = re.compile(
    r"(^|[_ .-])(label|class|category|target|type|kind|species|breed|cls|y)(s|es|[_ "
    r".-]?(id|no|index|idx|number|code))?$"
)
# The index of pandas, which numbers rows and is saved as a column, and how it and R name columns without a name.
_INDEX_NAME: Final = re.compile(r"__index_level_[0-9]+__|Unnamed: ?[0-9]+.*|\.\.\.[0-9]+")
_QUOTED_LIST: Final = r"^(?:[\[({]\s*['\"].*[\])}]|\[\s*\])?$"
_ROW_NAME: Final = re.compile(r"^(|id|idx|index|row|no|nr|number|unnamed.*)$|[_ ]id$")


@dataclass(frozen=True, slots=True)
class LabelGuess:
    """The `type` of a label, or None and why the column is `left_out`; a `note` about what was taken for what."""

    type: str | None
    left_out: str = ""
    note: str = ""


def guess_label_type(name: str, texts: Texts, *, is_chosen: bool = False) -> LabelGuess:
    """Returns the type of the column `name`, judged by all of its cells; an empty text is a missing value.

    `is_chosen`: somebody has named it as a label, so numbers in the order of the rows are one, too.
    """
    rows = len(texts)
    if _INDEX_NAME.fullmatch(name):
        return LabelGuess(None, "the index of a data frame, which numbers its rows")
    gaps = _count_true(find_empty_texts(texts))
    if gaps < rows and _count_true(pc.match_substring_regex(texts, _QUOTED_LIST)) == rows:
        return LabelGuess("tags")
    if gaps:
        return LabelGuess(None, "empty" if gaps == rows else f"{format_count(gaps, 'row')} of {rows:,} have no value")
    levels = int(pc.count_distinct(texts).as_py())
    if levels == 1 and rows > 1:
        return LabelGuess(None, f"{texts[0].as_py()!r} in every row")
    numbers = _count_true(pc.match_substring_regex(texts, NUMBER))
    words = pc.is_in(pc.utf8_lower(texts), pa.array(sorted(MISSING_WORDS), texts.type))
    if 0 < numbers < rows and numbers + _count_true(words) == rows:
        return _describe_no_numbers(texts, numbers)
    if numbers < rows:
        return _guess_type_of_words(texts, levels, numbers)
    if _count_true(pc.match_substring_regex(texts, _WHOLE)) < rows:
        return LabelGuess("float")
    return _guess_type_of_whole_numbers(name, texts, levels, is_chosen=is_chosen)


def _guess_type_of_words(texts: Texts, levels: int, numbers: int) -> LabelGuess:
    rows = len(texts)
    if levels <= min(MAX_CLASSES, max(2, rows // 2)):
        return LabelGuess("category")
    if numbers > rows // 2:
        return _describe_no_numbers(texts, numbers)
    return LabelGuess(None, f"{levels:,} different texts in {rows:,} rows")


def _describe_no_numbers(texts: Texts, numbers: int) -> LabelGuess:
    odd = texts.filter(pc.invert(pc.match_substring_regex(texts, NUMBER)))[0].as_py()
    return LabelGuess(None, f"no number in {format_count(len(texts) - numbers, 'row')}, such as {odd[:40]!r}")


def _guess_type_of_whole_numbers(name: str, texts: Texts, levels: int, *, is_chosen: bool) -> LabelGuess:
    rows = len(texts)
    if _count_true(pc.match_substring_regex(texts, _CODE)):
        guess = _guess_type_of_words(texts, levels, 0)
        return LabelGuess(guess.type, guess.left_out, "has leading zeros, so its numbers are taken as texts")
    if _CLASS_NAME.search(name.casefold()) and levels <= MAX_CLASSES:
        return LabelGuess("category")
    if levels == rows and rows > 1 and not is_chosen:
        numbers_of_rows = pc.replace_substring_regex(texts, r"^\+", "").cast(pa.int64()).to_numpy()
        if _ROW_NAME.search(name.casefold()) or (np.diff(numbers_of_rows) == 1).all():
            return LabelGuess(None, "numbers the rows")
    return LabelGuess("int")


def _count_true(mask: Any) -> int:
    return int(pc.sum(mask).as_py() or 0)


# --- the columns of a table: which one names the images, which are labels, and which one names the part

_TRIED_FILES: Final = 20  # cells of a column, evenly spread, that are tried as file names
_SUFFIX_PATTERN: Final = "|".join(each.decode().replace(".", r"\.") for each in IMAGE_SUFFIXES)
_SUFFIX_ENDS: Final = tuple(each.decode() for each in IMAGE_SUFFIXES)
_SHOWN_COLUMNS: Final = 10  # columns named in a message
_PART_COLUMNS: Final = frozenset({"split", "part", "set", "subset", "partition", "phase", "dataset", "usage", "fold"})
# Columns that say where a row belongs, even where their cells name no part.
_FOLD_COLUMNS: Final = frozenset({"fold", "folds", "kfold", "k_fold", "cv_fold", "split", "partition"})
_PEOPLE: Final = frozenset(
    {"patient", "subject", "person", "participant", "individual", "volunteer", "donor", "driver", "speaker", "user"}
)
_BOX_COLUMNS: Final = (
    frozenset({"xmin", "ymin", "xmax", "ymax"}),
    frozenset({"x1", "y1", "x2", "y2"}),
    frozenset({"left", "top", "right", "bottom"}),
    frozenset({"x", "y", "w", "h"}),
    frozenset({"x", "y", "width", "height"}),
    frozenset({"bbox"}),
)
_HELD_OUT_COLUMNS: Final = frozenset({"is_valid", "is_val", "is_validation"})


@dataclass(frozen=True, slots=True)
class ImageColumn:
    """The column of file names, the `root` they are relative to, and how many of the `tried` files were `found`."""

    name: str
    root: Path
    found: int
    tried: int


def survey_table(path: Path, choices: StarterChoices | None = None) -> DataSurvey:
    """Returns the streams that a table makes. Raises ConfigError, also if no column names images."""
    chosen = choices or StarterChoices()
    table = columns.read_table_header(path, PATH_KEY, encoding=chosen.encoding)
    # A first line that names a picture that is there is a row, and no header.
    for name in table.column_names:
        if name.lower().endswith(_SUFFIX_ENDS) and _find_root(path, [os.fsencode(name)])[1]:
            raise ConfigError(
                f"{PATH_KEY}: the first line of {format_path(path)} names the picture {name!r}, so the table has no "
                "column names: write them above that line, such as  file,label"
            )
    counts = Counter(table.column_names)
    names = [name for name in table.column_names if counts[name] == 1 and name and name not in table.picture_columns]
    strange = next((name for name in chosen.labels if name not in names), None)
    if strange is not None:
        raise ConfigError(
            f"--label: {format_path(path)} has no column {strange!r}; its columns are: "
            f"{format_list(names, _SHOWN_COLUMNS)}{suggest_name(strange, names)}"
        )
    asked = [columns.ColumnRequest(name, PATH_KEY, PATH_KEY) for name in names]
    with raise_collected_faults() as faults:
        by_name = {ask.column: column for ask, column in read_requested_columns(table, asked, faults).items()}
    # All columns are read as texts but those of lists and the like, whose guess says what they hold.
    texts: dict[str, Texts] = {}
    for name, column in by_name.items():
        if not cells.has_lists(column):
            with suppress(ConfigError):
                texts[name] = cells.convert_to_texts(column)
    try:
        image, others = find_image_columns(path, texts, chosen.root)
    except ConfigError as error:
        if table.picture_columns:
            raise columns.build_picture_column_error(path, min(table.picture_columns), PATH_KEY) from error
        raise
    parts = find_parts({name: each for name, each in texts.items() if name not in {image.name, *chosen.labels}})
    left_out = {name: "two columns have this name" for name, count in counts.items() if count > 1 and name}
    left_out |= dict.fromkeys(others, f"names images, as {image.name} does")
    left_out |= dict.fromkeys(table.picture_columns, "holds pictures")
    if parts is not None:
        left_out[parts.column] = "says which rows are train and validation"
    guesses = {
        name: _guess_column(name, column, texts, chosen.labels, has_parts=parts is not None)
        for name, column in by_name.items()
        if name != image.name and name not in left_out
    }
    left_out |= {name: guess.left_out for name, guess in guesses.items() if guess.type is None}
    labels = {name: guess.type for name, guess in guesses.items() if guess.type is not None}
    for name in chosen.labels:
        if why := "names the pictures" if name == image.name else left_out.get(name):
            raise ConfigError(f"--label: column {name!r} of {format_path(path)} can be no label: {why}")
    source: Settings = {"path": str(path), "image": image.name}
    if image.root != path.parent:
        source["root"] = str(image.root)
    if chosen.encoding is not None:
        source["encoding"] = chosen.encoding
    where = {} if parts is None else {name: {"where": {parts.column: value}} for name, value in parts.values.items()}
    sources = build_part_sources({name: {**source, **keys} for name, keys in (where or {TRAIN: {}}).items()})
    is_small = len(texts[image.name]) < SMALL_SAMPLES
    nothing_there = (
        f"none of {format_count(image.tried, 'file')} that column {image.name} names is in {image.root} or near it: "
        "give their folder with --root"
    )
    notes = (
        *(() if image.found else (nothing_there,)),
        *(f"column {name} {guess.note}" for name, guess in guesses.items() if guess.note),
        *_build_repetition_notes(path, texts, image.name, names, labels),
    )
    # In the order of the table; a column without a name is the index of a data frame, and comes first.
    if counts[""]:
        left_out = {"without a name": "a data frame saves its index so"} | left_out
    in_order = {name: left_out[name] for name in ("without a name", *table.column_names) if name in left_out}
    return DataSurvey(path, "table", sources, is_small, labels, left_out=in_order, notes=notes)


def _simplify_name(name: str) -> str:
    return name.casefold().replace(" ", "_")


def _build_repetition_notes(
    path: Path, texts: Mapping[str, Texts], image: str, names: Sequence[str], labels: Mapping[str, str]
) -> Iterator[str]:
    """Yields what to know where several rows name one picture. Raises ConfigError where each row is a box."""
    _, files = cells.encode_distinct_texts(texts[image])
    pictures = int(files.max(initial=-1)) + 1
    if pictures == len(files):
        return
    boxes = {name: re.sub(r"bbox_|box_|[_ .-]", "", name.casefold()) for name in names}
    if found := next((form for form in _BOX_COLUMNS if form <= {*boxes.values()}), None):
        shown = ", ".join(name for name, plain in boxes.items() if plain in found)
        raise ConfigError(
            f"{PATH_KEY}: {format_path(path)} has several rows for one picture, each with a box in {shown}: "
            f"{len(files):,} rows for {format_count(pictures, 'picture')}; boxes are taken from one cell a picture: "
            "write one row a picture, with a column of lists [[x0, y0, x1, y1, class], ...] (docs/boxes.md)"
        )
    differ = []
    for name in labels.keys() & texts.keys():
        _, values = cells.encode_distinct_texts(texts[name])
        if np.unique(files * (int(values.max()) + 1) + values).size > pictures:
            differ.append(name)
    rows = format_count(len(files) - pictures, "row names a picture", "rows name a picture")
    if differ:
        shown = ", ".join(sorted(differ))
        yield (
            f"{rows} that an earlier row names, with different values of {shown}: each row is a sample of its own; if "
            "a picture has several classes, write one row with all of them and type tags"
        )
    else:
        yield f"{rows} that is already in the list: each row is a sample of its own"


def _guess_column(
    name: str, column: Column, texts: Mapping[str, Texts], chosen: Collection[str], *, has_parts: bool
) -> LabelGuess:
    """Returns what the column is as a label: by its name, if nobody has named labels, and then by its cells."""
    is_chosen = name in chosen
    if chosen and not is_chosen:
        return LabelGuess(None, "is not named by --label")
    if not is_chosen and _simplify_name(name) in _FOLD_COLUMNS | _HELD_OUT_COLUMNS:
        how = "" if has_parts else f"; source: {{where: {{{name}: VALUE}}}} takes the rows of one"
        return LabelGuess(None, f"says which part of the data a row belongs to{how}")
    if not is_chosen and not _PEOPLE.isdisjoint(split_words(name)):
        how = "" if has_parts else f": split: {{validation: 0.2, by: {name}}} keeps the rows of each in one part"
        return LabelGuess(None, f"says whom a row is of{how}; --label {name} makes it a label")
    if name in texts:
        may_have_commas = column.decimal_mark in {",", "either"}
        plain = cells.replace_decimal_commas(texts[name]) if may_have_commas else texts[name]
        return guess_label_type(name, plain, is_chosen=is_chosen)
    if not cells.has_lists(column):
        return LabelGuess(None, f"holds {column.cells.type}")
    kind = column.cells.type.value_type
    if cells.is_text_type(kind):
        return LabelGuess("tags")
    try:
        compute_vector_width([column])
        cells.convert_to_numbers(cells.flatten_lists(column)[0], "float")
    except ConfigError:
        return LabelGuess(None, "holds lists of different lengths, or lists that are not numbers")
    return LabelGuess("float")


# --- the images


def find_image_columns(
    path: Path, texts: Mapping[str, Texts], root: Path | None = None
) -> tuple[ImageColumn, list[str]]:
    """Returns the column that names images, the one with the most files found, and the names of other such columns.

    Files are looked for below `root`, if that is given. Raises ConfigError if there is none.
    """
    found: list[ImageColumn] = []
    for name, column in texts.items():
        # It names images if its cells name existing files, or if all of them have the suffix of an image.
        names = _spread_names(column)
        suffixed = pc.match_substring_regex(pc.utf8_lower(column), f"({_SUFFIX_PATTERN})$")
        has_suffixes = bool(pc.all(suffixed).as_py())
        if not names or not (has_suffixes or any(b"/" in each or b"." in each for each in names)):
            continue
        place, count = _find_root(path, names) if root is None else (root, _count_files(root, names))
        # Without suffixes of images, a few cells may name existing files by chance, so all that were tried must.
        if has_suffixes or (count and count == len(names)):
            found.append(ImageColumn(name, place, count, len(names)))
    if not found:
        shown = ", ".join(list(texts)[:_SHOWN_COLUMNS]) + (", ..." if len(texts) > _SHOWN_COLUMNS else "")
        remedy = (
            "write the path of each image, with its suffix, into a column; the path is relative to the table's folder "
            "or to the parent of that folder"
        )
        # A column may name files without their suffixes.
        for (name, column), suffix in product(texts.items(), IMAGE_SUFFIXES):
            names = [each + suffix for each in _spread_names(column)]
            place, count = _find_root(path, names)
            if count and count == len(names):
                added = f"with {suffix.decode()} added, column {name!r} names files in {format_path(place)}"
                remedy = f"{added}: add it"
                break
        raise ConfigError(
            f"{PATH_KEY}: no column of {format_path(path)} names images; its columns are: {shown}; {remedy}"
        )
    best = max(found, key=lambda each: each.found)
    return best, [each.name for each in found if each is not best]


def _spread_names(texts: Texts) -> list[bytes]:
    rows = np.unique(np.linspace(0, len(texts) - 1, min(_TRIED_FILES, len(texts))).astype(np.int64))
    cut = [texts[int(row)].as_py().replace("\\", "/") for row in rows]
    return [os.fsencode(name) for name in cut if name]


def _find_root(path: Path, names: list[bytes]) -> tuple[Path, int]:
    """Returns the folder below which most files exist, the nearest first, and their number.

    For absolute names this is the folder that all of them lie in.
    """
    if all(name.startswith(b"/") for name in names):
        root = Path(os.fsdecode(os.path.commonpath([os.path.dirname(name) for name in names])))  # noqa: PTH120 - names are bytes
        return root, _count_files(root, names)
    best, most = path.parent, 0
    for place in iterate_likely_roots(path.parent, path.parent):
        found = _count_files(place, names)
        if found > most:
            best, most = place, found
        if most == len(names):
            break
    return best, most


def _count_files(root: Path, names: Sequence[bytes]) -> int:
    return sum(is_file_beneath(root, name) for name in names)


# --- the parts


@dataclass(frozen=True, slots=True)
class TableParts:
    """The `column` that names the part of each row, and its value for each stream."""

    column: str
    values: Mapping[str, Scalar]


def find_parts(texts: Mapping[str, Texts]) -> TableParts | None:
    """Returns the column each of whose cells names a part of the data, train among them; None if there is none."""
    truths = {word: truth for truth, words in columns.BOOLEAN_WORDS.items() for word in words}
    for name, column in texts.items():
        small = _simplify_name(name)
        if small not in _PART_COLUMNS | _HELD_OUT_COLUMNS:
            continue
        levels: list[str] = pc.unique(column).to_pylist()
        # Whether a row is held out, in words for yes and no.
        if small in _HELD_OUT_COLUMNS:
            if {truths.get(level.casefold()) for level in levels} == {False, True}:
                return TableParts(name, {TRAIN: False, VALIDATION: True})
            continue
        # Standard case: each cell names a part, and no two words mean one.
        words = {PART_OF_WORD.get(level.casefold()): level for level in levels}
        if None not in words and len(words) == len(levels) > 1 and TRAIN in words:
            return TableParts(name, {part: words[part] for part in (TRAIN, VALIDATION, TEST) if part in words})
    return None


# --- labels beside the images of the first shard: classes, numbers and texts


_READ_SAMPLES: Final = 2000  # of the first shard: the types of labels are guessed from these
_MAX_LABEL_BYTES: Final = 1 << 16  # a larger file beside an image is no label
_JSON: Final = "json"
_TEXT: Final = "txt"


def survey_shards(path: Path, folders: Mapping[str, Path], notes: Sequence[str] = ()) -> DataSurvey:
    """Returns the streams that tars at `path` make: `folders` has the tar, or the folder of tars, of each.

    The labels are those that stand beside the images of the first shard of train. Raises ConfigError.
    """
    files = patterns.find_files(str(folders[TRAIN]), PATH_KEY, (), lambda _: None, patterns.TAR_FILES)
    first = files.file_path(0)
    labels: dict[str, object] = {}
    left_out: dict[str, str] = {}
    found = [*notes]
    with translate_read_errors(first, PATH_KEY), first.open("rb", buffering=0) as file:
        shard = read_shard(files.names[0], file.fileno(), int(files.sizes[0]), PATH_KEY, lambda _: None)
        # Only a file that stands beside every image can be a label.
        complete = {suffix: files for suffix, files in shard.other_files.items() if shard.images.keys() <= files.keys()}
        has_classes = bool(shard.images and find_default_labels(shard))
        if has_classes:
            others = ", ".join(f".{suffix.decode(errors='replace')}" for suffix in complete if suffix != b"cls")
            if others:
                take = "labels: {name: {from: json:FIELD, type: float}} takes a field"
                found.append(f"next to the images are {others}: {take}")
        else:
            for name, source, texts in _iterate_fields(shard, complete):
                guess = guess_label_type(name, pa.array(texts, pa.large_string()))
                if guess.type is None:
                    left_out[source] = guess.left_out
                else:
                    labels[name] = {"from": source, "type": guess.type}
            if labels:
                found.append(f"the labels and their types were guessed from {format_path(shard.name)} alone")
    return DataSurvey(
        path,
        "tar",
        build_part_sources({name: {"path": str(folder)} for name, folder in folders.items()}),
        is_small=len(shard.images) < SMALL_SAMPLES,
        labels=None if has_classes else labels,
        left_out=left_out,
        notes=tuple(found),
    )


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
