"""A node keeps manifests under digests, and the modules of a transform only if they are the daemon's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError
from streamd.ray.node_actor import NodeFiles


def test_a_manifest_is_found_under_its_key_until_the_node_ends() -> None:
    files = NodeFiles()
    assert files.find_manifest("../../etc/passwd") is None
    files.write_manifest("../../etc/passwd", memoryview(b"listed"))
    path = files.find_manifest("../../etc/passwd")
    assert path is not None
    assert path.read_bytes() == b"listed"
    assert path.parent == files._folder
    files.close()
    assert not path.exists()


def test_the_folder_of_a_node_that_was_killed_is_removed_by_the_next_one() -> None:
    killed, alive = NodeFiles(), NodeFiles()
    os.close(killed._lock)
    NodeFiles().close()
    assert (killed._folder.exists(), alive._folder.exists()) == (False, True)
    alive.close()


def test_the_modules_of_a_transform_lie_on_the_node_as_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "augment.py").write_text("import tools.flip\ndef f(i, l, r): return i, l\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "flip.py").write_text("X = 1\n")
    place = find_transform_source("augment:f", tmp_path)
    sources = {name: (tmp_path / name).read_bytes() for name in ("augment.py", "tools/flip.py")}
    files = NodeFiles()
    there = files.place_transform(place, sources)
    assert replace(there, folder=place.folder) == place
    assert files.place_transform(place, sources) == there
    with pytest.raises(ConfigError, match="lies outside its folder"):
        files.place_transform(replace(place, digest="d" * 32), {"../x.py": b""})
    with pytest.raises(ConfigError, match="has another source on this node"):
        files.place_transform(replace(place, digest="e" * 32), {"augment.py": b"def f(): pass"})
    files.close()
