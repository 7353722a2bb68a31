"""From totals to findings: epoch times, file names, the effect of faults, caches and chunks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from support.boxed_pictures import write_yolo
from support.daemon_process import stream_config, write_images
from support.faulty_data import animals, config_of
from support.served_folder import serve

from streamd.cli.check import run as counting
from streamd.cli.check.findings import CacheEstimate, CheckFindings, TrainerCapacity, UnpackingEstimate, WeightSummary
from streamd.cli.check.run import (
    StreamTotals,
    build_findings,
    compute_trainer_capacity,
    estimate_cache,
    estimate_unpacking,
)
from streamd.config.load import load_config
from streamd.core.sampler import compute_batch_ids
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import StreamShape
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.cache import CacheFile, CacheLayout
from streamd.dataset.hdf5 import library_store
from streamd.dataset.hdf5.library_store import ChunkCache, Hdf5Store
from streamd.dataset.open_store import open_store
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.worker_messages import CachePlace, FaultEffect, GroupResult, SampleFault
from streamd.limits import DEFAULT_CREDIT, MAX_SESSIONS, MIB, MIN_CREDIT, PAGE_BYTES
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots


def summary(tmp_path: Path, seen: GroupResult, *, processes: int = 1, **changes: Any) -> CheckFindings:
    """The findings of the images in `data`, or of eight new ones, of which `seen` was read."""
    folder = tmp_path / "data" if (tmp_path / "data").exists() else animals(tmp_path)
    tally = StreamTotals(serve(folder, tmp_path / "state", **changes), np.array(seen.ids))
    tally.add_group_result(seen)
    config = load_config(config_of(tmp_path, {"train": stream_config(folder, **changes)}))
    return build_findings([tally], config, processes, notes=["a note"])


def good(ids: list[int]) -> GroupResult:
    """Files each unlike the others; a second to read them all, three to decode them."""
    return GroupResult(0, ids, 1.0, 3.0, {"JPEG": len(ids)}, {"50x40": len(ids)}, 0, [f"{each:032x}" for each in ids])


def test_the_epoch_time_is_scaled_from_the_files_read_by_all_processes(tmp_path: Path) -> None:
    epoch = summary(tmp_path, good([0, 4]), processes=2).streams["train"].epoch
    assert (epoch.processes, epoch.seconds, epoch.reading_s) == (2, 8.0, 2.0)


def test_the_findings_describe_the_stream_as_served(tmp_path: Path) -> None:
    found = summary(tmp_path, good(list(range(8))))
    train = found.streams["train"]
    stream = serve(tmp_path / "data", tmp_path / "state")
    assert (train.samples, train.read, train.batches, train.batch_size) == (8, 8, 1, 8)
    assert train.bytes == sum(path.stat().st_size for path in (tmp_path / "data").rglob("*.jpg"))
    assert train.labels["label"].classes == {"cat": 5, "dog": 3}
    assert train.memory.batch_bytes == compute_slot_bytes(stream.spec)
    assert train.memory.trainer_bytes == DEFAULT_CREDIT * train.memory.batch_bytes
    assert (found.memory_bytes, found.workers, found.notes) == (64 << 20, 2, ["a note"])


def test_arrays_are_named_by_the_kind_of_their_source_whatever_their_file_is_called(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "out-hdf5", "w") as file:
        file["images"] = np.zeros((8, 20, 30, 3), np.uint8)
    source = {"kind": "hdf5", "path": str(tmp_path / "out-hdf5"), "images": "/images"}
    seen = GroupResult(0, [0, 1], sizes={"20x30": 2}, digests=["01" * 16, "02" * 16])
    found = summary(tmp_path, seen, source=source, labels={}, image={})
    assert found.streams["train"].pictures.formats == {"HDF5": 2}


def test_random_crops_in_an_unshuffled_stream_are_a_warning(tmp_path: Path) -> None:
    crops: dict[str, Any] = {"image": {"size": [32, 32], "resize": "random_crop"}}
    evaluated = summary(tmp_path, good([0]), shuffle="none", **crops)
    assert evaluated.warnings[1].startswith("train: is not shuffled, as for evaluation, and shows a different part")
    assert "set image.resize: crop there" in evaluated.warnings[1]
    assert summary(tmp_path, good([0]), **crops).notes == ["a note"]
    assert summary(tmp_path, good([0]), shuffle="none").notes == ["a note"]


def test_the_shuffle_score_shows_how_well_batches_mix_the_labels(tmp_path: Path) -> None:
    seen = good([0, 4])
    full = summary(tmp_path, seen).streams["train"]  # one batch holds all
    assert (full.shuffle, full.shuffle_score, full.stored_score, full.poorly_mixed) == ("full", 1, 1, None)
    kept = summary(tmp_path, seen, shuffle="none", batch_size=2).streams["train"]
    assert (kept.shuffle, kept.shuffle_score, kept.poorly_mixed) == ("none", None, None)
    assert kept.stored_score is not None
    assert kept.stored_score < 0.6
    pairs = {"kind": "chunk", "chunk": 2, "buffer": 1}
    poor = summary(tmp_path, seen, shuffle=pairs, batch_size=2).streams["train"]
    assert poor.shuffle == "chunk, 1 chunk of 2 samples at a time"
    assert poor.shuffle_score == kept.stored_score


def test_the_epoch_time_counts_each_decompression_of_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = UnpackingEstimate(600, 1 << 20, 0.5, 600, 4, 0.01)
    monkeypatch.setattr("streamd.cli.check.run.estimate_unpacking", lambda *_: chunks)
    seen = good(list(range(8)))
    seen.unpacked, seen.unpack_s = 2, 0.5
    train = summary(tmp_path, seen).streams["train"]
    assert train.unpacking == chunks
    assert (train.epoch.reading_s, train.epoch.seconds) == (1.5, 4.5)  # 4 chunks, of 0.25 s each, where 2 were read
    seen.unpacked = 0
    assert summary(tmp_path, seen).streams["train"].epoch.reading_s == 1.0


def faulty(*effects: FaultEffect) -> GroupResult:
    """The first files are faults, with these effects, and the others good."""
    seen = good(list(range(8)))
    seen.faults = [SampleFault(each, f"reason {each}", effect) for each, effect in enumerate(effects)]
    del seen.digests[: len(effects)]
    return seen


def test_a_few_bad_samples_are_named_and_do_not_stop_the_stream(tmp_path: Path) -> None:
    train = summary(tmp_path, faulty("verdict", "verdict")).streams["train"]
    assert [(each.file, each.reason) for each in train.unreadable] == [
        ("cat/0000.jpg", "reason 0"),
        ("cat/0001.jpg", "reason 1"),
    ]
    assert train.bad_samples.stops is None


def test_with_policy_fail_one_bad_sample_stops_the_stream(tmp_path: Path) -> None:
    train = summary(tmp_path, faulty("verdict"), bad_samples={"policy": "fail"}).streams["train"]
    assert train.bad_samples.stops is not None
    assert "bad_samples.policy is fail" in train.bad_samples.stops


@pytest.mark.parametrize("effect", ["crash", "retry"])
def test_a_sample_without_a_verdict_stops_the_stream_under_any_policy(tmp_path: Path, effect: FaultEffect) -> None:
    train = summary(tmp_path, faulty("verdict", effect)).streams["train"]
    assert train.bad_samples.stops is not None
    assert "cat/0001.jpg: reason 1" in train.bad_samples.stops


def test_files_of_equal_content_contradict_if_their_classes_differ(tmp_path: Path) -> None:
    for path in animals(tmp_path).rglob("*.jpg"):
        path.write_bytes(bytes(10))  # now their sizes are equal
    seen = good(list(range(8)))
    seen.digests[5] = seen.digests[1]
    found = summary(tmp_path, seen)
    assert found.streams["train"].duplicates == [["cat/0001.jpg", "dog/0000.jpg"]]
    (contradiction,) = found.contradictions
    assert contradiction.files == ["train: cat/0001.jpg", "train: dog/0000.jpg"]
    assert (contradiction.values, contradiction.trouble) == (["cat", "dog"], True)


def test_weights_are_summarized_when_they_are_configured(tmp_path: Path) -> None:
    assert summary(tmp_path, good([0])).streams["train"].weights is None
    np.save(tmp_path / "weights.npy", np.array([0, 0, 0, 0, 0, 0, 1, 3], np.float32))
    found = summary(tmp_path, good([0]), weights=str(tmp_path / "weights.npy")).streams["train"].weights
    assert found == WeightSummary(0.0, 3.0, 0.5, 6)


def test_classes_that_differ_in_case_alone_are_trouble_unless_they_are_listed(tmp_path: Path) -> None:
    folder = animals(tmp_path)
    (folder / "dog").rename(folder / "Cat")
    found = summary(tmp_path, good(list(range(8))))
    (similar,) = found.similar_classes
    assert [(each.name, each.samples) for each in similar.classes] == [("Cat", 3), ("cat", 5)]
    assert similar.classes[0].example.startswith("train: Cat/")
    assert any(each.startswith("label: 'Cat' (3 samples, such as train: Cat/") for each in found.troubles)
    listed: dict[str, Any] = {"labels": {"label": {"type": "category", "classes": ["cat", "Cat"]}}}
    assert summary(tmp_path, good(list(range(8))), **listed).similar_classes == []


def test_classes_of_boxes_that_differ_in_case_alone_are_a_remark(tmp_path: Path) -> None:
    lines = ["0 .5 .5 .2 .2\n2 .5 .5 .2 .2", "", "1 .5 .5 .2 .2", "0 .5 .5 .2 .2"]
    path = write_yolo(tmp_path / "data", lines, "train: images/train\nnames: [Cat, cat, dog, Dog, dog]")
    source = {"kind": "yolo", "path": str(path), "part": "train"}
    found = summary(tmp_path, good(list(range(4))), source=source, labels={"boxes": {"type": "boxes", "max": 3}})
    assert found.similar_classes == []
    assert [each for each in found.notes if "learned" in each] == [
        (
            "boxes: 'Cat' (2 boxes, such as train: images/train/0.png) and 'cat' (1 box, such as train: "
            "images/train/2.png) differ only in upper and lower case, and are learned as 2 classes; give them one name "
            "in the data, unless they are meant to differ"
        )
    ]


def test_tags_that_differ_in_blanks_alone_name_a_sample_of_each(tmp_path: Path) -> None:
    folder = animals(tmp_path)
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.jpg"))
    tags = ["x", "big dog|x", "big  dog", *["x"] * 5]
    rows = "".join(f"{name},{tag}\n" for name, tag in zip(names, tags, strict=True))
    (tmp_path / "all.csv").write_text(f"file,t\n{rows}")
    source = {"kind": "table", "path": str(tmp_path / "all.csv"), "image": "file", "root": str(folder)}
    found = summary(tmp_path, good(list(range(8))), source=source, labels={"t": "tags"})
    (similar,) = found.similar_classes
    assert {each.name: each.example for each in similar.classes} == {
        "big  dog": f"train: {names[2]}",
        "big dog": f"train: {names[1]}",
    }


ROW_BYTES = 32 * 32 * 3


def estimated_cache(tmp_path: Path, most: object) -> CacheEstimate:
    """The estimate of a cache of nine images that may take `most` bytes."""
    folder = tmp_path / "data"
    if not folder.exists():
        write_images(folder, {"cat": 9}, size=(8, 8))
    stream = serve(folder, tmp_path / "state", cache={"path": str(tmp_path / "deep/cache"), "max": most})
    estimate = estimate_cache(stream)
    stream.manifest.close()
    assert estimate is not None
    return estimate


def test_a_stream_without_a_cache_has_no_estimate_of_one(tmp_path: Path) -> None:
    assert estimate_cache(serve(animals(tmp_path), tmp_path / "state")) is None


@pytest.mark.parametrize(
    ("most", "samples"), [(None, 9), (2 * PAGE_BYTES + 4 * ROW_BYTES + 1, 4), (2 * PAGE_BYTES, 0), (1 << 40, 9)]
)
def test_the_cache_keeps_as_many_samples_as_fit(tmp_path: Path, most: int | None, samples: int) -> None:
    cache = estimated_cache(tmp_path, most)
    assert (cache.samples, cache.bytes) == (samples, 2 * PAGE_BYTES + samples * ROW_BYTES)
    assert cache.all_bytes == 2 * PAGE_BYTES + 9 * ROW_BYTES
    assert cache.folder == str(tmp_path / "deep/cache")
    assert not (tmp_path / "deep").exists()


def test_space_already_used_by_the_cache_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    folder = tmp_path / "deep/cache"
    folder.mkdir(parents=True)
    before = estimated_cache(tmp_path, None)
    stream = serve(tmp_path / "data", tmp_path / "state")
    shape = CacheLayout.from_stream_spec(stream.spec, compute_pixel_id(stream.spec.image))
    CacheFile.open(CachePlace(str(folder), None, writable=True), shape).close()
    stream.manifest.close()
    after = estimated_cache(tmp_path, None)
    assert before.free_bytes == 1000
    assert after.free_bytes >= 1000 + after.bytes


def test_the_free_bytes_are_those_of_the_disk(tmp_path: Path) -> None:
    assert 0 < estimated_cache(tmp_path, None).free_bytes <= shutil.disk_usage(tmp_path).total


CHUNK_BYTES = 10 * 4 * 4 * 3
ROWS = 240
CHUNKS = ROWS // 10


@pytest.fixture(autouse=True)
def _room_for_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("streamd.cli.check.run", "streamd.dataset.hdf5.chunk_grid"):
        monkeypatch.setattr(f"{module}.CHUNKS_KEPT_BYTES", 2 * CHUNK_BYTES)
    monkeypatch.setattr(library_store, "CHUNK_CACHE", ChunkCache(2 * CHUNK_BYTES))


def packed(tmp_path: Path, **changes: Any) -> ServedStream:
    """A stream of 24 compressed chunks of 10 rows."""
    path = tmp_path / "x.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (ROWS, 4, 4, 3), np.uint8, chunks=(10, 4, 4, 3), compression="gzip")[:] = 1
    source = {"kind": "hdf5", "path": str(path), "images": "x"}
    defaults: dict[str, Any] = {"source": source, "image": {}, "labels": {}, "batch_size": 5}
    return serve(tmp_path, tmp_path / "state", **(defaults | changes))


def unpacking(tmp_path: Path, workers: int = 1, **changes: Any) -> UnpackingEstimate:
    estimate = estimate_unpacking(packed(tmp_path, **changes), workers)
    assert estimate is not None
    return estimate


ORDERS = [{}, {"shuffle": "full"}, {"shuffle": "none"}, {"shuffle": {"kind": "chunk", "chunk": 40, "buffer": 3}}]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_estimate_for_one_worker_equals_what_its_store_decompresses(tmp_path: Path, order: dict[str, Any]) -> None:
    stream = packed(tmp_path, **order)
    root = os.open(tmp_path, os.O_RDONLY)
    store = open_store(stream.manifest, root)
    assert isinstance(store, Hdf5Store)
    images = np.empty((5, 4, 4, 3), np.uint8)
    for index in range(stream.spec.batches):
        assert store.gather(compute_batch_ids(stream.order, 0, index, 5), {"image": images})[0].all()
    assert round(unpacking(tmp_path, **order).per_sample * ROWS) == store.decompression_totals[0]
    store.close()
    os.close(root)


def test_the_default_order_is_the_fast_one_and_a_full_shuffle_is_slow(tmp_path: Path) -> None:
    default, full = unpacking(tmp_path), unpacking(tmp_path, shuffle="full")
    assert (default.chunk_rows, default.chunk_bytes) == (10, CHUNK_BYTES)
    assert (default.fast_chunk, default.fast_buffer) == (10, 2)
    assert default.per_sample == default.fast_per_sample == full.fast_per_sample == CHUNKS / ROWS
    assert full.per_sample > 5 * full.fast_per_sample


def test_each_worker_decompresses_for_itself_and_a_long_epoch_is_judged_by_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 * CHUNKS / ROWS < unpacking(tmp_path, workers=3).per_sample < 3 * CHUNKS / ROWS
    monkeypatch.setattr(counting, "UNPACKING_ROWS", ROWS // 2)
    assert unpacking(tmp_path).per_sample == CHUNKS / ROWS


def test_padding_rows_of_the_last_batch_decompress_nothing(tmp_path: Path) -> None:
    assert unpacking(tmp_path, batch_size=64, drop_remainder="pad") == unpacking(tmp_path, batch_size=64)


def test_images_in_files_have_no_chunks(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((9, 4, 4, 3), np.uint8))
    assert estimate_unpacking(packed(tmp_path, source={"kind": "npy", "path": str(tmp_path / "x.npy")}), 1) is None


TRAIN = StreamShape("train", 100, MIB, 1)
WORKERS = 2


def test_trainers_at_ease_leave_room_for_one_more() -> None:
    memory = 73 * MIB
    assert memory == (4 * DEFAULT_CREDIT + compute_production_slots(TRAIN, SchedulerLimits(memory, WORKERS))) * MIB
    assert compute_trainer_capacity([TRAIN], SchedulerLimits(memory, WORKERS)).at_ease == 3
    assert compute_trainer_capacity([TRAIN], SchedulerLimits(memory - 1, WORKERS)).at_ease == 2


def test_at_most_counts_trainers_with_the_least_credit() -> None:
    ahead = compute_production_slots(TRAIN, SchedulerLimits(40 * MIB, WORKERS))
    assert compute_trainer_capacity([TRAIN], SchedulerLimits((5 * MIN_CREDIT + ahead) * MIB, WORKERS)).at_most == 5
    assert compute_trainer_capacity([TRAIN], SchedulerLimits((5 * MIN_CREDIT + ahead) * MIB - 1, WORKERS)).at_most == 4


def test_the_refusal_explains_why_no_trainer_fits() -> None:
    found = compute_trainer_capacity([TRAIN], SchedulerLimits(2 * MIB, WORKERS))
    assert (found.at_ease, found.at_most) == (0, 0)
    assert found.refusal is not None
    assert "one batch takes 1.0 MiB" in found.refusal


def test_trainers_that_read_several_streams_need_room_for_all_of_them() -> None:
    validation = StreamShape("validation", 10, MIB, 1)
    memory = 40 * MIB
    alone, both = (
        compute_trainer_capacity([TRAIN], SchedulerLimits(memory, WORKERS)),
        compute_trainer_capacity([TRAIN, validation], SchedulerLimits(memory, WORKERS)),
    )
    assert 0 < both.at_most <= alone.at_most // 2
    tight = compute_trainer_capacity([TRAIN, validation], SchedulerLimits(4 * MIB, WORKERS))
    assert (tight.at_most, tight.refusal is not None) == (0, True)
    assert compute_trainer_capacity([TRAIN], SchedulerLimits(4 * MIB, WORKERS)).at_most == 1


@pytest.mark.parametrize(("streams", "most"), [(1, MAX_SESSIONS), (2, MAX_SESSIONS // 2)])
def test_the_capacity_is_at_most_the_session_limit(streams: int, most: int) -> None:
    shapes = [StreamShape(f"s{number}", 100, 4096, 1) for number in range(streams)]
    found = compute_trainer_capacity(shapes, SchedulerLimits(1000 * MIB, WORKERS))

    assert found == TrainerCapacity(found.at_ease, most)
    assert 0.9 * most < found.at_ease <= most, "all but for the slots that the workers need"
