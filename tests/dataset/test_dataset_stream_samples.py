"""The part of a sample follows from its own name or group alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.source_configs import Filelist, Folder, Hdf5, Label, Lmdb, Split, Table, bits, part_of, put, scanned

from streamd.dataset.scan import find_validation_samples
from streamd.dataset.sources import Part
from streamd.errors import ConfigError

NAMES = [b"cat/%04d.jpg" % number for number in range(2000)]


def folder_of(tmp_path: Path, count: int = 40) -> Path:
    put(tmp_path / "data", *(f"{name}/{number:02}.jpg" for name in ("cat", "dog") for number in range(count // 2)))
    return tmp_path / "data"


def test_the_split_of_given_names_is_pinned() -> None:
    assert np.flatnonzero(find_validation_samples(NAMES[:40], Split(0.2))).tolist() == [1, 21, 23, 28, 38]
    assert np.flatnonzero(find_validation_samples(NAMES[:40], Split(0.2, seed=1))).tolist() == [0, 3, 4, 34]


def test_the_validation_part_is_about_as_large_as_its_fraction() -> None:
    for fraction in (0.05, 0.2, 0.7):
        held_out = find_validation_samples(NAMES, Split(fraction)).mean()
        assert abs(held_out - fraction) < 4 * (fraction * (1 - fraction) / len(NAMES)) ** 0.5
    assert find_validation_samples(NAMES, Split(1.0)).all()


@given(st.lists(st.binary(max_size=12)), st.binary(max_size=12), st.floats(0.01, 1), st.integers(0, 2**63 - 1))
def test_the_part_of_a_name_does_not_depend_on_other_names(
    others: list[bytes], name: bytes, fraction: float, seed: int
) -> None:
    split = Split(fraction, seed)
    assert find_validation_samples([*others, name], split)[-1] == find_validation_samples([name], split)[0]


def test_a_larger_fraction_only_adds_validation_samples() -> None:
    small, large = find_validation_samples(NAMES, Split(0.1)), find_validation_samples(NAMES, Split(0.3))
    assert (large | ~small).all()
    assert large.sum() > small.sum()


def sides(source: Folder | Table | Filelist, split: Split, **labels: Label) -> tuple[list[bytes], list[bytes]]:
    parts = (part_of(replace(source, part=part), split, **labels) for part in ("train", "validation"))
    train, validation = (list(part.files) for part in parts)
    return train, validation


def test_the_parts_of_a_folder_are_disjoint_and_complete_and_in_its_order(tmp_path: Path) -> None:
    data = folder_of(tmp_path)
    train, validation = sides(Folder(data), Split(0.3))
    assert sorted(train + validation) == scanned(Folder(data)).files
    assert (train, validation) == (sorted(train), sorted(validation))
    assert 0 < len(validation) < len(train)
    assert part_of(Folder(data, part="all"), Split(0.3)).files == scanned(Folder(data)).files


def test_added_files_and_a_moved_root_change_no_part(tmp_path: Path) -> None:
    data = folder_of(tmp_path)
    _, before = sides(Folder(data), Split(0.3))
    put(data, *(f"cat/new-{number}.jpg" for number in range(20)), "ant/1.jpg")
    moved = data.rename(tmp_path / "moved")
    _, after = sides(Folder(moved), Split(0.3))
    assert [name for name in after if b"new" not in name and not name.startswith(b"ant")] == before


def test_a_folder_a_table_and_a_list_agree_on_the_parts(tmp_path: Path) -> None:
    data = folder_of(tmp_path)
    names = [name.decode() for name in scanned(Folder(data)).files]
    (tmp_path / "all.csv").write_text("\n".join(["file", *names]))
    (tmp_path / "list.txt").write_text("\n".join(f"{data}/./{name} 1" for name in names))
    expected = sides(Folder(data), Split(0.3))
    assert sides(Table(tmp_path / "all.csv", root=data), Split(0.3)) == expected
    assert sides(Filelist(tmp_path / "list.txt", root=data), Split(0.3)) == expected


def test_a_file_that_is_listed_twice_is_in_one_part_however_it_is_named(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.jpg" for number in range(20)))
    (tmp_path / "alias").symlink_to(".")
    names = [name for number in range(20) for name in (f"{number}.jpg", f"alias/{number}.jpg", f"./{number}.jpg")]
    (tmp_path / "list.txt").write_text("\n".join(names))
    train, validation = sides(Filelist(tmp_path / "list.txt"), Split(0.4))
    assert {*train} & {*validation} == set()
    assert (len(train) % 3, len(validation) % 3) == (0, 0)


def test_classes_are_those_of_all_parts_and_counts_those_of_one(tmp_path: Path) -> None:
    put(tmp_path, *(f"cat/{number}.jpg" for number in range(30)), "owl/only.jpg")
    found = [part_of(Folder(tmp_path, part=part), Split(0.2)) for part in ("train", "validation")]
    assert [part.specs["label"].classes for part in found] == [("cat", "owl")] * 2
    counts = np.array([part.specs["label"].counts for part in found])
    assert counts.sum(axis=0).tolist() == [30, 1]
    assert 0 in counts[:, 1]
    for part in found:
        assert np.bincount(part.labels["label"], minlength=2).tolist() == list(part.specs["label"].counts)


def test_labels_of_every_type_go_with_their_samples(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.jpg" for number in range(30)))
    rows = "".join(f"{number}.jpg,{number},t{number % 3},{number}.0,s{number}\n" for number in range(30))
    (tmp_path / "all.csv").write_text(f"file,n,tags,x,text\n{rows}")
    labels = {
        "n": Label("int"), "tags": Label("tags"), "xy": Label("float", ("x", "n")), "text": Label("string"),
    }  # fmt: skip
    part = part_of(Table(tmp_path / "all.csv", part="validation"), Split(0.3), **labels)
    numbers = [int(name.partition(b".")[0]) for name in part.files]
    assert part.labels["n"].tolist() == numbers
    assert part.labels["xy"].tolist() == [[number, number] for number in numbers]
    assert part.labels["text"].tolist() == [b"s%d" % number for number in numbers]
    tags = np.array(bits(part.labels["tags"], 3))
    assert tags.argmax(axis=1).tolist() == [number % 3 for number in numbers]
    assert part.specs["tags"].counts == tuple(tags.sum(axis=0).tolist())
    assert part.specs["n"].mean == np.mean(numbers)
    assert part.sizes.tolist() == [len(name) for name in part.files]


def test_all_rows_of_a_group_are_in_one_part(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.jpg" for number in range(60)))
    rows = "".join(f"{number}.jpg,driver {number % 12}\n" for number in range(60))
    (tmp_path / "all.csv").write_text(f"file,driver\n{rows}")
    train, validation = sides(Table(tmp_path / "all.csv"), Split(0.3, by="driver"))
    drivers = [{int(name.partition(b".")[0]) % 12 for name in part} for part in (train, validation)]
    assert len(train) + len(validation) == 60
    assert drivers[0] & drivers[1] == set()
    assert len(drivers[0] | drivers[1]) == 12


def test_a_group_column_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    (tmp_path / "all.csv").write_text("file,driver\na.jpg,\n")
    source = Table(tmp_path / "all.csv", part="train")
    with pytest.raises(
        ConfigError, match=r"split\.by: .*no column 'drvr'; its columns are: file, driver; did you mean 'driver'"
    ):
        part_of(source, Split(by="drvr"))
    with pytest.raises(ConfigError, match=r"split\.by: all\.csv, line 2: column 'driver' has no value"):
        part_of(source, Split(by="driver"))
    assert part_of(replace(source, part="all"), Split(by="drvr")).files == [b"a.jpg"]


@pytest.mark.parametrize("source", [Folder(Path("d"), "train"), Filelist(Path("l"), part="train")], ids=str)
def test_folders_and_lists_have_no_column_to_split_by(source: Folder | Filelist) -> None:
    with pytest.raises(ConfigError, match=rf"split\.by: a {source.kind} has no column 'driver'; leave `by` out"):
        part_of(source, Split(by="driver"))


@pytest.mark.parametrize("source", [Hdf5(Path("x.h5"), part="train"), Lmdb(Path("d"), part="train")], ids=str)
def test_splitting_rows_of_one_file_by_an_array_is_refused_with_the_remedy(source: Hdf5 | Lmdb) -> None:
    says = rf"split\.by: rows of {source.kind} are split one by one, not by an array such as 'driver'; leave"
    with pytest.raises(ConfigError, match=says):
        part_of(source, Split(by="driver"))


@pytest.mark.parametrize(("part", "fraction", "remedy"), [("validation", 1e-9, "larger"), ("train", 1.0, "smaller")])
def test_an_empty_part_is_refused_with_the_number_of_samples_and_the_remedy(
    tmp_path: Path, part: Part, fraction: float, remedy: str
) -> None:
    data = folder_of(tmp_path)
    says = rf"source\.part: none of 40 samples falls into part {part} of .*seed: 0}}; choose a {remedy} fraction"
    with pytest.raises(ConfigError, match=says):
        part_of(Folder(data, part), Split(fraction))


def test_an_empty_part_of_groups_says_how_many_groups(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    (tmp_path / "all.csv").write_text("file,driver\na.jpg,x\na.jpg,x\n")
    with pytest.raises(ConfigError, match="none of 2 samples in 1 groups of column 'driver' falls into part train"):
        part_of(Table(tmp_path / "all.csv", part="train"), Split(1.0, by="driver"))


def test_a_split_without_a_part_serves_all_samples_and_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = folder_of(tmp_path)
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        assert len(part_of(Folder(data), Split(0.3)).files) == 40
    assert "streams.train: split does nothing, since the source has no `part`" in caplog.text
