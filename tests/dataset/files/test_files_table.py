"""A table becomes samples in its own order, or an error that names the line."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.source_configs import Label, Table, assert_refused, put, refusal, scanned

from streamd.daemon.starter.survey_labels import survey_table
from streamd.errors import ConfigError

POSE = Label("float", ("x", "y"))


def table(folder: Path, text: str, name: str = "all.csv", **settings: Any) -> Table:
    (folder / name).write_text(text)
    return Table(folder / name, **settings)


def parquet(folder: Path, columns: Mapping[str, Any]) -> Table:
    pq.write_table(pa.table(columns), folder / "all.parquet")
    return Table(folder / "all.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of images."""
    put(tmp_path, "a.jpg", "b.jpg", "sub/a.jpg")
    return tmp_path


def test_rows_become_samples_in_their_order(folder: Path) -> None:
    source = table(folder, "kind,file,angle,age\ndog,b.jpg,0.5,7\ncat,sub/a.jpg,-1.5,9\ndog,b.jpg,1,11\n")
    found = scanned(source, kind=Label(), angle=Label("float"), years=Label("int", source="age"))
    assert found.files == [b"b.jpg", b"sub/a.jpg", b"b.jpg"]
    assert found.sizes.tolist() == [5, 9, 5]
    assert found.mtimes_ns[0] == (folder / "b.jpg").stat().st_mtime_ns
    assert found.labels["kind"].tolist() == [1, 0, 1]
    assert found.specs["kind"].counts == (1, 2)
    assert found.labels["angle"].tolist() == [0.5, -1.5, 1.0]
    assert found.labels["years"].tolist() == [7, 9, 11]
    assert (found.specs["angle"].mean, found.specs["years"].mean) == (0.0, 9.0)
    assert [found.labels[name].dtype for name in ("kind", "angle", "years")] == ["int64", "float32", "int64"]


def test_parquet_csv_and_tsv_say_the_same(folder: Path) -> None:
    sources = [
        parquet(folder, {"file": ["b.jpg", "a.jpg"], "digit": [10, 9], "angle": [0.5, 2.0]}),
        table(folder, "file,digit,angle\nb.jpg,10,0.5\na.jpg,9,2\n"),
        table(folder, "file\tdigit\tangle\nb.jpg\t10\t0.5\na.jpg\t9\t2.0\n", "all.tsv"),
    ]
    found = [scanned(source, digit=Label(), angle=Label("float")) for source in sources]
    assert found[0].specs == found[1].specs == found[2].specs
    assert found[0].files == found[1].files == found[2].files
    assert found[0].specs["digit"].classes == (9, 10)


def test_parquet_columns_of_many_types_are_labels(folder: Path) -> None:
    columns = {
        "file": pa.array(["a.jpg", "b.jpg"]).dictionary_encode(),
        "flag": pa.array([True, False]),
        "whole": pa.array([2.0, 1.0]),
        "small": pa.array([1, 2], pa.uint8()),
        "a.b": pa.array(["x", "y"], pa.large_string()),
    }
    labels = {"flag": Label("int"), "whole": Label(), "small": Label("float"), "a.b": Label()}
    found = scanned(parquet(folder, columns), **labels)
    assert found.labels["flag"].tolist() == [1, 0]
    assert found.specs["whole"].classes == (1, 2)
    assert found.labels["small"].tolist() == [1.0, 2.0]
    assert found.specs["a.b"].classes == ("x", "y")


def test_a_parquet_column_of_lists_or_times_is_refused_and_a_gap_named_by_its_row(folder: Path) -> None:
    columns = {
        "file": ["a.jpg"] * 3,
        "box": [[1, 2]] * 3,
        "when": pa.array([0] * 3, pa.timestamp("s")),
        "x": [1, None, None],
    }
    source = parquet(folder, columns)
    assert_refused(source, r"labels\.box: all\.parquet, row 1 holds \[1, 2\]; several numbers", box=Label())
    assert_refused(source, "'when' of all.parquet holds timestamp.*which is not a number", when=Label("float"))
    assert_refused(source, r"all\.parquet, row 2: column 'x' has no value \(also row 3\)", x=Label("float"))


