"""What counts as code, as a function's length, as a name used twice, in a package of a few lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure_code import HEAD, Measurement, list_functions, main, render_row

ONE = '''"""A module.

With two lines.
"""

import shop.two
from shop import two


def _sell(price: int) -> int:
    """Sells."""
    # a comment of its own
    return price  # and one after code


class Till:
    def count_coins(self, coins):
        def inner(): ...
        return two.sell(coins)
'''
TWO = """from .deep import three


class _Till: ...


def sell(price): return three.read(price)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    files = {"__init__": "", "one": ONE, "two": TWO, "deep/__init__": "", "deep/three": "def read(x): ...\n"}
    ignored = {"tests/four": "def read_four(): ...\n", "test_five": "def read_five(): ...\n", "six": "def read(:\n"}
    for name, text in (files | ignored).items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_lines_are_code_comments_docstrings_or_blank(shop: Path) -> None:
    found = Measurement(shop)
    module = found.modules["shop.one"]
    assert [module.kinds.count(kind) for kind in ("doc", "comment", "blank", "code")] == [5, 1, 5, 8]
    assert module.trailing_comments == found.trailing_comments == 1
    assert sorted(found.modules) == ["shop", "shop.deep", "shop.deep.three", "shop.one", "shop.two"]


def test_functions_have_qualified_names_lengths_and_annotations_or_none(shop: Path) -> None:
    sell, count, inner = list_functions(Measurement(shop).modules["shop.one"])
    assert [each.name for each in (sell, count, inner)] == ["_sell", "Till.count_coins", "Till.count_coins.inner"]
    assert (sell.lines, sell.code_lines, sell.is_documented, sell.is_typed, sell.is_public) == (4, 2, True, True, False)
    assert (count.parameters, count.is_typed, count.is_public, inner.is_public) == (1, False, True, False)


def test_names_are_counted_without_their_underscores(shop: Path) -> None:
    found = Measurement(shop)
    assert found.function_homes["sell"] == {"shop.one", "shop.two"}
    assert found.reused_classes == ["Till"]
    assert found.reused_functions == []
    assert found.one_word_share == 3 / 4  # sell, inner and read, beside count_coins
    assert found.public_names == 3  # Till, sell, read


def test_relative_imports_count_as_the_others_do(shop: Path) -> None:
    assert Measurement(shop).one_importer == [("shop.deep.three", "shop.two"), ("shop.two", "shop.one")]


def test_a_function_that_hands_its_arguments_on_passes_through(shop: Path) -> None:
    assert [each.name for each in Measurement(shop).pass_throughs] == ["sell"]


def test_the_command_prints_a_row_a_package_as_wide_as_the_head(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([f"mine={shop}", "--detail", "mine"])
    printed = capsys.readouterr().out
    row = render_row("mine", Measurement(shop))
    assert printed.startswith(f"{HEAD}\n{row}\n\n## mine\n")
    assert {line.count("|") for line in [*HEAD.splitlines(), row]} == {20}
    assert "shop.two  <-  shop.one" in printed
