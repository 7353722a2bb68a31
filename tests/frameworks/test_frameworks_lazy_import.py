"""A library of which a part is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.errors import MissingExtraError
from streamd.frameworks import import_library


def test_a_missing_dependency_of_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import not_installed_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"^drawing needs not_installed_at_all, .*'streamd-loader\[serve\]'$"):
        import_library("half_installed", "serve", "drawing")