PICTURES = [b"\x89PNG\r\n", b"\xff\xd8\xff"]


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(PICTURES, pa.binary()),
        pa.array(PICTURES, pa.large_binary()),
        pa.array(
            [{"bytes": each, "path": "a.jpg"} for each in PICTURES],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        ),
    ],
    ids=lambda cells: str(cells.type),
)
def test_a_parquet_column_that_holds_pictures_is_refused_by_name_and_init_says_the_same(
    folder: Path, cells: Any
) -> None:
    source = parquet(folder, {"file": cells, "label": [0, 1]})
    says = r"column 'file' of '.*all\.parquet' holds the pictures themselves, as bytes, .* file .* tar shards"
    assert_refused(source, f"source.image: {says}", label=Label())
    with pytest.raises(ConfigError, match=says):
        survey_table(source.path)


def test_a_parquet_column_of_names_as_bytes_is_read_as_text(folder: Path) -> None:
    assert scanned(parquet(folder, {"file": [b"b.jpg", b"a.jpg"]})).files == [b"b.jpg", b"a.jpg"]


@pytest.mark.parametrize("kind", ["int", "category"])
def test_floats_that_cannot_hold_every_whole_number_are_refused_with_their_row(folder: Path, kind: str) -> None:
    source = parquet(folder, {"file": ["a.jpg", "b.jpg"], "x": [1.0, 9007199254740993.0]})
    assert_refused(
        source, "row 2: column 'x' holds 9007199254740992 as float64, .* save the column as int64", x=Label(kind)
    )


@pytest.mark.parametrize("value", [9007199254740993, 18446744073709551617, 9007199254740992.0])
def test_where_tells_large_neighbours_apart(folder: Path, value: float) -> None:
    cells = ["9007199254740992", "9007199254740993", "18446744073709551616", "18446744073709551617.0", "x"]
    source = table(folder, "file,id\n" + "".join(f"a.jpg,{each}\n" for each in cells), where={"id": value})
    assert scanned(source, id=Label("string")).labels["id"].tolist() == [
        each.encode() for each in cells if each.removesuffix(".0") == str(int(value))
    ]


def test_a_missing_column_names_the_near_one_and_those_there(folder: Path) -> None:
    source = table(folder, "file,steering\na.jpg,1\n")
    near = r"labels\.stering: .*no column 'stering'; its columns are: file, ste.*; did you mean 'steering'\?$"
    assert_refused(source, near, stering=Label("float"))
    assert_refused(replace(source, image="image"), r"source\.image: .*no column 'image'")
    assert_refused(source, r"labels\.angle\.from: .*no column 'steer'", angle=Label("float", "steer"))
    assert_refused(source, r"labels\.pose\.from: .*no column 'z'", pose=Label("float", ("steering", "z")))
    where = replace(source, where={"fil": "a.jpg"})
    assert_refused(where, r"source\.where\.fil: .*no column 'fil'; .*; did you mean 'file'\?$")


def test_another_separator_in_the_header_of_a_missing_column_is_named(tmp_path: Path) -> None:
    says = "streamd split its lines at ',' and found the columns: file;a, b; its header also contains ';': if ';'"
    assert_refused(table(tmp_path, "file;a,b\na.jpg;1,2\n"), says)


def test_a_duplicate_column_is_refused_only_when_it_is_used(folder: Path) -> None:
    source = table(folder, "file,x,x,y\na.jpg,1,2,3\n")
    assert scanned(source, y=Label("int")).labels["y"].tolist() == [3]
    assert_refused(source, r"2 columns named 'x' \(columns 2, 3\)", x=Label("int"))


