"""Weights of samples, from a column or a file of any source; they are not a label, and not all zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.lmdb_files import write_lmdb
from support.source_configs import Filelist, Folder, Hdf5, Label, Lmdb, Npy, Split, Stream, Table, Tar, put
from support.tar_shards import pack

from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.scan import scan_source, select_part_samples
from streamd.dataset.sources import DataSource
from streamd.errors import ConfigError


@pytest.fixture
def table(tmp_path: Path) -> Table:
    put(tmp_path, "a.jpg")
    (tmp_path / "t.csv").write_text("file,kind,w\na.jpg,dog,0.5\na.jpg,cat,0\na.jpg,cat,3\n")
    return Table(tmp_path / "t.csv")


def scanned_with_weights(
    source: DataSource, weights: str | Path, labels: Mapping[str, Label] | None = None
) -> ScannedSamples:
    return scan_source(Stream(source, labels, weights=Label("weight", weights)), lambda _: None)


def saved_weights(folder: Path, values: object) -> Path:
    np.save(folder / "w.npy", np.array(values))
    return folder / "w.npy"


def test_weights_from_a_column_are_not_a_label(table: Table) -> None:
    found = scanned_with_weights(table, "w", {"kind": Label()})
    assert found.weights is not None
    assert (found.weights.dtype.name, found.weights.tolist()) == ("float32", [0.5, 0, 3])
    assert list(found.labels) == list(found.specs) == ["kind"]


def test_weights_from_a_file_apply_to_any_source(table: Table, tmp_path: Path) -> None:
    file = saved_weights(tmp_path, [1, 0.25, 2])
    (tmp_path / "l.txt").write_text("a.jpg dog\n" * 3)
    put(tmp_path / "data", "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    np.save(tmp_path / "x.npy", np.zeros((3, 2, 2), np.uint8))
    sources: list[DataSource] = [
        table,
        Filelist(tmp_path / "l.txt"),
        Folder(tmp_path / "data"),
        Npy(str(tmp_path / "x.npy")),
    ]
    found = [scanned_with_weights(source, file) for source in sources]
    assert [None if each.weights is None else each.weights.tolist() for each in found] == [[1, 0.25, 2]] * 4
    assert [list(each.labels) for each in found] == [[], ["label"], ["label"], []]
    assert [list(scanned_with_weights(source, file, {}).labels) for source in sources] == [[]] * 4


def test_weights_may_come_from_an_array_or_field_of_the_source(tmp_path: Path) -> None:
    pixels, weights = np.zeros((3, 4, 5, 3), np.uint8), np.array([1, 0.25, 2])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["w"] = pixels, weights.reshape(3, 1)
    path = write_lmdb(
        tmp_path / "x.lmdb", [{"X": image, "w": weight} for image, weight in zip(pixels, weights, strict=True)]
    )
    fields = {
        f"{row}.{kind}": data for row in range(3) for kind, data in (("jpg", b"x"), ("txt", b"%g" % weights[row]))
    }
    cases: list[tuple[DataSource, str]] = [
        (Hdf5(tmp_path / "x.h5"), "/w"),
        (Lmdb(path), "w"),
        (Tar(str(pack(tmp_path / "x.tar", fields))), "txt"),
    ]
    beside = {"y": Label("category", saved_weights(tmp_path, np.eye(3)))}
    for source, name in cases:
        found = scanned_with_weights(source, name, beside)
        assert found.weights is not None
        assert (found.weights.tolist(), list(found.labels)) == ([1, 0.25, 2], ["y"])


def test_a_tar_reads_weights_with_labels_that_are_named(tmp_path: Path) -> None:
    shard = pack(tmp_path / "x.tar", {"1.jpg": b"x", "1.txt": b"1"})
    assert scanned_with_weights(Tar(str(shard)), "txt", {}).weights is not None
    with pytest.raises(
        ConfigError,
        match=r"weights: the weights of kind tar are read with its labels, .* add labels, or write labels: \{\}",
    ):
        scanned_with_weights(Tar(str(shard)), "txt")


def test_conditions_select_weights_with_their_rows(table: Table, tmp_path: Path) -> None:
    some = replace(table, where={"kind": "cat"})
    for weights in ("w", saved_weights(tmp_path, [0.5, 0, 3])):
        found = scanned_with_weights(some, weights)
        assert found.weights is not None
        assert found.weights.tolist() == [0, 3]


def test_a_stream_without_the_key_has_no_weights(table: Table) -> None:
    assert scan_source(Stream(table, {"w": Label("float")}), lambda _: None).weights is None


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, np.nan, 0], "streams.train.weights: w.npy[1] holds nan, which is not a finite number"),
        ([1, np.inf, 0], "streams.train.weights: w.npy[1] holds inf, which is not a finite number"),
        ([1, 0, -0.5], "streams.train.weights: w.npy[2] holds -0.5; the weight of a sample must be 0 or more"),
        ([1, 0], "streams.train.weights.from: 'w.npy' has 2 rows, but there are 3 images"),
        (["a", "b", "c"], "streams.train.weights: w.npy[0]: the array holds 'a', which is not a number"),
        ([[1, 2]] * 3, "streams.train.weights.from: several numbers per row make a vector"),
    ],
)
def test_an_invalid_weight_is_refused_by_its_row(table: Table, tmp_path: Path, values: object, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scanned_with_weights(table, saved_weights(tmp_path, values))
    assert told in str(caught.value).replace(f"{tmp_path}/", "")


def test_a_bad_weight_of_a_table_is_named_by_its_line(table: Table) -> None:
    table.path.write_text("file,w\na.jpg,1\na.jpg,\n")
    with pytest.raises(ConfigError, match=r"streams\.train\.weights: t\.csv, line 3: column 'w' has no value"):
        scanned_with_weights(table, "w")
    with pytest.raises(ConfigError, match=r"streams\.train\.weights\.from: .* has no column 'v'"):
        scanned_with_weights(table, "v")


def test_a_source_without_columns_asks_for_a_file(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    with pytest.raises(ConfigError, match=r"streams\.train\.weights: a folder has no column 'w'; .*weights: FILE\.npy"):
        scanned_with_weights(Folder(tmp_path), "w")


def test_a_part_whose_weights_are_all_zero_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "data", *(f"{number}.jpg" for number in range(10)))
    split = Split(0.5)
    folder = Folder(tmp_path / "data", part="validation")
    held_out = select_part_samples(Stream(folder, split=split), scan_source(Stream(folder), lambda _: None)).files
    weights = [0.0 if f"{number}.jpg".encode() in held_out else 2.0 for number in range(10)]
    stream = Stream(folder, weights=Label("weight", saved_weights(tmp_path, weights)), split=split)
    whole = scan_source(stream, lambda _: None)
    with pytest.raises(ConfigError, match=r"weights: all \d samples weigh 0, so nothing would be learnt"):
        select_part_samples(stream, whole)
    train = select_part_samples(replace(stream, source=replace(folder, part="train")), whole)
    assert train.weights is not None
    assert set(train.weights.tolist()) == {2.0}
