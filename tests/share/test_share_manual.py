"""The manual says what the program says, and whoever reads manuals has nothing to complain about."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import programs
from manual import DESCRIPTION, ENVIRONMENTS, FILES, SEE_ALSO, STATUSES, man, pages
from roff import bold, marked, paragraphs, plain

from streamd.cli import service
from streamd.cli.terminal.run_guarded import INTERRUPTED, TERMINATED
from streamd.config.schema import build_json_schema
from streamd.errors import ConfigError, StreamdError

STREAMD = Path(__file__).resolve().parents[2] / "streamd"
PAGES = [man(1, "streamd"), man(1, "streamd-train"), man(5, "streamd-config")]
MACROS = {".TH", ".SH", ".SS", ".PP", ".TP", ".RS", ".RE", ".EX", ".EE", ".nh", ".ad", ".br", '.\\"'}
READERS = [["groff", "-man", "-ww", "-Tutf8", "-z"], ["mandoc", "-Tlint", "-Wwarning"]]


def read(page: Path) -> str:
    """As a terminal shows it, in one line."""
    shown = re.sub(r"\\f.|\\&", "", page.read_text(encoding="utf-8"))
    for escape, letter in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\(ti", "~"), (r"\(ha", "^"), (r"\e", "\\")):
        shown = shown.replace(escape, letter)
    return " ".join(shown.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_a_page_is_what_scripts_manual_would_write(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == dict(pages())[page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_who_reads_manuals_finds_nothing_to_say(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    used = [line.split()[0] for line in lines if line.startswith((".", "'"))]
    assert set(used) <= MACROS
    assert (used.count(".RS"), used.count(".EX")) == (used.count(".RE"), used.count(".EE"))
    for reader in READERS:
        if shutil.which(reader[0]):
            done = subprocess.run([*reader, str(page)], capture_output=True, text=True, check=False, timeout=30)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("program", programs())
def test_every_command_and_option_is_explained(program: str) -> None:
    text = read(man(1, program))
    for command in programs()[program].walk():
        assert " ".join([program, *command.path]) in text
        assert command.summary in text or not command.path
        for option in command.options:
            assert f"{', '.join(option.names)} {option.value}".strip() in text
            assert option.help.partition("  [")[0] in text


def test_every_key_of_a_configuration_is_explained() -> None:
    text = man(5, "streamd-config").read_text(encoding="utf-8")
    schema = build_json_schema()
    for part in (schema, *schema["definitions"].values()):
        for name, key in part["properties"].items():
            assert "const" in key or f".TP\n{bold(name)}\n{marked(key['description'])}" in text, name


def test_what_a_later_version_serves_is_named_as_such() -> None:
    text = read(man(5, "streamd-config")).partition("NOT YET")[2]
    assert all(f"{place}: " in text for place in ("curve", "engine", "listen", "streams.train.pace"))


def test_exit_statuses_are_those_that_there_are() -> None:
    assert set(STATUSES) == {
        "0", str(StreamdError.exit_status), str(ConfigError.exit_status), str(INTERRUPTED), str(TERMINATED)
    }  # fmt: skip


def test_variables_and_files_are_those_of_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in STREAMD.rglob("*.py"))
    variables = {name for told in ENVIRONMENTS.values() for names in told for name in names.split(", ")}
    assert {name for name in variables if f'"{name}"' not in code} == set()
    units = (STREAMD / "share" / "systemd" / "streamd.service").read_text()
    assert "/etc/%N/config.yaml" in units
    assert {"/etc/streamd/config.yaml", "/etc/streamd@NAME/config.yaml", "/var/lib/streamd"} < set(FILES)
    assert "/usr/local/share/streamd" in {
        str(place.parent) for place, _ in service.read_files_to_install(Path("/bin/streamd"))
    }


def test_pages_that_are_referred_to_are_there() -> None:
    said = " ".join([DESCRIPTION, *SEE_ALSO.values(), *FILES.values()])
    ours = {(name, int(section)) for name, section in re.findall(r"\b(streamd[a-z-]*)\((\d)\)", said)}
    assert {man(section, name) for name, section in ours} == set(PAGES)


@pytest.mark.parametrize("unit", ["streamd.service", "streamd.socket", "streamd-train@.service"])
def test_pages_that_units_name_are_there(unit: str) -> None:
    named = re.findall(r"man:([a-z-]+)\((\d)\)", (STREAMD / "share" / "systemd" / unit).read_text())
    assert named
    assert {man(int(section), name) for name, section in named} <= set(PAGES)


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        (".SH looks like a macro", r"\&.SH looks like a macro"),
        ("'so does this", r"\&\(aqso does this"),
        (r"a\b", r"a\eb"),
        ("--all ~ ^ `", r"\-\-all \(ti \(ha \(ga"),
    ],
)
def test_nothing_in_a_text_means_something_to_roff(text: str, roff: str) -> None:
    assert plain(text) == roff


def test_a_paragraph_is_filled_and_an_example_stays_as_it_is() -> None:
    assert paragraphs("One\n`two`.\n\n\b\nExample:\n  a  b\n\n\b\nx  y\n") == [
        *(".PP", r"One \fBtwo\fP."),
        *(".PP", "Example:", ".PP", ".RS 4", ".EX", "a  b", ".EE", ".RE"),
        *(".PP", ".RS 4", ".EX", "x  y", ".EE", ".RE"),
    ]
