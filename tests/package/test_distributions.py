"""What wheel and source distribution hold: all that is needed where they go, and nothing else."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from support.installed_packages import SCHEMA, Built

from streamd.cli.main import app
from streamd.config.schema import format_json_schema

pytestmark = [pytest.mark.package, pytest.mark.timeout(180)]

OF_THE_REPOSITORY = {".ci/run", ".gitignore"}  # what only whoever works on it needs
OF_SETUPTOOLS = {"PKG-INFO", "setup.cfg"}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def files_of(folder: Path, under: str = ".") -> set[str]:
    """Files by their names from `folder`; a link to a folder is gone through."""
    found: set[str] = set()
    for path in (folder / under).iterdir():
        name = path.relative_to(folder).as_posix()
        if path.name != "__pycache__" and not path.name.endswith(".egg-info") and name != "build":
            found |= files_of(folder, name) if path.is_dir() else {name}
    return found


def description(built: Built) -> str:
    return str(metadata(built).get_payload())


def metadata(built: Built) -> Message:
    (text,) = [data for name, data in contents(built.wheel).items() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(text.decode())


def test_the_wheel_has_every_file_of_the_package_and_no_other(built: Built) -> None:
    names = {name for name in contents(built.wheel) if ".dist-info/" not in name and ".data/" not in name}
    assert names == files_of(built.source, "streamd")
    assert {
        "streamd/py.typed",
        "streamd/daemon/monitor/page/index.html",
        "streamd/share/systemd/streamd.service",
    } <= names


def test_wheel_sdist_and_editable_install_have_the_schema_that_the_command_prints(built: Built) -> None:
    printed = format_json_schema().encode()
    assert contents(built.wheel)[SCHEMA] == printed
    assert (built.source / SCHEMA).read_bytes() == printed
    with tarfile.open(built.sdist) as opened:
        (inside,) = [member for member in opened if member.name.endswith(f"/{SCHEMA}")]
        stored = opened.extractfile(inside)
        assert stored is not None
        assert stored.read() == printed


def test_what_the_demo_leaves_in_a_clone_is_no_part_of_the_package(built: Built) -> None:
    settings = tomllib.loads((built.source / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    folders = ["streamd", "streamd.core", "streamd-demo", "streamd-demo.run"]
    taken = [name for name in folders if any(fnmatchcase(name, each) for each in settings["include"])]
    assert taken == ["streamd", "streamd.core"]


def test_the_source_distribution_has_every_file_of_the_repository(built: Built) -> None:
    with tarfile.open(built.sdist) as opened:
        names = {member.name.partition("/")[2] for member in opened if member.isfile()}
        links = [member.name for member in opened if member.issym() or member.islnk()]
    assert {name for name in names if ".egg-info/" not in name} - OF_SETUPTOOLS == (
        files_of(built.source) - OF_THE_REPOSITORY
    )
    assert links == []


def test_commands_of_the_source_distribution_can_be_started(built: Built) -> None:
    with tarfile.open(built.sdist) as opened:
        scripts = [member for member in opened if "/scripts/" in member.name and not member.name.endswith(".sh")]
    assert len(scripts) > 5
    assert [member.name for member in scripts if not member.mode & 0o100] == []


def test_a_wheel_of_the_source_distribution_is_the_same(built: Built) -> None:
    assert contents(built.wheel_of_sdist) == contents(built.wheel)


def test_what_it_needs_is_what_the_project_says(built: Built) -> None:
    project = tomllib.loads((built.source / "pyproject.toml").read_text())["project"]
    told = metadata(built)
    needed = [each for each in told.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert {each.replace(" ", "") for each in needed} == set(project["dependencies"])
    assert set(told.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    for extra, wanted in project["optional-dependencies"].items():
        told_of = [each for each in told.get_all("Requires-Dist", []) if f'extra == "{extra}"' in each]
        assert len(told_of) == len(wanted), extra


def test_the_licence_and_both_commands_come_along(built: Built) -> None:
    files = contents(built.wheel)
    assert metadata(built)["License-Expression"] == "MIT"
    assert files["streamd_loader-0.1.0.dist-info/licenses/LICENSE"] == (built.source / "LICENSE").read_bytes()
    assert set(files["streamd_loader-0.1.0.dist-info/entry_points.txt"].decode().split("\n")) >= {
        "streamd = streamd.cli.main:main", "streamd-train = streamd.cli.train.command:main"
    }  # fmt: skip


def test_an_index_can_show_the_description(built: Built) -> None:
    assert metadata(built)["Description-Content-Type"] == "text/markdown"
    page = MarkdownIt().render(description(built))
    assert page.startswith("<h1>streamd</h1>")
    places = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert [place for place in places if not place.startswith("https://")] == [], "there is nothing beside it"


def test_the_description_names_commands_and_extras_that_there_are(built: Built) -> None:
    text = description(built)
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {str(group.name) for group in app.registered_groups}
    named = set(re.findall(r"\bstreamd ([a-z]+) --|\$\(streamd ([a-z]+)|\)\" ([a-z]+) install", text))
    assert {"".join(each) for each in named} <= known
    assert len(named) > 2
    extras = {extra for each in re.findall(r"streamd-loader\[([a-z,]+)\]", text) for extra in each.split(",")}
    assert extras <= set(metadata(built).get_all("Provides-Extra", []))
