"""Frameworks that are there, and those that are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamd.errors import MissingExtraError
from streamd.frameworks.lazy_import import import_library


def test_a_library_that_is_there_is_given() -> None:
    assert import_library("numpy", "train", "a test") is np


def test_what_a_library_lacks_itself_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import not_installed_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"^drawing needs not_installed_at_all, .*'streamd-loader\[serve\]'$"):
        import_library("half_installed", "serve", "drawing")
