"""The units before anything runs: valid, exposed to little, installed and taken away by one command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.systemd_box import INSTALL, run

pytestmark = [pytest.mark.systemd, pytest.mark.usefixtures("installed")]

MOST_EXPOSED = 1.6
UNITS = ("streamd.service", "streamd.socket", "streamd@a.service", "streamd@a.socket", "streamd-train@a.service")


def installed_files() -> list[Path]:
    places = [place for place in Path("/usr/local").iterdir() if place.name in {"lib", "share"}]
    return [path for place in places for path in place.rglob("*") if path.is_file() and "streamd" in str(path)]


def test_systemd_finds_nothing_to_say_about_the_units() -> None:
    assert run("systemd-analyze", "--man=no", "verify", *UNITS) == ""


@pytest.mark.parametrize("unit", ["streamd.service", "streamd@a.service"])
def test_the_daemon_is_exposed_to_little(unit: str) -> None:
    found = re.search(r"exposure level for \S+: ([\d.]+)", run("systemd-analyze", "security", unit))
    assert found
    assert float(found[1]) <= MOST_EXPOSED


def test_installing_again_changes_no_file_and_leaves_the_configuration() -> None:
    config = Path("/etc/streamd/config.yaml")
    config.write_text("of mine")
    before = {path: path.read_bytes() for path in installed_files()}
    assert f"left {config} as it is" in run(str(INSTALL))
    assert {path: path.read_bytes() for path in installed_files()} == before
    assert config.read_text() == "of mine"


def test_removing_leaves_what_is_the_users_and_nothing_else() -> None:
    assert installed_files()
    run("systemctl", "enable", "streamd.socket", "streamd@one.service")
    said = run(str(INSTALL), "--remove")
    try:
        assert "removed /usr/local/lib/systemd/system/streamd.service" in said
        assert installed_files() == []
        assert list(Path("/etc/systemd/system").rglob("streamd*")) == []
        assert "could not be found" in run("systemctl", "status", "streamd.service", fails=True)
        assert Path("/etc/streamd/config.yaml").exists()
        run(str(INSTALL), "--remove")
    finally:
        run(str(INSTALL))


def test_a_command_that_is_none_is_named() -> None:
    said = run(str(INSTALL), "--streamd", "/nowhere/streamd", fails=True)
    assert "/nowhere/streamd is no command: install streamd first" in said
