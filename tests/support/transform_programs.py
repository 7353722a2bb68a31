"""Transforms as users write them, in a folder of their own, and unloaded after the test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

Write = Callable[..., Path]

FLIP: Final = """
    def flip(image, labels, rng):
        if rng.random() < 0.5:
            return image[:, ::-1], labels | {"angle": -labels["angle"]}
        return image, labels
    """
DRAWN: Final = """
    def draw(image, labels, rng):
        return rng.integers(0, 256, image.shape, "uint8"), labels
    """


@contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """Afterwards forgets the modules imported from a folder, and its place on the path."""
    path, known = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module beside the configuration; the folder is `program("a", ...).parent`."""
    folder = tmp_path / "beside"
    folder.mkdir()
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)

    def write(name: str, source: str) -> Path:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return path

    with forgotten(folder):
        yield write
