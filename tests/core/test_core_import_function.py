"""Importing a user's function by the name given on a command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamd.core.import_function import format_error_with_source_line, load_function
from streamd.errors import ConfigError


def load(name: str) -> object:
    return load_function(name, "a step", "mystep:step")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_a_function_in_the_current_directory_is_found(folder: Path) -> None:
    (folder / "steps_of_mine.py").write_text("def step(batch):\n    return 7\n")
    function = load_function("steps_of_mine:step", "a step", "mystep:step")
    assert function(None) == 7


def test_an_unknown_function_or_module_suggests_a_similar_name(folder: Path) -> None:
    (folder / "mynetwork.py").write_text("def build(spec):\n    pass\n")
    with pytest.raises(ConfigError, match="no function 'biuld'; did you mean 'build'"):
        load("mynetwork:biuld")
    (folder / "others.py").write_text("".join(f"def g{number}(): pass\n" for number in range(8)))
    with pytest.raises(ConfigError, match="no function 'build'; it has 'g0', 'g1', 'g2', 'g3', 'g4' and 3 more"):
        load("others:build")
    with pytest.raises(ConfigError, match=r"no module 'mynetwrok'.*; did you mean 'mynetwork'"):
        load("mynetwrok:build")


@pytest.mark.parametrize("name", ["mystep", ":step", "mystep:"])
def test_a_name_without_two_parts_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ConfigError, match=f"a step must be module:function, such as mystep:step, not '{name}'"):
        load(name)


def test_the_error_for_a_module_that_raises_names_file_and_line(folder: Path) -> None:
    (folder / "breaks.py").write_text("one = 1\none / 0\n")
    with pytest.raises(ConfigError, match=r"'breaks' cannot be imported: ZeroDivisionError.*breaks\.py, line 2"):
        load("breaks:build")
    (folder / "needs.py").write_text("import surely_not_installed\n")
    with pytest.raises(ConfigError, match="'needs' cannot be imported: No module named 'surely_not_installed'"):
        load("needs:build")


def test_an_error_without_a_place_is_reported_without_one() -> None:
    assert format_error_with_source_line(ValueError("so")) == "ValueError: so"
