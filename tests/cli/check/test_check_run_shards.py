"""A whole check of shards: what it finds in files it finds in them, and copies in both."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemon_process import stream_config
from support.faulty_data import animals, config_of, spoil
from support.tar_shards import pack_folder

from streamd.cli.check.run import CheckOptions, inspect_data
from streamd.cli.terminal.progress import SilentProgress


@pytest.mark.long
def test_check_reads_shards_as_it_reads_files_and_knows_copies_across_both(tmp_path: Path) -> None:
    folder = animals(tmp_path)
    reasons = spoil(folder)
    pack_folder(tmp_path / "shards/all.tar", folder)
    packed = stream_config(folder, source={"kind": "tar", "path": str(tmp_path / "shards")})
    found = inspect_data(
        config_of(tmp_path, {"loose": stream_config(folder), "packed": packed}), CheckOptions(), SilentProgress()
    )
    shards, files = found.streams["packed"], found.streams["loose"]
    assert (shards.samples, shards.read, shards.bytes) == (files.samples, files.read, files.bytes)
    assert (shards.pictures.formats, shards.pictures.sizes) == ({"JPEG": 8}, files.pictures.sizes)
    assert {each.file: each.reason for each in shards.unreadable} == {
        f"all.tar/{each.file}": each.reason for each in files.unreadable
    }
    assert {each.file.removeprefix("all.tar/") for each in shards.unreadable} == reasons.keys()
    assert found.leaks == []
    assert [each for each in found.warnings if each.startswith("loose and packed hold the same files: ")]
