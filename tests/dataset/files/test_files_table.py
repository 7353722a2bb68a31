"""A table becomes samples in its own order, or an error that names the line."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.source_configs import Label, Stream, Table, put, scanned

from streamd.dataset.scan import scan_source
from streamd.errors import ConfigError


def table(folder: Path, text: str, name: str = "all.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_rows_become_samples_in_their_order(tmp_path: Path) -> None:
    put(tmp_path, "b.jpg", "sub/a.jpg")
    path = table(tmp_path, "kind,file,angle,age\ndog,b.jpg,0.5,7\ncat,sub/a.jpg,-1.5,9\ndog,b.jpg,1,11\n")
    found = scanned(Table(path), kind=Label(), angle=Label("float"), years=Label("int", source="age"))
    assert found.files == [b"b.jpg", b"sub/a.jpg", b"b.jpg"]
    assert found.sizes.tolist() == [5, 9, 5]
    assert found.mtimes_ns[0] == (tmp_path / "b.jpg").stat().st_mtime_ns
    assert found.labels["kind"].tolist() == [1, 0, 1]
    assert found.specs["kind"].counts == (1, 2)
    assert found.labels["angle"].tolist() == [0.5, -1.5, 1.0]
    assert found.labels["years"].tolist() == [7, 9, 11]
    assert (found.specs["angle"].mean, found.specs["years"].mean) == (0.0, 9.0)
    assert [found.labels[name].dtype for name in ("kind", "angle", "years")] == ["int64", "float32", "int64"]


def test_parquet_csv_and_tsv_say_the_same(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg")
    columns = {"file": ["b.jpg", "a.jpg"], "digit": [10, 9], "angle": [0.5, 2.0]}
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    table(tmp_path, "file,digit,angle\nb.jpg,10,0.5\na.jpg,9,2\n")
    table(tmp_path, "file\tdigit\tangle\nb.jpg\t10\t0.5\na.jpg\t9\t2.0\n", "all.tsv")
    found = [
        scanned(Table(tmp_path / name), digit=Label(), angle=Label("float"))
        for name in ("all.parquet", "all.csv", "all.tsv")
    ]
    assert found[0].specs == found[1].specs == found[2].specs
    assert found[0].files == found[1].files == found[2].files
    assert found[0].specs["digit"].classes == (9, 10)


def test_parquet_columns_of_many_types_are_labels(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg")
    columns = {
        "file": pa.array(["a.jpg", "b.jpg"]).dictionary_encode(),
        "flag": pa.array([True, False]),
        "whole": pa.array([2.0, 1.0]),
        "small": pa.array([1, 2], pa.uint8()),
        "a.b": pa.array(["x", "y"], pa.large_string()),
    }
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    labels = {"flag": Label("int"), "whole": Label(), "small": Label("float"), "a.b": Label()}
    found = scanned(Table(tmp_path / "all.parquet"), **labels)
    assert found.labels["flag"].tolist() == [1, 0]
    assert found.specs["whole"].classes == (1, 2)
    assert found.labels["small"].tolist() == [1.0, 2.0]
    assert found.specs["a.b"].classes == ("x", "y")


def test_a_parquet_column_of_lists_or_times_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    columns = {"file": ["a.jpg"], "box": [[1, 2]], "when": pa.array([0], pa.timestamp("s"))}
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    with pytest.raises(ConfigError, match=r"labels\.box: all\.parquet, row 1 holds \[1, 2\]; several numbers"):
        scanned(Table(tmp_path / "all.parquet"), box=Label())
    with pytest.raises(ConfigError, match=r"column 'when' of all\.parquet holds timestamp.*which is no number"):
        scanned(Table(tmp_path / "all.parquet"), when=Label("float"))


def test_a_gap_in_a_parquet_column_is_named_by_its_row(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    pq.write_table(pa.table({"file": ["a.jpg"] * 3, "x": [1.0, None, None]}), tmp_path / "all.parquet")
    with pytest.raises(ConfigError, match=r"all\.parquet, row 2: column 'x' is empty \(also row 3\)"):
        scanned(Table(tmp_path / "all.parquet"), x=Label("float"))


def test_a_missing_column_names_the_near_one_and_those_there(tmp_path: Path) -> None:
    path = table(tmp_path, "file,steering\na.jpg,1\n")
    with pytest.raises(
        ConfigError, match=r"labels\.stering: .*no column 'stering'; did you mean 'steering'\?.*file, ste"
    ):
        scanned(Table(path), stering=Label("float"))
    with pytest.raises(ConfigError, match=r"source\.image: .*no column 'image'"):
        scanned(Table(path, image="image"))
    with pytest.raises(ConfigError, match=r"labels\.angle\.from: .*no column 'steer'"):
        scanned(Table(path), angle=Label("float", source="steer"))


def test_another_separator_in_the_header_of_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="taken to be separated by ',', and its header holds ';', too: if that"):
        scanned(Table(table(tmp_path, "file;a,b\na.jpg;1,2\n")))


def test_a_doubled_column_is_refused_only_when_it_is_wanted(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    path = table(tmp_path, "file,x,x,y\na.jpg,1,2,3\n")
    assert scanned(Table(path), y=Label("int")).labels["y"].tolist() == [3]
    with pytest.raises(ConfigError, match=r"2 columns named 'x' \(columns 2, 3\)"):
        scanned(Table(path), x=Label("int"))


def test_a_cell_that_is_no_number_is_named_by_line_column_and_value(tmp_path: Path) -> None:
    text = 'file,note,angle\na.jpg,"two\nlines",1\n\nb.jpg,,2\nc.jpg,,left\nd.jpg,,right\n'
    with pytest.raises(ConfigError, match=r"labels\.angle: all\.csv, line 6: column 'angle' holds 'left'"):
        scanned(Table(table(tmp_path, text)), angle=Label("float"))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_the_first_bad_cell_is_found_wherever_it_stands(tmp_path: Path, rows: int) -> None:
    for bad in {0, rows // 2, rows - 1}:
        lines = [f"a.jpg,{'x' if row >= bad else row}" for row in range(rows)]
        with pytest.raises(ConfigError, match=rf"line {bad + 2}: "):
            scanned(Table(table(tmp_path, "\n".join(["file,n", *lines]))), n=Label("int"))


def test_a_fraction_or_nan_is_refused_with_its_line(tmp_path: Path) -> None:
    path = table(tmp_path, "file,n,x\na.jpg,1,0\nb.jpg,2.5,nan\n")
    with pytest.raises(ConfigError, match=r"line 3 holds 2\.5, which is not a whole number"):
        scanned(Table(path), n=Label("int"))
    with pytest.raises(ConfigError, match=r"line 3 holds nan, which is not a finite number"):
        scanned(Table(path), x=Label("float"))


def test_numbers_may_have_signs_points_and_space_around_them(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    found = scanned(
        Table(table(tmp_path, " file , n, x\n a.jpg , +5, +.5\na.jpg,3.0,1e3\n")), n=Label("int"), x=Label("float")
    )
    assert found.files == [b"a.jpg"] * 2
    assert found.labels["n"].tolist() == [5, 3]
    assert found.labels["x"].tolist() == [0.5, 1000.0]


def test_an_empty_cell_is_refused_with_its_line(tmp_path: Path) -> None:
    path = table(tmp_path, "file,kind\na.jpg,cat\n ,dog\nb.jpg,\n")
    with pytest.raises(ConfigError, match=r"line 3: column 'file' is empty"):
        scanned(Table(path), kind=Label())
    path = table(tmp_path, "file,kind\na.jpg,cat\nb.jpg,\n")
    put(tmp_path, "a.jpg", "b.jpg")
    with pytest.raises(ConfigError, match=r"line 3: column 'kind' is empty"):
        scanned(Table(path), kind=Label())


def test_configured_classes_refuse_a_cell_by_its_line(tmp_path: Path) -> None:
    path = table(tmp_path, "file,kind\na.jpg,cat\na.jpg,dgo\n")
    with pytest.raises(ConfigError, match=r"'dgo' \(all\.csv, line 3\).*did you mean 'dog'"):
        scanned(Table(path), kind=Label(classes=("dog", "cat")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; its first line has to name the columns"),
        ("\nfile\na.jpg\n", "begins with a blank line"),
        ("file\n", "has no rows"),
        (
            "file,x\na.jpg,1\nb.jpg,1,2\nc.jpg\n",
            r"line 3 has 3 cells where the first line has 2: 'b.jpg,1,2' \(also line 4 with 1\)",
        ),
    ],
)
def test_a_table_without_rows_or_shape_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scanned(Table(table(tmp_path, text)))


def test_bytes_that_are_no_utf8_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    for data in (b"file,\xe9\na.jpg,1\n", b"file\n\xe9.jpg\n"):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"line [12], is no UTF-8 text: byte 0xe9; it looks like Latin-1"):
            scanned(Table(path))


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    assert scanned(Table(table(tmp_path, "\ufefffile\r\na.jpg\r\n"))).files == [b"a.jpg"]


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no table by its suffix; known are \.csv"):
        scanned(Table(table(tmp_path, "x", "all.xlsx")))
    with pytest.raises(ConfigError, match="is no Parquet file"):
        scanned(Table(table(tmp_path, "x", "all.parquet")))
    with pytest.raises(ConfigError, match="is a folder"):
        scanned(Table(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no '.*/none\.csv'"):
        scanned(Table(tmp_path / "none.csv"))


def test_names_are_tidied_and_may_be_absolute_below_the_root(tmp_path: Path) -> None:
    put(tmp_path, "data/a.jpg", "data/b/c.jpg")
    (tmp_path / "alias").symlink_to("data")
    names = ["./a.jpg", "b//c.jpg", "b/../a.jpg", f"{tmp_path}/alias/b/c.jpg", f"{tmp_path}/data/a.jpg"]
    found = scanned(Table(table(tmp_path, "\n".join(["file", *names])), root=tmp_path / "alias"))
    assert found.files == [b"a.jpg", b"b/c.jpg", b"a.jpg", b"b/c.jpg", b"a.jpg"]
    assert found.root == tmp_path / "alias"


@pytest.mark.parametrize("name", ["../x.jpg", "/etc/hostname", "b/../../x.jpg", "C:/a/../../../x.jpg", ".", "a\0b"])
def test_names_that_lead_out_of_the_root_are_refused_by_line(tmp_path: Path, name: str) -> None:
    put(tmp_path, "x.jpg", "data/a.jpg")
    with pytest.raises(ConfigError, match=r"source\.root: all\.csv, line 3 names .*no file in '.*/data'"):
        scanned(Table(table(tmp_path, f"file\na.jpg\n{name}\n"), root=tmp_path / "data"))


def test_backslashes_are_read_as_slashes_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "b/a.jpg")
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        assert scanned(Table(table(tmp_path, "file\nb\\a.jpg\n"))).files == [b"b/a.jpg"]
    assert "1 name has backslashes" in caplog.text
    with pytest.raises(ConfigError, match="no file in"):
        scanned(Table(table(tmp_path, "file\n..\\a.jpg\n")))


def test_missing_files_are_counted_and_named_with_their_lines(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    path = table(tmp_path, "file\na.jpg\n" + "".join(f"{n}.jpg\n" for n in range(5)))
    with pytest.raises(ConfigError) as caught:
        scanned(Table(path))
    assert "5 of 6 files" in str(caught.value)
    assert "all.csv, line 3, '0.jpg' (also line 4 '1.jpg', line 5 '2.jpg', " in str(caught.value)


@pytest.mark.parametrize("place", ["lists", ".", "lists/images", "images"])
def test_when_all_files_are_missing_a_root_is_found_for_them(tmp_path: Path, place: str) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "elsewhere").mkdir()
    put(tmp_path / place, "cat/a.jpg")
    path = table(tmp_path / "lists", "file\ncat/a.jpg\n")
    with pytest.raises(ConfigError) as caught:
        scanned(Table(path, root=tmp_path / "elsewhere"))
    assert f"some are in '{tmp_path / place}': set root to it" in str(caught.value)


def test_names_without_their_suffix_are_recognised(tmp_path: Path) -> None:
    put(tmp_path, "7.png")
    with pytest.raises(ConfigError, match=r"with \.png behind the names some are in"):
        scanned(Table(table(tmp_path, "file\n7\n")))


def test_files_without_their_suffix_are_looked_for_in_the_root_before_all_other_folders(tmp_path: Path) -> None:
    put(tmp_path, "far/root/7.png", "lists/7.jpg")
    with pytest.raises(ConfigError, match=r"with \.png behind the names some are in '.*/far/root'"):
        scanned(Table(table(tmp_path / "lists", "file\n7\n"), root=tmp_path / "far/root"))


def test_a_column_that_holds_no_names_is_answered_like_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"all\.csv names 1 file, none of which is in .*x'; set root to") as caught:
        scanned(Table(table(tmp_path, f"file\n{'x' * 9000}\n")))
    assert len(str(caught.value)) < 1000


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.root: there is no '.*/data'; the nearest folder"):
        scanned(Table(table(tmp_path, "file\na.jpg\n"), root=tmp_path / "data"))


def test_links_are_followed_only_below_the_root(tmp_path: Path) -> None:
    put(tmp_path, "data/pool/a.jpg", "b.jpg")
    (tmp_path / "data" / "here").symlink_to("pool")
    (tmp_path / "data" / "a.jpg").symlink_to(tmp_path / "data" / "pool" / "a.jpg")
    (tmp_path / "data" / "out.jpg").symlink_to("../b.jpg")
    path = table(tmp_path, "file\nhere/a.jpg\na.jpg\n")
    assert scanned(Table(path, root=tmp_path / "data")).files == [b"pool/a.jpg"] * 2
    with pytest.raises(ConfigError, match=r"the link '.*/data/out\.jpg' leads to '.*/b\.jpg', out of"):
        scanned(Table(table(tmp_path, "file\nout.jpg\n"), root=tmp_path / "data"))
    (tmp_path / "data" / "up").symlink_to("..")
    with pytest.raises(ConfigError, match=r"the link '.*/data/up' leads to"):
        scanned(Table(table(tmp_path, "file\nup/b.jpg\n"), root=tmp_path / "data"))


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg")
    with pytest.raises(ConfigError, match=r"'.*/cat' is no regular file"):
        scanned(Table(table(tmp_path, "file\ncat\n")))


def test_several_columns_of_numbers_are_a_vector(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    path = table(tmp_path, "file,x,y,n\na.jpg,1,2.5,3\na.jpg,-1,0,5\n")
    found = scanned(
        Table(path),
        pose=Label("float", source=("x", "y")),
        pair=Label("int", source=("n", "x")),
        one=Label("int", ("n",)),
    )
    assert found.labels["pose"].tolist() == [[1.0, 2.5], [-1.0, 0.0]]
    assert (found.labels["pose"].dtype.name, found.specs["pose"].width) == ("float32", 2)
    assert (found.specs["pose"].mean, found.specs["pair"].mean) == (0.625, 2.0)
    assert (found.labels["pair"].tolist(), found.labels["pair"].dtype.name) == ([[3, 1], [5, -1]], "int64")
    assert (found.labels["one"].tolist(), found.specs["one"].width) == ([[3], [5]], 1)


def test_a_bad_number_of_a_vector_is_named_by_its_column_and_line(tmp_path: Path) -> None:
    path = table(tmp_path, "file,x,y\na.jpg,1,2\na.jpg,1,left\n")
    with pytest.raises(ConfigError, match=r"labels\.pose: all\.csv, line 3: column 'y' holds 'left'"):
        scanned(Table(path), pose=Label("float", source=("x", "y")))
    with pytest.raises(ConfigError, match=r"labels\.pose\.from: .*no column 'z'"):
        scanned(Table(path), pose=Label("float", source=("x", "z")))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("string", r"labels\.pose\.from: several columns make a vector .*, and no string"),
        ("category", r"labels\.pose: all\.csv, line 2 holds \[1, 2\]; several numbers a row make a class where"),
        ("tags", r"labels\.pose: all\.csv, line 2 holds \[1, 2\]; several numbers a row make a class where"),
    ],
)
def test_several_columns_of_numbers_make_no_other_label(tmp_path: Path, kind: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        scanned(Table(table(tmp_path, "file,x,y\na.jpg,1,2\n")), pose=Label(kind, source=("x", "y")))


def test_lists_in_parquet_are_vectors_and_tags(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    columns = {
        "file": ["a.jpg"] * 2,
        "box": [[1, 2, 3], [4, 5, 6]],
        "fixed": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "kinds": pa.array([["traffic light", "car"], None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    labels = {"box": Label("int"), "fixed": Label("float"), "kinds": Label("tags")}
    found = scanned(Table(tmp_path / "all.parquet"), **labels)
    assert found.labels["box"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.labels["fixed"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (found.specs["kinds"].classes, found.specs["kinds"].counts) == (("car", "traffic light"), (1, 1))


@pytest.mark.parametrize(("box", "row"), [([[1, 2], [3, 4], [5]], 3), ([[1], None], 2), ([[], [1]], 1)])
def test_lists_of_unequal_length_are_named_by_their_row(tmp_path: Path, box: list[list[int]], row: int) -> None:
    put(tmp_path, "a.jpg")
    pq.write_table(pa.table({"file": ["a.jpg"] * len(box), "box": box}), tmp_path / "all.parquet")
    with pytest.raises(
        ConfigError, match=rf"labels\.box: all\.parquet, row {row}: column 'box' holds \d numbers where"
    ):
        scanned(Table(tmp_path / "all.parquet"), box=Label("float"))


def test_a_gap_in_a_list_is_named_by_its_row(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    pq.write_table(pa.table({"file": ["a.jpg"] * 2, "box": [[1, 2], [3, None]]}), tmp_path / "all.parquet")
    with pytest.raises(ConfigError, match=r"all\.parquet, row 2: column 'box' is empty"):
        scanned(Table(tmp_path / "all.parquet"), box=Label("float"))


def test_strings_are_the_cells_and_may_be_empty(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    path = table(tmp_path, 'file,caption,n\na.jpg," a Käfer, red",7\na.jpg,,8\n')
    found = scanned(Table(path), caption=Label("string"), n=Label("string"))
    assert [text.decode() for text in found.labels["caption"].tolist()] == ["a Käfer, red", ""]
    assert found.labels["n"].tolist() == [b"7", b"8"]
    assert found.specs["caption"].text_bytes == len("a Käfer, red".encode())


def test_only_the_rows_that_meet_the_conditions_are_samples(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg", "d.jpg")
    path = table(tmp_path, "file,split,x\na.jpg,train,1\nmissing.jpg,test,left\nb.jpg,train,2\nd.jpg,test,3\n")
    found = scanned(Table(path, where={"split": "train"}), x=Label("float"))
    assert (found.files, found.labels["x"].tolist()) == ([b"a.jpg", b"b.jpg"], [1.0, 2.0])
    with pytest.raises(ConfigError, match=r"labels\.x: all\.csv, line 3: column 'x' holds 'left'"):
        scanned(Table(path, where={"split": "test"}), x=Label("float"))
    with pytest.raises(ConfigError, match=r"1 of 2 files of all\.csv is not in .*: all\.csv, line 3, 'missing\.jpg'"):
        scanned(Table(path, where={"split": "test"}))


def test_a_condition_on_a_column_that_is_not_there_names_the_near_one(tmp_path: Path) -> None:
    path = table(tmp_path, "file,split\na.jpg,train\n")
    with pytest.raises(ConfigError, match=r"source\.where\.splt: .*no column 'splt'; did you mean 'split'"):
        scanned(Table(path, where={"splt": "train"}))


def test_progress_counts_every_row(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    seen: list[int] = []
    scan_source(Stream(Table(table(tmp_path, "file\n" + "a.jpg\n" * 10_000))), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 10_000
    assert len(seen) > 1
