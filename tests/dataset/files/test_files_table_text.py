"""Tables as spreadsheets write them: separators, encodings, decimal commas; all faults are reported together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.source_configs import Filelist, Label, Table, put, refusal, scanned

FILES = ("a.jpg", "b.jpg", "ö.jpg")
ROWS = "file;label;angle\na.jpg;Mädchen;0,5\nb.jpg;Hund;-1\nö.jpg;Hund;+,25e1\n"


def write(tmp_path: Path, text: str, encoding: str = "utf-8", name: str = "all.csv") -> Path:
    put(tmp_path, *FILES)
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("encoding", "keys"),
    [("utf-8", {}), ("utf-8-sig", {}), ("utf-16", {}), ("cp1252", {"encoding": "cp1252"})],
)
@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_tables_with_the_encodings_and_separators_of_spreadsheets_are_read(
    tmp_path: Path, encoding: str, keys: dict[str, Any], mark: str
) -> None:
    path = write(tmp_path, ROWS.replace(";", mark).replace("\n", "\r\n"), encoding)
    found = scanned(Table(path, **keys), label=Label(), angle=Label("float"))
    assert [name.decode() for name in found.files] == list(FILES)
    assert found.labels["angle"].tolist() == [0.5, -1, 2.5]
    assert found.specs["label"].classes == ("Hund", "Mädchen")


def test_a_condition_compares_decimal_commas_as_numbers(tmp_path: Path) -> None:
    found = scanned(Table(write(tmp_path, ROWS), where={"angle": 0.5}), label=Label())
    assert list(found.files) == [b"a.jpg"]


def test_separator_and_decimal_can_be_configured(tmp_path: Path) -> None:
    path = write(tmp_path, 'file,angle\na.jpg,"0,5"\n', name="all.txt")
    keys: dict[str, Any] = {"separator": ",", "decimal": ","}
    assert scanned(Table(path, **keys), angle=Label("float")).labels["angle"].tolist() == [0.5]
    path = write(tmp_path, "file;a|b\na.jpg;1|2\n")
    said = refusal(Table(path), angle=Label("float"))
    assert "separated by ';' or '|'; add the right one under source, such as separator: ';'" in said
    assert scanned(Table(path, separator=";"), kind=Label(source="a|b")).specs["kind"].classes == ("1|2",)


def test_a_decimal_comma_between_commas_names_its_key(tmp_path: Path) -> None:
    said = refusal(Table(write(tmp_path, 'file,angle\na.jpg,"0,5"\n')), angle=Label("float"))
    assert said.endswith(
        "holds '0,5', which is not a number; add decimal: ',' under source if numbers have decimal commas, or use "
        "type category"
    )
    said = refusal(Table(write(tmp_path, "file;angle\na.jpg;1.234,5\n")), angle=Label("float"))
    assert said.endswith("holds '1.234,5', which is not a number; correct it, or use type category")


def test_a_comma_that_may_mark_thousands_is_not_guessed_at(tmp_path: Path) -> None:
    path = write(tmp_path, "file;angle\na.jpg;12\nb.jpg;1,234\n")
    said = refusal(Table(path), angle=Label("float"))
    says = "line 3: column 'angle' holds '1,234', whose comma may be a decimal comma or a thousands separator, as in"
    assert says in said
    assert scanned(Table(path, decimal=","), angle=Label("float")).labels["angle"].tolist()[1] == pytest.approx(1.234)
    path = write(tmp_path, "file;angle\na.jpg;0,125\nb.jpg;1,234\n")
    assert scanned(Table(path), angle=Label("float")).labels["angle"].tolist() == pytest.approx([0.125, 1.234])
    path = write(tmp_path, "file;angle\na.jpg;0,5\nb.jpg;1.234\n")
    said = refusal(Table(path, decimal=","), angle=Label("float"))
    assert "holds '0,5', with a decimal comma, but '1.234' (all.csv, line 3) has a point; write all" in said


def test_faults_of_every_kind_are_reported_together_with_their_lines(tmp_path: Path) -> None:
    bad = "".join(f"a.jpg,x,bad{row}\n" for row in range(12))
    path = write(tmp_path, f"file,label,angle\na.jpg,x\nb.jpg,,1\ngone.jpg,x,1\n{bad}a.jpg,x,1,2\nlost.jpg,x,1\n")
    cells, label, angle, files = refusal(Table(path), label=Label(), angle=Label("float")).split("\n")
    assert cells.startswith(
        "streams.train.source.path: all.csv, line 2 has 2 cells where the first line has 3: 'a.jpg,x'"
    )
    assert " (also line 17 with 4); " in cells
    assert label == (
        "streams.train.labels.label: all.csv, line 3: column 'label' has no value; add the value, or remove the row"
    )
    assert "all.csv, line 5: column 'angle' holds 'bad0', which is not a number (also line 6 'bad1', " in angle
    assert "line 14 'bad9' and 2 more); correct it" in angle
    assert "source.root: 2 of 15 files named in all.csv are not in" in files
    assert files.endswith(
        "all.csv, line 4, 'gone.jpg' (also line 18 'lost.jpg'); add the missing files, or remove their rows"
    )


def test_all_values_that_are_not_configured_classes_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "file,label\na.jpg,cat\nb.jpg,bird\nö.jpg,elk\n")
    said = refusal(Table(path), label=Label(classes=("cat", "dog")))
    assert said.endswith("; nor is 'elk' (all.csv, line 4); add them to classes, or correct them in the data")


def test_a_list_is_read_by_its_mark_or_its_key_and_refused_with_all_its_faults(tmp_path: Path) -> None:
    text = "a.jpg Mädchen\nö.jpg Hund\n"
    for encoding, key in (("utf-16", None), ("cp1252", "cp1252"), ("utf-8-sig", None)):
        found = scanned(Filelist(write(tmp_path, text, encoding, "list.txt"), encoding=key))
        assert found.specs["label"].classes == ("Hund", "Mädchen")
    assert "line 1, is not valid UTF-8: byte 0xe4" in refusal(Filelist(write(tmp_path, text, "cp1252", "list.txt")))
    path = write(tmp_path, "a.jpg 1\nb.jpg left\ngone.jpg 3\n", name="list.txt")
    angle, files = refusal(Filelist(path), angle=Label("float")).split("\n")
    assert "list.txt, line 2: label 'angle' holds 'left'" in angle
    assert "list.txt, line 3, 'gone.jpg'; add the missing file, or remove its row" in files
