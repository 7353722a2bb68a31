"""The same functions for the same seed, by path and qualified name alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from draw_functions import draw_functions, list_drawable, main

CODE = """
def sell(): "What it does."

class Till:
    def __init__(self): ...
    def count(self):
        def inner(): ...
        class Inner:
            def deep(self): ...
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "one.py").write_text(CODE)
    (folder / "two.py").write_text("".join(f"def sell_{number}(): ...\n" for number in range(20)))
    return folder


def test_what_python_names_and_what_lies_in_a_function_is_not_drawn(shop: Path) -> None:
    assert [line for line in list_drawable(shop) if "one.py" in line] == [
        "shop/one.py  Till.count",
        "shop/one.py  sell",
    ]


def test_a_seed_decides_what_is_drawn(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = draw_functions(shop, seed=7, count=15)
    assert len(set(drawn)) == 15
    assert drawn == draw_functions(shop, seed=7, count=15) != draw_functions(shop, seed=8, count=15)
    assert sorted(draw_functions(shop, seed=7, count=100)) == list_drawable(shop)
    main(["--seed", "7", "--package", str(shop)])
    assert capsys.readouterr().out.splitlines() == drawn