def test_a_cell_that_is_not_a_number_is_named_by_line_column_and_value(tmp_path: Path) -> None:
    source = table(tmp_path, 'file,note,angle\na.jpg,"two\nlines",1\n\nb.jpg,,2\nc.jpg,,left\nd.jpg,,right\n')
    assert_refused(source, r"labels\.angle: all\.csv, line 6: column 'angle' holds 'left'", angle=Label("float"))
    source = table(tmp_path, "file,x,y\na.jpg,1,2\na.jpg,1,left\n")
    assert_refused(source, r"labels\.pose: all\.csv, line 3: column 'y' holds 'left'", pose=POSE)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_the_first_bad_cell_is_found_in_any_row(tmp_path: Path, rows: int) -> None:
    for bad in {0, rows // 2, rows - 1}:
        lines = [f"a.jpg,{'x' if row >= bad else row}" for row in range(rows)]
        assert_refused(table(tmp_path, "\n".join(["file,n", *lines])), rf"line {bad + 2}: ", n=Label("int"))


def test_numbers_may_have_signs_points_and_space_around_them(folder: Path) -> None:
    source = table(folder, " file , n, x\n a.jpg , +5, +.5\na.jpg,3.0,1e3\n")
    found = scanned(source, n=Label("int"), x=Label("float"))
    assert found.files == [b"a.jpg"] * 2
    assert found.labels["n"].tolist() == [5, 3]
    assert found.labels["x"].tolist() == [0.5, 1000.0]


def test_an_empty_cell_is_refused_with_its_line(folder: Path) -> None:
    says = "line 3: column 'file' has no value"
    assert_refused(table(folder, "file,kind\na.jpg,cat\n ,dog\nb.jpg,\n"), says)
    says = "line 3: column 'kind' has no value"
    assert_refused(table(folder, "file,kind\na.jpg,cat\nb.jpg,\n"), says, kind=Label())


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("all.csv", "", "is empty; its first line has to name the columns"),
        ("all.csv", "\nfile\na.jpg\n", "begins with a blank line"),
        ("all.csv", "file\n", "has column names but no rows"),
        (
            "all.csv",
            "file,x\na.jpg,1\nb.jpg,1,2\nc.jpg\n",
            r"3 cells .* first line has 2: 'b.jpg,1,2' \(also line 4 with 1\)",
        ),
        ("all.xlsx", "x", r"does not have the suffix of a table; streamd reads \.csv"),
        ("all.parquet", "x", "is not a Parquet file"),
    ],
)
def test_a_file_that_is_not_a_table_or_has_no_rows_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    assert_refused(table(tmp_path, text, name), says)


def test_a_missing_table_or_a_folder_is_named(tmp_path: Path) -> None:
    assert_refused(Table(tmp_path), "is a folder")
    assert_refused(Table(tmp_path / "none.csv"), r"there is no '.*/none\.csv'")


