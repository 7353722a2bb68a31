"""The page of the Python package: it is what the docstrings say now, and no name that users import is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from python_page import PAGE, PARTS, ROOT, build_page, format_docstring

import streamd
import streamd.frameworks.keras
import streamd.frameworks.transformers

DOCUMENTED = {(part.module.partition(":")[0], name) for part in PARTS for name, _ in part.names}


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(), "write it with: scripts/docs python"


@pytest.mark.parametrize("module", [streamd, streamd.frameworks.keras, streamd.frameworks.transformers])
def test_every_public_name_is_on_the_page(module: object) -> None:
    name, names = getattr(module, "__name__", ""), getattr(module, "__all__", ())
    modules = {part.module.rpartition(".")[2] for part in PARTS}

    assert {each for each in names if each not in modules} <= {each for of, each in DOCUMENTED if of == name}


def test_every_name_that_pages_and_examples_import_is_on_the_page() -> None:
    imports = re.compile(r"^ *from (streamd(?:\.(?:frameworks|headroom)[\w.]*)?) import (\w+(?:, \w+)*)", re.MULTILINE)
    sources = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    imported = {
        (module, name)
        for path in sources
        for module, names in imports.findall(path.read_text(encoding="utf-8"))
        for name in names.split(", ")
    }

    assert ("streamd.frameworks.torch", "loader") in imported
    assert imported - DOCUMENTED == set()


@pytest.mark.parametrize(
    ("docstring", "page"),
    [
        ("Returns it.\n\na: one\n    of two\nb, c: three", "Returns it.\n\n- **a**: one\n  of two\n- **b, c**: three"),
        ("Of these:\na: one\nand more", "Of these:\n\n- **a**: one\n\nand more"),
        ("So:\n\n    for x in y: ...\n\nDone.", "So:\n\n```python\nfor x in y: ...\n```\n\nDone."),
        ("2 * 3 < 7, and `2 * 3`", r"2 \* 3 \< 7, and `2 * 3`"),
    ],
)
def test_docstrings_become_lists_and_code(docstring: str, page: str) -> None:
    assert format_docstring(docstring) == page


def test_the_page_names_no_module_that_is_not_there() -> None:
    assert all(Path(ROOT / "streamd" / f"{file}.py").is_file() for part in PARTS for _, file in part.names)
