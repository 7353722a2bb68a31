"""Every install command that a user can read names this project: `streamd` on the index is another one."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

from streamd.errors import format_install_command

ROOT: Final = Path(__file__).resolve().parent.parent
HISTORY: Final = "CHANGELOG.md"  # tells of versions by the names that they had
FOREIGN_INSTALL: Final = re.compile(r"pip3? install\b[^\n`#]*?[\s'\"]streamd(?![\w/.-])")
FOREIGN_EXTRA: Final = re.compile(r"(?<![\w-])streamd\\?\[(?:\{|[a-z0-9]+\\?[],])")


def find_foreign_installs(name: str, text: str) -> list[str]:
    patterns = [FOREIGN_INSTALL] if name == HISTORY else [FOREIGN_INSTALL, FOREIGN_EXTRA]
    return [f"{name}: {found[0]}" for pattern in patterns for found in pattern.finditer(text)]


def test_no_file_installs_the_project_that_is_called_streamd_on_the_index() -> None:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {ROOT / name for name in listed.split("\0") if name} - {Path(__file__)}
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in sorted(files) if path.is_file()}

    assert len(texts) > 100
    assert [
        each for path, text in texts.items() for each in find_foreign_installs(str(path.relative_to(ROOT)), text)
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install streamd",
        "pip install --upgrade streamd",
        "/opt/new/bin/pip install 'streamd[serve]'",
        'pip install "streamd==0.1.0"',
        "needs streamd[monitor]",
        r"match=r\"'streamd\[hdf5\]'\"",
        "'streamd[{extra}]'",
    ],
)
def test_a_command_that_installs_the_other_project_is_found(line: str) -> None:
    assert find_foreign_installs("docs/page.md", line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'streamd-loader[serve]'",
        "pip install '.[serve,train]'",
        "pip install torch  # and streamd beside it",
        r"the commands streamd[a-z-]* are found by a pattern",
        "install streamd first (pip install 'streamd-loader[serve]')",
    ],
)
def test_a_command_that_installs_this_project_is_left_alone(line: str) -> None:
    assert find_foreign_installs("docs/page.md", line) == []


def test_an_error_installs_the_distribution_that_the_project_builds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert format_install_command("serve") == f"pip install '{project['name']}[serve]'"
    assert project["name"] != "streamd"