def test_bytes_that_are_not_utf_8_are_refused_in_the_header_and_in_rows(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    for data in (b"file,\xe9\na.jpg,1\n", b"file\n\xe9.jpg\n"):
        path.write_bytes(data)
        assert_refused(Table(path), "line [12], is not valid UTF-8: byte 0xe9; it looks like Latin-1")


def test_names_are_tidied_and_may_be_absolute_below_the_root(tmp_path: Path) -> None:
    put(tmp_path, "data/a.jpg", "data/b/c.jpg")
    (tmp_path / "alias").symlink_to("data")
    names = ["./a.jpg", "b//c.jpg", "b/../a.jpg", f"{tmp_path}/alias/b/c.jpg", f"{tmp_path}/data/a.jpg"]
    found = scanned(table(tmp_path, "\n".join(["file", *names]), root=tmp_path / "alias"))
    assert found.files == [b"a.jpg", b"b/c.jpg", b"a.jpg", b"b/c.jpg", b"a.jpg"]
    assert found.root == tmp_path / "alias"


@pytest.mark.parametrize("name", ["../x.jpg", "/etc/hostname", "b/../../x.jpg", "C:/a/../../../x.jpg", ".", "a\0b"])
def test_names_that_lead_out_of_the_root_are_refused_by_line(tmp_path: Path, name: str) -> None:
    put(tmp_path, "x.jpg", "data/a.jpg")
    source = table(tmp_path, f"file\na.jpg\n{name}\n", root=tmp_path / "data")
    assert_refused(source, r"source\.root: all\.csv, line 3 names .*, which is not in '.*/data'")


def test_backslashes_are_read_as_slashes_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        assert scanned(table(folder, "file\nsub\\a.jpg\n")).files == [b"sub/a.jpg"]
    assert "1 name has backslashes" in caplog.text
    assert_refused(table(folder, "file\n..\\a.jpg\n"), "which is not in")


def test_missing_files_are_counted_and_named_with_their_lines(folder: Path) -> None:
    said = refusal(table(folder, "file\na.jpg\n" + "".join(f"{n}.jpg\n" for n in range(5))))
    assert "5 of 6 files named in all.csv are not in" in said
    assert "all.csv, line 3, '0.jpg' (also line 4 '1.jpg', line 5 '2.jpg', " in said


@pytest.mark.parametrize("place", ["lists", ".", "lists/images", "images"])
def test_when_all_files_are_missing_the_error_suggests_a_root(tmp_path: Path, place: str) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "elsewhere").mkdir()
    put(tmp_path / place, "cat/a.jpg")
    said = refusal(table(tmp_path / "lists", "file\ncat/a.jpg\n", root=tmp_path / "elsewhere"))
    assert f"it is in '{tmp_path / place}': set root to that folder" in said


def test_names_without_a_suffix_are_looked_up_in_the_root_before_other_folders(tmp_path: Path) -> None:
    put(tmp_path, "far/root/7.png", "lists/7.jpg")
    source = table(tmp_path / "lists", "file\n7\n", root=tmp_path / "far/root")
    assert_refused(source, r"with \.png added to the name, the file is in '.*/far/root'")
    source = table(tmp_path / "lists", "file\n7\n8\n", root=tmp_path / "far/root")
    assert_refused(source, r"with \.png added to the names, some of the files are in '.*/far/root'")


def test_a_column_that_holds_no_file_names_is_refused_like_missing_files(tmp_path: Path) -> None:
    said = refusal(table(tmp_path, f"file\n{'x' * 9000}\n"))
    assert "all.csv names 1 file, '...xxx" in said
    assert f"xxx', which is not in '{tmp_path}'; set root to" in said
    assert len(said) < 1000


def test_a_root_that_is_missing_and_a_folder_in_place_of_a_file_are_named(folder: Path) -> None:
    missing = table(folder, "file\na.jpg\n", root=folder / "data")
    assert_refused(missing, r"source\.root: there is no '.*/data'; the nearest folder")
    assert_refused(table(folder, "file\nsub\n"), "'.*/sub' is not a regular file")


def test_links_are_followed_only_below_the_root(tmp_path: Path) -> None:
    put(tmp_path, "data/pool/a.jpg", "b.jpg")
    links: dict[str, str | Path] = {
        "here": "pool",
        "a.jpg": tmp_path / "data/pool/a.jpg",
        "out.jpg": "../b.jpg",
        "up": "..",
    }
    for link, target in links.items():
        (tmp_path / "data" / link).symlink_to(target)
    root = tmp_path / "data"
    assert scanned(table(tmp_path, "file\nhere/a.jpg\na.jpg\n", root=root)).files == [b"pool/a.jpg"] * 2
    out = table(tmp_path, "file\nout.jpg\n", root=root)
    assert_refused(out, r"the link '.*/data/out\.jpg' points to '.*/b\.jpg', outside ")
    assert_refused(table(tmp_path, "file\nup/b.jpg\n", root=root), "the link '.*/data/up' points to")


