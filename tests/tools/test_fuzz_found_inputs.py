"""Inputs that once made streamd fail, in fuzz_inputs/TARGET: it refuses them now, or reads them.

They run in this process: one that ends it names itself by that.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.findings import list_saved_inputs
from fuzz.target import load_target, run_case

FOLDER = Path(__file__).parent / "fuzz_inputs"
INPUTS = list_saved_inputs(FOLDER)
MAX_BYTES = 4096


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_found_input_fails_no_more(path: Path) -> None:
    target = load_target(path.parent.name)
    with target.open_runner() as run:
        assert run_case(target, run, path.read_bytes()).fault == ""


def test_every_input_is_small_and_belongs_to_a_target() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sorted(files) == INPUTS
    assert [path for path in files if path.stat().st_size > MAX_BYTES] == []
