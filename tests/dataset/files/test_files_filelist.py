"""A list of lines becomes samples in its own order, or an error that names the line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from support.source_configs import Filelist, Label, assert_refused, bits, put, scanned, unlabelled

from streamd.dataset.files.filelist import split_paths_from_labels

POSE = {"p": Label("float")}
TWO = {"a": Label("int"), "b": Label("int")}


def written(folder: Path, text: str | bytes) -> Filelist:
    path = folder / "list.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Filelist(path)


def test_lines_become_samples_in_their_order_with_a_category(tmp_path: Path) -> None:
    put(tmp_path, "b.jpg", "sub/a.png", "c.jpg")
    found = scanned(written(tmp_path, "b.jpg 2\nsub/a.png 0\nc.jpg 1\nb.jpg 2\n"))
    assert found.files == [b"b.jpg", b"sub/a.png", b"c.jpg", b"b.jpg"]
    assert found.labels["label"].tolist() == [2, 0, 1, 2]
    assert (found.specs["label"].classes, found.specs["label"].counts) == ((0, 1, 2), (1, 1, 2))
    assert found.sizes.tolist() == [5, 9, 5, 5]
    assert found.root == tmp_path


def test_a_list_of_paths_alone_has_no_labels(tmp_path: Path) -> None:
    put(tmp_path, "b b.jpg", "a")
    found = scanned(written(tmp_path, "b b.jpg\na\n"))
    assert (found.files, found.labels, found.specs) == ([b"b b.jpg", b"a"], {}, {})


@pytest.mark.parametrize(
    ("line", "path", "label"),
    [
        ("a.jpg 3", "a.jpg", "3"),
        ("a.jpg\t3", "a.jpg", "3"),
        ("a.jpg   3", "a.jpg", "3"),
        ("a.jpg,3", "a.jpg", "3"),
        ("a.jpg , 3", "a.jpg", "3"),
        ("a.jpg;3", "a.jpg", "3"),
        ("my dog, at sea.JPEG great white", "my dog, at sea.JPEG", "great white"),
        ("a.jpg b.jpg 3", "a.jpg b.jpg", "3"),
        ("a.jpg.txt 4", "a.jpg.txt", "4"),
        ("a.jpg\tbelow b.jpg, left", "a.jpg", "below b.jpg, left"),
        ("no suffix\tb.jpg 1", "no suffix", "b.jpg 1"),
        ("jpg 4", "jpg", "4"),
        ('"my dog.jpg" 3', "my dog.jpg", "3"),
        ('"my dog",3', "my dog", "3"),
        ('a.jpg "great white"', "a.jpg", "great white"),
        ("2007_000032  1", "2007_000032", "1"),
        ("no suffix 1", "no suffix", "1"),
        ("no suffix\tgreat white", "no suffix", "great white"),
        ("name,1", "name", "1"),
        ("a.jpg", "a.jpg", ""),
        ("bare", "bare", ""),
    ],
)
def test_a_line_is_split_into_path_and_label(line: str, path: str, label: str) -> None:
    for others in ([], ["x.jpg 1", "x 1", "x"]):
        paths, rests = split_paths_from_labels(pa.array([line, *others], pa.large_string()), words=1)
        assert (paths[0].as_py(), rests[0].as_py()) == (path, label)


def test_lines_without_a_suffix_have_as_many_words_after_the_path_as_there_are_labels() -> None:
    paths, rests = split_paths_from_labels(pa.array(["x y 1 2", "x,1,2", "x y.jpg 1"], pa.large_string()), words=2)
    assert (paths.to_pylist(), rests.to_pylist()) == (["x y", "x", "x y.jpg"], ["1 2", "1,2", "1"])


def test_blank_lines_and_comments_are_skipped_and_counted_as_lines(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg")
    text = "\ufeff# made by hand\r\n\r\n  a.jpg 1  \r\n\t# more\r\nb.jpg 0\r\n"
    found = scanned(written(tmp_path, text))
    assert (found.files, found.labels["label"].tolist()) == ([b"a.jpg", b"b.jpg"], [1, 0])
    missing = written(tmp_path, text.replace("b.jpg", "c.jpg"))
    assert_refused(missing, r"1 of 2 files named in list\.txt is not in .*: list\.txt, line 5, 'c\.jpg'; add")


def test_the_number_of_skipped_lines_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "a.jpg")
    with caplog.at_level("INFO", "streamd.sources"):
        scanned(written(tmp_path, "# made by hand\na.jpg 1\n#b.jpg 2\n"))
    assert "left out 2 lines of list.txt that begin with #" in caplog.text


def test_paths_are_relative_to_the_root_and_stay_in_it(tmp_path: Path) -> None:
    put(tmp_path, "data/a.jpg", "b.jpg")
    source = written(tmp_path, f"a.jpg 1\n{tmp_path}/data/a.jpg 0\n")
    assert scanned(Filelist(source.path, tmp_path / "data")).files == [b"a.jpg"] * 2
    source = written(tmp_path, "a.jpg 1\n../b.jpg 0\n")
    says = r"source\.root: list\.txt, line 2 names '\.\./b\.jpg', which is not in"
    assert_refused(Filelist(source.path, tmp_path / "data"), says)


def test_one_number_is_a_scalar_and_several_are_a_vector(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    found = scanned(written(tmp_path, "a.jpg 0.5\na.jpg +1\n"), angle=Label("float"))
    assert (found.labels["angle"].tolist(), found.specs["angle"].width) == ([0.5, 1.0], 0)
    for text in ("a.jpg 0.5 1 2\na.jpg 3 4 5\n", "a.jpg,0.5, 1,2\na.jpg\t3\t4\t5\n"):
        found = scanned(written(tmp_path, text), pose=Label("float"))
        assert found.labels["pose"].tolist() == [[0.5, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert (found.specs["pose"].width, found.labels["pose"].dtype.name) == (3, "float32")


@pytest.mark.parametrize(
    ("text", "mark", "type_", "values"),
    [
        ("a.jpg 0,5\na.jpg -0,75\n", None, "float", [0.5, -0.75]),
        ("a.jpg 1,5\na.jpg 2\n", None, "float", [1.5, 2.0]),
        ("a.jpg 1,25\na.jpg 1,05\n", None, "float", [1.25, pytest.approx(1.05)]),
        ("a.jpg 0,5 1,25\na.jpg 2 -0,5\n", None, "float", [[0.5, 1.25], [2.0, -0.5]]),
        ("a.jpg 1,2\na.jpg 3,4\n", ",", "float", [pytest.approx(1.2), pytest.approx(3.4)]),
        ("a.jpg 1,2\na.jpg 3,4\n", ".", "float", [[1.0, 2.0], [3.0, 4.0]]),
        ("a.jpg 1,2\na.jpg 3,4\n", None, "int", [[1, 2], [3, 4]]),
        ("a.jpg 1, 2\na.jpg 3,4\n", None, "float", [[1.0, 2.0], [3.0, 4.0]]),
        ("a.jpg 0.5,2\na.jpg 3,4\n", None, "float", [[0.5, 2.0], [3.0, 4.0]]),
        ("a.jpg 1,2,3\na.jpg 4,5,6\n", None, "float", [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    ],
)
def test_a_comma_is_a_decimal_mark_only_where_it_cannot_separate_whole_numbers(
    tmp_path: Path, text: str, mark: Literal[".", ","] | None, type_: str, values: list[object]
) -> None:
    put(tmp_path, "a.jpg")
    source = replace(written(tmp_path, text), decimal=mark)
    assert scanned(source, angle=Label(type_)).labels["angle"].tolist() == values


@pytest.mark.parametrize(
    ("text", "type_"), [("a.jpg 1,2\na.jpg 3,4\n", "float"), ("a.jpg 1,234\na.jpg 5,678\n", "int")]
)
def test_a_comma_that_could_be_either_is_asked_for(tmp_path: Path, text: str, type_: str) -> None:
    put(tmp_path, "a.jpg")
    says = (
        r"list\.txt, line 1: .* comma may be a decimal comma or separate two numbers.*add decimal: ','.* decimal: '\.'"
    )
    assert_refused(written(tmp_path, text), says, angle=Label(type_))


@pytest.mark.parametrize(
    ("text", "labels", "says"),
    [
        ("a.jpg 1 2\n\na.jpg 3\n", POSE, r"p: list\.txt, line 3: label 'p' holds 1 number, but the first row"),
        ("a.jpg 1 2\na.jpg 3 left\n", POSE, r"p: list\.txt, line 2: label 'p' holds 'left', which is not a number"),
        ("a.jpg 1 2\na.jpg 3\n", TWO, r"a, b: list\.txt, line 2 has 1 value after its path, but 2 labels"),
        ("a.jpg 1\nb.jpg\nc.jpg\n", {}, r"list\.txt, line 2: label 'label' has no value \(also line 3\)"),
        (
            "a.jpg\nb.jpg\n",
            {"kind": Label()},
            r"no line of list\.txt has a label after its path, but the configuration asks for: kind;",
        ),
        ("a.jpg 1\n", {"kind": Label(source="class")}, r"kind\.from: a list has no column 'class'; .* kind table"),
    ],
    ids=["unequal vectors", "not a number", "too few values", "no label in a line", "no label at all", "a column"],
)
def test_a_line_that_makes_no_label_is_named(tmp_path: Path, text: str, labels: dict[str, Label], says: str) -> None:
    assert_refused(written(tmp_path, text), rf"labels.*{says}", **labels)


@pytest.mark.parametrize("text", ["a.jpg 0.5 3 cat\n", "a.jpg\t0.5\t3\tcat", "a.jpg,0.5,3, cat", "noext 0.5 3 cat"])
def test_several_labels_are_taken_in_their_order(tmp_path: Path, text: str) -> None:
    put(tmp_path, "a.jpg", "noext")
    found = scanned(written(tmp_path, text), angle=Label("float"), n=Label("int"), kind=Label())
    assert (found.labels["angle"].tolist(), found.labels["n"].tolist()) == ([0.5], [3])
    assert found.specs["kind"].classes == ("cat",)


def test_values_with_spaces_stand_between_tabs_or_commas(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    for text in ("a.jpg\tgreat white\t3", "a.jpg, great white, 3"):
        assert scanned(written(tmp_path, text), kind=Label(), n=Label("int")).specs["kind"].classes == ("great white",)


def test_tags_and_text_take_all_that_comes_after_the_path(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    found = scanned(written(tmp_path, "a.jpg red;round\na.jpg\na.jpg round, tiny dot\n"), t=Label("tags"))
    assert (found.specs["t"].classes, found.specs["t"].counts) == (("red", "round", "tiny dot"), (1, 2, 1))
    assert bits(found.labels["t"], 3)[1] == [0, 0, 0]
    found = scanned(written(tmp_path, "a.jpg a red dot, small\na.jpg\n"), text=Label("string"))
    assert found.labels["text"].tolist() == [b"a red dot, small", b""]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "names no file; write one line `path label`"),
        (b"# nothing\n\n", "names no file"),
        (
            b"a.jpg 1\n\xff.jpg 2\n",
            ", line 2, is not valid UTF-8: byte 0xff; it looks like Latin-1 .* add encoding: cp1252",
        ),
        ("a.jpg 1\n".encode("utf-16-le"), "contains bytes of value 0, as UTF-16 without a byte order mark does"),
    ],
)
def test_files_that_are_not_lists_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    assert_refused(written(tmp_path, data), rf"source\.path: '.*/list\.txt'(, | ){says.removeprefix(', ')}")


def test_a_missing_list_or_a_folder_is_named(tmp_path: Path) -> None:
    assert_refused(Filelist(tmp_path / "none.txt"), r"source\.path: there is no '.*/none\.txt'")
    assert_refused(
        Filelist(tmp_path), "is a folder, but kind filelist needs a file; give the path of a file, or use kind folder"
    )


def test_labels_in_a_list_are_ignored_where_the_configuration_wants_none(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg")
    found = unlabelled(written(tmp_path, "a.jpg 2\nb.jpg 0\n"))
    assert (found.files, found.labels) == ([b"a.jpg", b"b.jpg"], {})


MIXED = (
    '\ufeff# a comment\r\n"b b.jpg" 1 x\r\n\n  sub/a.png  2 y \rc.jpg 3 z\n#\n\r\n\nname 4 käse\n"d" 5  w\nc.jpg 6 last'
)


@pytest.mark.parametrize("block_bytes", [1, 7, 16, 40, 1000])
def test_the_size_of_read_blocks_does_not_change_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    put(tmp_path, "b b.jpg", "sub/a.png", "c.jpg", "name", "d")
    monkeypatch.setattr("streamd.dataset.files.filelist._BLOCK_CHARS", block_bytes)
    labels = {"n": Label("int"), "text": Label("string")}
    found = scanned(written(tmp_path, MIXED), **labels)
    assert found.files == [b"b b.jpg", b"sub/a.png", b"c.jpg", b"name", b"d", b"c.jpg"]
    assert found.labels["n"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found.labels["text"].tolist() == [each.encode() for each in ("x", "y", "z", "käse", "w", "last")]
    assert_refused(written(tmp_path, MIXED + "\nc.jpg 7"), r"list\.txt, line 12 has 1 value after its path", **labels)
    assert_refused(written(tmp_path, MIXED.encode() + b"\n\xff"), r"line 11, is not valid UTF-8: byte 0xff")
