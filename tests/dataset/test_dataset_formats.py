"""What all kinds of sources have in common, and that importing them stays light."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from streamd.dataset.formats import FORMATS

ROOT = Path("/r")


@pytest.mark.parametrize("kind", FORMATS)
def test_the_text_of_a_source_begins_with_its_kind_and_ends_with_its_part(kind: str) -> None:
    """The text of a source is part of the name of its manifest: another one would list all data again.

    Keys that came later are left out of it; the catalog adds those that are given.
    """
    settings: Any = FORMATS[kind].settings
    names = [each.name for each in fields(settings) if each.repr]
    assert (names[0], names[-1], settings.kind) == ("kind", "part", kind)
    if kind == "folder":
        assert repr(settings(ROOT)) == "FolderSource(kind='folder', path=PosixPath('/r'), part=None)"


def test_the_configuration_knows_all_kinds_without_the_libraries_that_read_them() -> None:
    code = "import sys, streamd.config; sys.exit(not {'numpy', 'pyarrow', 'h5py', 'lmdb'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
