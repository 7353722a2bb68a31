"""`tar`, read back by webdataset and the standard library."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image
from support.pack_streams import pixels_of, read_back, stream_of, subject_of, write_all

from streamd.cli.pack.batches import PackedRows, PackJob, WholeShards, build_packing_stream
from streamd.cli.pack.write_tar import TarWriter
from streamd.errors import PackError

NO_IDS = np.empty(0, np.int64)


def members_of(folder: Path) -> list[tuple[str, bytes]]:
    """Names and bytes of all members of all shards."""
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as shard:
            found += [(each.name, shard.extractfile(each).read()) for each in shard]  # type: ignore[union-attr]  # files
    return found


@pytest.mark.parametrize("shard_bytes", [1, 5000, 1 << 30])
def test_shards_hold_the_files_unchanged_and_their_labels(pack_job: PackJob, tmp_path: Path, shard_bytes: int) -> None:
    writer = TarWriter(pack_job, shard_bytes)
    sums = write_all(writer, pack_job.stream, bad=np.array([2]))
    assert read_back(writer).tolist() == sums.tolist()
    writer.close()
    found = dict(members_of(tmp_path / "pack"))
    assert list(found) == [f"{row:09}.{suffix}" for row in range(4) for suffix in ("png", "cls", "json")]
    assert [found[f"{row:09}.png"] for row in range(4)] == [
        (tmp_path / "data" / name).read_bytes() for name in ("a.png", "b.png", "d.png", "e.png")
    ]
    assert json.loads(found["000000001.json"]) == {
        "name": "b.png", "label": "dog", "angle": -1.25, "tags": [], "text": "naïve", "where": [3, 4],
    }  # fmt: skip
    assert found["000000003.cls"] == b"1"
    shards = len(list((tmp_path / "pack").glob("*.tar")))
    assert shards == {1: 4, 5000: 2, 1 << 30: 1}[shard_bytes]


@pytest.mark.filterwarnings("ignore:unclosed file")  # the library leaves its shard open
def test_webdataset_reads_them(shuffled_pack_job: PackJob, tmp_path: Path) -> None:
    writer = TarWriter(shuffled_pack_job, 1 << 30)
    write_all(writer, shuffled_pack_job.stream)
    writer.close()
    order = np.concatenate([shuffled_pack_job.stream.compute_planned_ids(0, index) for index in range(3)])
    images = pixels_of(shuffled_pack_job.stream)[order]
    read = webdataset.WebDataset(str(tmp_path / "pack" / "000000.tar"), shardshuffle=False).decode("rgb8")
    samples: list[Any] = list(read.to_tuple("png", "cls", "json"))
    assert np.array_equal([image for image, _, _ in samples], images)
    assert [number for _, number, _ in samples] == [[0, 1, 0, 0, 1][sample_id] for sample_id in order]
    assert [labels["name"] for _, _, labels in samples] == [f"{'abcde'[sample_id]}.png" for sample_id in order]


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_become_pngs_without_loss(tmp_path: Path, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 8, channels), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    config = {
        "streams": {
            "train": {
                "source": {"kind": "npy", "path": str(tmp_path / "images.npy")},
                "labels": {},
                "image": {"size": "stored", "mode": "RGB" if channels > 1 else "L"},
            }
        }
    }
    with stream_of(config, tmp_path / "list") as stream:
        writer = TarWriter(subject_of(stream, tmp_path), 1 << 30)
        sums = write_all(writer, stream)
        assert read_back(writer).tolist() == sums.tolist()
        writer.close()
    pictures = [data for name, data in members_of(tmp_path / "pack") if name.endswith(".png")]
    decoded = np.array([np.asarray(Image.open(io.BytesIO(data))) for data in pictures])
    assert np.array_equal(decoded.reshape(images.shape), images)


def test_a_resumed_run_removes_the_shards_that_were_not_whole(pack_job: PackJob, tmp_path: Path) -> None:
    images = pixels_of(pack_job.stream)
    first = TarWriter(pack_job, 4000)  # two samples a shard
    first.resume_after_shards(WholeShards())
    first.append_rows(PackedRows(np.arange(5), {"image": images}))
    assert first.whole_shards == WholeShards(4, 2)
    first.close()
    second = TarWriter(pack_job, 4000)
    second.resume_after_shards(WholeShards(2, 1))
    assert [path.name for path in (tmp_path / "pack").iterdir()] == ["000000.tar"]
    second.append_rows(PackedRows(np.array([4]), {"image": images[4:]}))
    second.finish_pack(NO_IDS)
    second.close()
    names = [json.loads(data)["name"] for name, data in members_of(tmp_path / "pack") if name.endswith("json")]
    assert names == ["a.png", "b.png", "e.png"]


def test_a_damaged_byte_is_found(pack_job: PackJob, tmp_path: Path) -> None:
    writer = TarWriter(pack_job, 1 << 30)
    sums = write_all(writer, pack_job.stream)
    with (tmp_path / "pack" / "000000.tar").open("r+b") as file:
        file.seek(600)
        file.write(b"!")
    assert (read_back(writer) != sums).tolist() == [True, False, False, False, False]
    writer.close()


def test_a_file_that_changes_while_it_is_packed_ends_the_run(pack_job: PackJob, tmp_path: Path) -> None:
    images = pixels_of(pack_job.stream)
    (tmp_path / "data" / "b.png").write_bytes(b"other")
    writer = TarWriter(pack_job, 1 << 30)
    writer.resume_after_shards(WholeShards())
    with pytest.raises(PackError, match=r"b\.png was decoded, but cannot be read again: stale"):
        writer.append_rows(PackedRows(np.arange(5), {"image": images}))
    writer.close()
    assert build_packing_stream(pack_job.stream, shuffled=False, batch_rows=9).spec.batches == 1
