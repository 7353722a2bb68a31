"""`lmdb`, read back by the library and by the layout alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import pytest
from support.pack_streams import pixels_of, read_back, stream_of, subject_of, write_all, write_table

from streamd.cli.pack.batches import PackedRows, PackJob, WholeShards
from streamd.cli.pack.write_lmdb import LmdbWriter
from streamd.errors import ConfigError, PackError

NO_IDS = np.empty(0, np.int64)


def samples_of(folder: Path) -> list[dict[str, Any]]:
    """All samples, as ml-pyxis reads them."""
    with lmdb.open(str(folder), readonly=True, lock=False, max_dbs=2) as environment:
        with environment.begin(environment.open_db(b"meta_db")) as transaction:
            count = int(transaction.get(b"nb_samples", b""))
        with environment.begin(environment.open_db(b"data_db")) as transaction:
            assert transaction.stat()["entries"] == count
            return [_unpacked(transaction.get(b"%010d" % number, b"")) for number in range(count)]


def value_of(folder: Path, number: int) -> bytes:
    with (
        lmdb.open(str(folder), readonly=True, lock=False, max_dbs=2) as environment,
        environment.begin(environment.open_db(b"data_db")) as transaction,
    ):
        return bytes(transaction.get(b"%010d" % number, b""))


def put(folder: Path, number: int, value: bytes | None) -> None:
    """Puts another value in the place of a sample's, or none."""
    with lmdb.open(str(folder), max_dbs=2) as environment:
        data = environment.open_db(b"data_db")
        with environment.begin(data, write=True) as transaction:
            transaction.delete(b"%010d" % number)
            if value is not None:
                transaction.put(b"%010d" % number, value)


def _unpacked(value: bytes) -> dict[str, Any]:
    outer = msgspec.msgpack.decode(value, type=dict[str, bytes])
    inner = {name: msgspec.msgpack.decode(packed, type=dict[bytes, Any]) for name, packed in outer.items()}
    return {name: np.frombuffer(each[b"data"], each[b"dtype"]).reshape(each[b"shape"]) for name, each in inner.items()}


def test_every_sample_has_its_image_and_its_labels(pack_job: PackJob, tmp_path: Path) -> None:
    writer = LmdbWriter(pack_job)
    sums = write_all(writer, pack_job.stream, bad=np.array([3]))
    assert read_back(writer).tolist() == sums.tolist()
    images = pixels_of(pack_job.stream)[[0, 1, 2, 4]]
    writer.close()
    found = samples_of(tmp_path / "pack")
    assert np.array_equal([each["X"] for each in found], images)
    assert [each["label"].tolist() for each in found] == [["cat"], ["dog"], ["cat"], ["dog"]]
    assert [each["text"].item() for each in found] == ["", "naïve", "two words", "y"]
    assert [each["where"].tolist() for each in found] == [[1, 2], [3, 4], [5, 6], [9, 10]]
    assert {each["angle"].dtype.str for each in found} == {"<f4"}
    assert [path.name for path in (tmp_path / "pack").iterdir()] == ["data.mdb"]


def test_the_map_has_room_for_more_than_is_expected(pack_job: PackJob) -> None:
    writer = LmdbWriter(pack_job)
    writer.resume_after_shards(WholeShards())
    images = np.random.default_rng(0).integers(0, 256, (4000, *pack_job.stream.spec.image_shape), dtype=np.uint8)
    sums = writer.append_rows(PackedRows(np.zeros(4000, np.int64), {"image": images}))
    writer.finish_pack(NO_IDS)
    assert writer.whole_shards == WholeShards(4000, 1)
    assert read_back(writer).tolist() == sums.tolist()


def test_a_value_that_is_missing_or_damaged_is_found(pack_job: PackJob, tmp_path: Path) -> None:
    writer = LmdbWriter(pack_job)
    sums = write_all(writer, pack_job.stream)
    value = bytearray(value_of(tmp_path / "pack", 2))
    value[-1] ^= 1
    put(tmp_path / "pack", 2, bytes(value))
    assert (read_back(writer) != sums).tolist() == [False, False, True, False, False]
    put(tmp_path / "pack", 2, None)
    with pytest.raises(PackError, match="does not read back from the disk as it was written"):
        read_back(writer)
    writer.close()


def test_a_label_with_the_name_of_the_images_is_refused(tmp_path: Path) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"]["labels"] = {"X": {"type": "int", "from": "x"}}
    with (
        stream_of(config, tmp_path / "list") as stream,
        pytest.raises(ConfigError, match=r"streams.train.labels.X: .* rename the label"),
    ):
        LmdbWriter(subject_of(stream, tmp_path))
