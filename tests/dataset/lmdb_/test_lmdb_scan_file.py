"""Samples of an LMDB file are read in order with their addresses; other files are refused with what they hold."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import numpy as np
import pytest
from support.lmdb_files import put, value_of, write_lmdb

from streamd.dataset.lmdb import scan
from streamd.dataset.lmdb.pyxis_layout import find_memory_address
from streamd.dataset.lmdb.scan import open_pyxis_file, read_mapping_base_address
from streamd.errors import ConfigError

SAMPLES = [{"X": np.full((40, 40, 3), number, np.uint8), "y": number} for number in range(12)]
KEY = "streams.train.source.path"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught, open_pyxis_file(path, KEY) as file:
        list(file.read_sample_values())
    assert str(caught.value).startswith(f"{KEY}: '{path}' ")
    return str(caught.value)


@pytest.mark.parametrize("pixels", [(40, 40, 3), (4, 4)], ids=["pages of their own", "many on a page"])
def test_values_are_read_in_order_with_their_addresses(tmp_path: Path, pixels: tuple[int, ...]) -> None:
    samples = [{"X": np.full(pixels, number, np.uint8)} for number in range(12)]
    path = write_lmdb(tmp_path / "d", samples) / "data.mdb"
    with open_pyxis_file(path, KEY) as file, path.open("rb") as plain:
        assert file.count == 12
        for sample, value in zip(samples, file.read_sample_values(), strict=True):
            assert value == value_of(sample)
            plain.seek(find_memory_address(value) - read_mapping_base_address(value, file))
            assert plain.read(len(value)) == value


def test_reading_a_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "x.lmdb", SAMPLES, subdir=False)
    (tmp_path / "x.lmdb-lock").unlink()
    before = path.stat()
    with open_pyxis_file(path, KEY) as file:
        assert len(list(file.read_sample_values())) == 12
    assert [each.name for each in tmp_path.iterdir()] == ["x.lmdb"]
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_only_as_many_samples_are_read_as_the_count_says(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", SAMPLES, count=5) / "data.mdb"
    with open_pyxis_file(path, KEY) as file:
        assert [
            value == value_of(sample) for sample, value in zip(SAMPLES, file.read_sample_values(), strict=False)
        ] == [True] * 5


def test_a_missing_sample_is_named(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", SAMPLES, count=15) / "data.mdb"
    assert "claims 15 samples, but has none under the key 0000000012; ml-pyxis keeps samples" in refusal(path)


@pytest.mark.parametrize(
    ("count", "told"), [(0, "has no samples"), ("many", "does not say how many samples it has")], ids=str
)
def test_an_empty_or_unreadable_count_is_refused(tmp_path: Path, count: object, told: str) -> None:
    assert told in refusal(write_lmdb(tmp_path / "d", SAMPLES, count=count) / "data.mdb")


def test_a_writer_that_was_not_closed_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "d", {b"0000000000": value_of(SAMPLES[0])})
    put(tmp_path / "d", {}, b"meta_db")
    assert "close its pyxis.Writer" in refusal(tmp_path / "d/data.mdb")


def test_an_lmdb_of_another_layout_is_refused_with_its_keys(tmp_path: Path) -> None:
    put(tmp_path / "d", {b"%08d" % number: b"\xff\xd8\xff" for number in range(5)}, None)
    told = refusal(tmp_path / "d/data.mdb")
    assert "holds the keys '00000000', '00000001', '00000002', but no samples in the format of ml-pyxis; " in told
    assert told.endswith("or with streamd pack --format lmdb")


def test_an_empty_lmdb_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "d", {b"x": b"y"}, None)
    with lmdb.open(str(tmp_path / "d")) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"x")
    assert "holds nothing, but no samples in the format of ml-pyxis" in refusal(tmp_path / "d/data.mdb")


def test_keys_that_only_resemble_the_databases_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "d", {b"data_db": b"no database", b"meta_db": b"neither"}, None)
    assert "holds the keys 'data_db', 'meta_db', but no samples" in refusal(tmp_path / "d/data.mdb")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x89HDF\r\n\x1a\n" * 2000)
    assert "is not an LMDB file, or is one of another version" in refusal(tmp_path / "x")


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_a_truncated_file_is_refused_before_lmdb_maps_it(tmp_path: Path, part: float) -> None:
    path = write_lmdb(tmp_path / "d", SAMPLES) / "data.mdb"
    size = path.stat().st_size
    os.truncate(path, int(size * part))
    assert f"is truncated: it has {int(size * part)} of {size} bytes" in refusal(path)


def test_a_file_that_never_had_the_free_pages_at_its_end_is_read(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", SAMPLES) / "data.mdb"
    with lmdb.open(str(tmp_path / "d"), map_size=1 << 24, max_dbs=4) as environment:
        with environment.begin(environment.open_db(b"data_db"), write=True) as transaction:
            transaction.put(b"large", bytes(500_000))
            transaction.delete(b"large")
        assert (environment.info()["last_pgno"] + 1) * 4096 > path.stat().st_size
    with open_pyxis_file(path, KEY) as file:
        assert len(list(file.read_sample_values())) == 12


def test_a_file_that_is_written_to_during_the_scan_is_refused(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", SAMPLES) / "data.mdb"
    copy = path.with_name("other")
    copy.write_bytes(path.read_bytes())
    put(path.parent, {b"nb_samples": b"13"}, b"meta_db")
    with pytest.raises(ConfigError, match="was written to while its samples were listed"), open_pyxis_file(copy, KEY):
        copy.write_bytes(path.read_bytes())


def test_a_wrong_mapping_address_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lmdb(tmp_path / "d", SAMPLES) / "data.mdb"
    (tmp_path / "maps").touch()  # no line has the address, which is then taken for the beginning of the file
    monkeypatch.setattr(scan, "_MAPS", tmp_path / "maps")
    with open_pyxis_file(path, KEY) as file, pytest.raises(ConfigError, match="is not mapped where"):
        read_mapping_base_address(next(file.read_sample_values()), file)
