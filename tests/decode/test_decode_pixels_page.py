"""The page about pixels agrees with the decoder and names only golden files."""

from __future__ import annotations

from golden import FILES, SETTINGS
from pixels_page import BEGIN, PAGE, lines, shown, table, with_table

from streamd.decode.sniff import _NONE_OF_OURS
from streamd.limits import MAX_PIXELS


def test_the_table_is_what_the_command_writes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run scripts/docs pixels"
    assert BEGIN + "\n" + table() in page


def test_a_changed_number_on_the_page_is_detected() -> None:
    page = PAGE.read_text(encoding="utf-8")
    line = lines()[5]
    wrong = page.replace(f"| {shown(line, 3)} |", "| 1 2 3 |")
    assert wrong != page
    assert with_table(wrong) == page


def test_every_line_has_its_own_file() -> None:
    files = [line.file for line in lines()]
    assert len(set(files)) == len(files)
    assert set(files) <= {file.name for file in FILES.iterdir()}


def test_the_figures_in_the_text_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"({len(list(FILES.iterdir()))} files, {len(SETTINGS)} settings each)" in page
    assert f"more than {MAX_PIXELS:,} pixels" in page


def test_every_format_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    formats = _NONE_OF_OURS.removeprefix("neither ").replace(" nor PNM", ", PBM, PGM, PPM").split(", ")
    assert [name for name in formats if name not in page] == []
