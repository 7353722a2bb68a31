"""A cell means the same in every source: a table of texts, as they stand in files of people, and what they are."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.source_configs import Filelist, Hdf5, Label, Npy, Table, Tar, bits, scanned
from support.tar_shards import pack

from streamd.dataset.sources import DataSource
from streamd.errors import ConfigError

Writer = Callable[[Path, Sequence[str]], DataSource]


def written_table(name: str, separator: str) -> Writer:
    def write(folder: Path, cells: Sequence[str]) -> DataSource:
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, delimiter=separator).writerows([("file", "y"), *(("a.png", cell) for cell in cells)])
        return Table(folder / name)

    return write


def written_parquet(folder: Path, cells: Sequence[str]) -> DataSource:
    pq.write_table(pa.table({"file": ["a.png"] * len(cells), "y": list(cells)}), folder / "t.parquet")
    return Table(folder / "t.parquet")


def written_list(folder: Path, cells: Sequence[str]) -> DataSource:
    (folder / "list.txt").write_text("".join(f"a.png\t{cell}\n" for cell in cells))
    return Filelist(folder / "list.txt")


def written_shard(suffix: str, encode: Callable[[str], bytes]) -> Writer:
    def write(folder: Path, cells: Sequence[str]) -> DataSource:
        beside = {f"{number}.{suffix}": encode(cell) for number, cell in enumerate(cells)}
        return Tar(str(pack(folder / "s.tar", {f"{number}.png": b"" for number in range(len(cells))} | beside)))

    return write


def written_npy(folder: Path, cells: Sequence[str]) -> DataSource:
    np.save(folder / "x.npy", np.zeros((len(cells), 2, 2, 3), np.uint8))
    np.save(folder / "y.npy", np.array(cells))
    return Npy(str(folder / "x.npy"))


def written_hdf5(folder: Path, cells: Sequence[str]) -> DataSource:
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.zeros((len(cells), 2, 2, 3), np.uint8)
        file["y"] = np.array(cells, h5py.string_dtype())
    return Hdf5(folder / "x.h5")


WRITERS: Mapping[str, Writer] = {
    "csv": written_table("t.csv", ","),
    "tsv": written_table("t.tsv", "\t"),
    "parquet": written_parquet,
    "list": written_list,
    "tar": written_shard("y", str.encode),
    "json": written_shard("json", lambda cell: json.dumps({"y": cell, "unread": float("nan")}).encode()),
    "npy": written_npy,
    "hdf5": written_hdf5,
}
EVERY = " ".join(WRITERS)
WITHOUT_DECIMAL_KEY = "parquet tar json npy hdf5"


def read(folder: Path, kind: str, cells: Sequence[str], type_: str) -> object:
    """What the label `y` of a source holds: classes and numbers, the tags of each row, or numbers."""
    (folder / "a.png").write_bytes(b"x")
    source = WRITERS[kind](folder, cells)
    places: dict[str, str | Path] = {"json": "json:y", "npy": folder / "y.npy", "hdf5": "/y"}
    found = scanned(source, y=Label(type_, places.get(kind)))
    spec, values = found.specs["y"], found.labels["y"]
    if type_ == "tags":
        return [[spec.classes[tag] for tag in np.flatnonzero(row)] for row in bits(values, spec.width)]
    return (list(spec.classes), values.tolist()) if type_ == "category" else values.tolist()


TAGGED = [["cat", "dog"], ["dog"], []]
MISSING = r"which stands for a missing value in a column of numbers.*; add the value"
MEANINGS: list[tuple[list[str], str, str, object]] = [
    # Lists, as Python, JSON, NumPy and PostgreSQL write them.
    (["['cat', 'dog']", "['dog']", "[]"], "tags", EVERY, TAGGED),
    (['["cat", "dog"]', '["dog"]', "[]"], "tags", EVERY, TAGGED),
    (["['cat' 'dog']", "['dog']", "[]"], "tags", EVERY, TAGGED),
    (["{cat,dog}", "{dog}", "{}"], "tags", EVERY, TAGGED),
    (["('cat', 'dog')", "('dog',)", ""], "tags", "csv tsv parquet tar json npy hdf5", TAGGED),
    (['["caf\\u00e9 noir"]', '["it\'s", "x"]'], "tags", EVERY, [["café noir"], ["it's", "x"]]),
    (["['cat', nan]", "[None]"], "tags", EVERY, [["cat"], []]),
    (["[3, 17]", "[3]"], "tags", EVERY, [[3, 17], [3]]),
    (["[0 1]", "[1 1]"], "tags", EVERY, [[1], [0, 1]]),
    (["(0, 1)", "(1, 1)"], "tags", EVERY, [[1], [0, 1]]),
    (["['cat']", "dog"], "tags", EVERY, r"holds 'dog', which is not a list such as"),
    (["[['cat']]", "[]"], "tags", EVERY, r"\[\['cat'\]\].*which is not a list"),
    (["array(['cat'])", "array([])"], "tags", EVERY, "which is not a list"),
    (["['cat', 'dog']", "['dog']"], "category", EVERY, r"\['cat', 'dog'\].*a list in brackets"),
    (["[UNK]", "(it's new)"], "category", EVERY, (["(it's new)", "[UNK]"], [1, 0])),
    # Words for a missing value.
    *((["0", "1", word], kind, EVERY, MISSING) for kind in ("category", "int") for word in ("nan", "N/A", "?")),
    *((["0.5", "1", word], "float", EVERY, MISSING) for word in ("NaN", "NULL", "<NA>")),
    (["1|2", "3|none"], "tags", EVERY, MISSING),
    (["sunny", "None"], "category", EVERY, (["None", "sunny"], [1, 0])),
    # Names among numbers leave these in their order.
    (["10", "9", "unknown"], "category", EVERY, (["9", "10", "unknown"], [1, 0, 2])),
    (["0", "1", "(none)"], "category", EVERY, (["0", "1", "(none)"], [0, 1, 2])),
    (["0.5", "1", "1.5", "2"], "category", EVERY, (["0.5", "1", "1.5", "2"], [0, 1, 2, 3])),
    (["2CV", "500"], "category", EVERY, (["2CV", "500"], [0, 1])),
    # Numbers in other notations.
    (["0,5", "1,25", "-0,75"], "float", "tsv list", [0.5, 1.25, -0.75]),
    (["0,5", "1,25"], "float", "csv", "add decimal: ','"),
    (["0,5", "1,25"], "float", WITHOUT_DECIMAL_KEY, "which is not a number.*write it with a point"),
    (["1,234", "950"], "int", "tsv list", "may be a decimal comma or a thousands separator"),
    (["1,234", "5,678"], "float", "list", "may be a decimal comma or separate two numbers.* decimal: '.' for two"),
    (["1 000", "12 500"], "int", "list", "whose blank seems to mark thousands"),
    (["1e3", "+5", "007", "3."], "int", EVERY, [1000, 5, 7, 3]),
    *((["1", each], "int", EVERY, f"{each}.*not a.* number") for each in ("0x1F", "1_000", "٣", "50%", "\u22125")),
    (["1", "inf"], "float", EVERY, "not a finite number"),
    # Whole numbers that float64 does not hold.
    (["9007199254740993", "1e3"], "int", EVERY, [9007199254740993, 1000]),
    (["9223372036854775808", "1"], "int", EVERY, "holds 9223372036854775808, which is not .* int64 can hold"),
    (["9007199254740993.5", "1"], "int", EVERY, "holds 9007199254740993.5, which is not a whole number"),
    (["18446744073709551616", "9" * 19], "category", EVERY, (["9" * 19, "18446744073709551616"], [1, 0])),
    # What does not show.
    ([" a\u00a0", "\ufeffa", "a\u3000"], "category", EVERY, (["a"], [0, 0, 0])),
    (["a\0b", "c"], "category", "csv tsv parquet list tar json npy", "a text with a NUL in it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "type_", "kinds", "meaning"), MEANINGS, ids=[f"{type_} {cells}" for cells, type_, *_ in MEANINGS]
)
def test_a_cell_means_the_same_in_tables_lists_and_json(
    tmp_path: Path, cells: list[str], type_: str, kinds: str, meaning: object
) -> None:
    check_meaning(tmp_path, cells, type_, [kind for kind in kinds.split() if kind in {"csv", "list", "json"}], meaning)


@pytest.mark.long
@pytest.mark.parametrize(
    ("cells", "type_", "kinds", "meaning"), MEANINGS, ids=[f"{type_} {cells}" for cells, type_, *_ in MEANINGS]
)
def test_a_cell_means_the_same_in_every_source(
    tmp_path: Path, cells: list[str], type_: str, kinds: str, meaning: object
) -> None:
    check_meaning(tmp_path, cells, type_, kinds.split(), meaning)


def check_meaning(tmp_path: Path, cells: list[str], type_: str, kinds: Sequence[str], meaning: object) -> None:
    for kind in kinds:
        if isinstance(meaning, str):
            with pytest.raises(ConfigError, match=meaning):
                read(tmp_path, kind, cells, type_)
        else:
            assert read(tmp_path, kind, cells, type_) == meaning, kind
