"""The formats by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.pack_streams import stream_of, subject_of, write_table

from streamd.cli.pack.run import PACK_FORMATS, PackFormat, open_pack_writer
from streamd.errors import ConfigError, MissingExtraError


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_every_format_says_how_its_pack_is_served(tmp_path: Path, name: PackFormat) -> None:
    with stream_of(write_table(tmp_path / "data"), tmp_path / "list") as stream:
        writer = open_pack_writer(name, subject_of(stream, tmp_path), None)
        serving = writer.build_serving_settings(Path("/packs/here"))
        assert serving["source"]["kind"] == name  # type: ignore[index]  # a mapping of keys
        assert set(serving) == {"source", "labels", "image"}
        assert writer.estimate_bytes() >= 5 * subject_of(stream, tmp_path).row_bytes
        writer.close()


@pytest.mark.parametrize(("name", "library"), [("hdf5", "h5py"), ("lmdb", "lmdb")])
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: PackFormat, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"streamd.cli.pack.write_{name}", raising=False)
    with (
        stream_of(write_table(tmp_path / "data"), tmp_path / "list") as stream,
        pytest.raises(MissingExtraError, match=rf"needs {library}, .* pip install 'streamd-loader\[{name}\]'"),
    ):
        open_pack_writer(name, subject_of(stream, tmp_path), None)


@pytest.mark.parametrize(
    ("name", "shard_bytes", "told"),
    [("hdf5", 1 << 30, "--shard is for npy and tar"), ("lmdb", 1 << 30, "is one file"), ("tar", 1, "1MiB at least")],
)
def test_shards_that_cannot_be_are_refused(tmp_path: Path, name: PackFormat, shard_bytes: int, told: str) -> None:
    with (
        stream_of(write_table(tmp_path / "data"), tmp_path / "list") as stream,
        pytest.raises(ConfigError, match=told),
    ):
        open_pack_writer(name, subject_of(stream, tmp_path), shard_bytes)