def test_several_columns_of_numbers_make_a_vector_and_not_a_string(folder: Path) -> None:
    source = table(folder, "file,x,y,n\na.jpg,1,2.5,3\na.jpg,-1,0,5\n")
    found = scanned(source, pose=POSE, pair=Label("int", ("n", "x")), one=Label("int", ("n",)))
    assert found.labels["pose"].tolist() == [[1.0, 2.5], [-1.0, 0.0]]
    assert (found.labels["pose"].dtype.name, found.specs["pose"].width) == ("float32", 2)
    assert (found.specs["pose"].mean, found.specs["pair"].mean) == (0.625, 2.0)
    assert (found.labels["pair"].tolist(), found.labels["pair"].dtype.name) == ([[3, 1], [5, -1]], "int64")
    assert (found.labels["one"].tolist(), found.specs["one"].width) == ([[3], [5]], 1)
    says = r"labels\.pose\.from: several columns make a vector .*, but not type string"
    assert_refused(source, says, pose=Label("string", ("x", "y")))


@pytest.mark.parametrize("kind", ["category", "tags"])
def test_several_columns_make_classes_only_of_0_and_1(folder: Path, kind: str) -> None:
    says = r"labels\.pose: all\.csv, line 2 holds \[1, 2\]; several numbers per row give a class only if each is 0 or 1"
    assert_refused(table(folder, "file,x,y\na.jpg,1,2\n"), says, pose=Label(kind, ("x", "y")))


def test_lists_in_parquet_are_vectors_and_tags(folder: Path) -> None:
    columns = {
        "file": ["a.jpg"] * 2,
        "box": [[1, 2, 3], [4, 5, 6]],
        "fixed": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "kinds": pa.array([["traffic light", "car"], None]),
    }
    labels = {"box": Label("int"), "fixed": Label("float"), "kinds": Label("tags")}
    found = scanned(parquet(folder, columns), **labels)
    assert found.labels["box"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.labels["fixed"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (found.specs["kinds"].classes, found.specs["kinds"].counts) == (("car", "traffic light"), (1, 1))


@pytest.mark.parametrize(("box", "row"), [([[1, 2], [3, 4], [5]], 3), ([[1], None], 2), ([[], [1]], 1)])
def test_lists_of_unequal_length_are_named_by_their_row(folder: Path, box: list[list[int]], row: int) -> None:
    source = parquet(folder, {"file": ["a.jpg"] * len(box), "box": box})
    says = rf"labels\.box: all\.parquet, row {row}: column 'box' holds \d numbers?, but the first row"
    assert_refused(source, says, box=Label("float"))


def test_strings_are_taken_from_cells_and_may_be_empty(folder: Path) -> None:
    source = table(folder, 'file,caption,n\na.jpg," a Käfer, red",7\na.jpg,,8\n')
    found = scanned(source, caption=Label("string"), n=Label("string"))
    assert [text.decode() for text in found.labels["caption"].tolist()] == ["a Käfer, red", ""]
    assert found.labels["n"].tolist() == [b"7", b"8"]
    assert found.specs["caption"].text_bytes == len("a Käfer, red".encode())


def test_only_the_rows_that_meet_the_conditions_are_samples(folder: Path) -> None:
    rows = "file,split,x\na.jpg,train,1\nmissing.jpg,test,left\nb.jpg,train,2\nsub/a.jpg,test,3\n"
    found = scanned(table(folder, rows, where={"split": "train"}), x=Label("float"))
    assert (found.files, found.labels["x"].tolist()) == ([b"a.jpg", b"b.jpg"], [1.0, 2.0])
    other = table(folder, rows, where={"split": "test"})
    assert_refused(other, r"labels\.x: all\.csv, line 3: column 'x' holds 'left'", x=Label("float"))
    assert_refused(other, r"1 of 2 files named in all\.csv is not in .*: all\.csv, line 3, 'missing\.jpg'")
