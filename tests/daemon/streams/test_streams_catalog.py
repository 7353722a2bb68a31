"""From configuration to streams: manifests are made once, and ids follow what decides order and pixels."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images
from support.sample_specs import some_spec
from support.served_folder import change_times, serve
from support.transform_programs import Write

from streamd.config.load import load_config
from streamd.core.sampler import BadSample, Ids, compute_order_id
from streamd.core.spec import ImageSpec
from streamd.daemon.streams.catalog import (
    _format_source_for_id,
    find_state_directory,
    find_unlisted_streams,
    group_streams_by_family,
    has_all_manifests,
    open_streams,
    write_sample_manifests,
)
from streamd.daemon.streams.served_stream import ServedStream, measure_shuffles_in_thread
from streamd.daemon.streams.shuffle_score import score_shuffle_mixing
from streamd.dataset.arrays import NpySource
from streamd.dataset.manifest.manifest import Manifest
from streamd.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 5, "dog": 6}, size=(8, 8))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


def test_a_random_crop_keeps_its_bounds(folder: Path, state: Path) -> None:
    image = {"size": [10, 12], "resize": "random_crop", "scale": [0.5, 1], "ratio": [1, 2]}
    assert serve(folder, state, image=image).spec.image == ImageSpec(
        10, 12, 3, "random_crop", scale=(0.5, 1.0), ratio=(1.0, 2.0)
    )


def test_a_stream_follows_its_configuration(folder: Path, state: Path) -> None:
    spec = serve(folder, state, image={"size": [10, 12], "mode": "L", "resize": "crop", "exact": True}).spec
    assert (spec.name, spec.samples, spec.batch_size, spec.batches) == ("train", 11, 8, 2)
    assert spec.image_shape == (10, 12, 1)
    assert (spec.image.resize, spec.image.exact) == ("crop", True)
    assert (spec.labels["label"].classes, spec.labels["label"].counts) == (("cat", "dog"), (5, 6))
    assert (spec.shuffle, spec.seed, spec.remainder, spec.bad_policy) == ("full", 0, "keep", "substitute")


def test_only_the_user_may_read_the_state(folder: Path, state: Path) -> None:
    serve(folder, state)
    assert state.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in state.iterdir())


def test_a_manifest_is_made_once_and_used_again(folder: Path, state: Path) -> None:
    first = serve(folder, state)
    made = first.manifest_path.stat()
    write_images(folder, {"emu": 2}, size=(8, 8))
    second = serve(folder, state)
    assert second.spec == first.spec
    assert second.manifest_path.stat().st_ino == made.st_ino


def test_a_rescan_lists_again_and_clears_bad_samples(folder: Path, state: Path) -> None:
    first = serve(folder, state)
    first.quarantine.append_new_bad_samples([BadSample(0, "bad")])
    assert serve(folder, state).quarantine.reasons == {0: "bad"}
    write_images(folder, {"emu": 2}, size=(8, 8))
    second = serve(folder, state, rescan=True)
    assert second.spec.samples == 13
    assert second.spec.order_id != first.spec.order_id
    assert second.quarantine.reasons == {}


def test_a_late_bad_sample_of_the_old_list_does_not_affect_the_rescanned_one(folder: Path, state: Path) -> None:
    first = serve(folder, state)
    write_images(folder, {"ant": 1}, size=(8, 8))
    second = serve(folder, state, rescan=True)
    first.quarantine.append_new_bad_samples([BadSample(0, "bad")])
    second.quarantine.append_new_bad_samples([BadSample(1, "bad, too")])
    assert serve(folder, state).quarantine.reasons == {1: "bad, too"}


def test_lists_with_the_same_content_and_times_have_one_id(folder: Path, state: Path, tmp_path: Path) -> None:
    first = serve(folder, state)
    assert serve(folder, tmp_path / "elsewhere", batch_size=4).manifest.list_id == first.manifest.list_id
    change_times(folder / "cat/0000.jpg", 10**18)
    assert serve(folder, state).manifest.list_id == first.manifest.list_id
    assert serve(folder, state, rescan=True).manifest.list_id != first.manifest.list_id


def test_another_source_has_a_manifest_of_its_own(folder: Path, state: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other", {"cat": 3}, size=(8, 8))
    assert serve(folder, state).manifest_path != serve(other, state).manifest_path
    assert (serve(folder, state).spec.samples, serve(other, state).spec.samples) == (11, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 4},
        {"shuffle": {"kind": "full", "seed": 1}},
        {"shuffle": "none"},
        {"shuffle": "chunk"},
        {"drop_remainder": True},
        {"drop_remainder": "pad"},
        {"labels": {"label": {"type": "category", "classes": ["dog", "cat"]}}},
        {"image": {"size": [16, 16]}},
        {"normalize": "unit"},
    ],
    ids=str,
)
def test_the_order_id_follows_the_order_and_not_the_pixels(folder: Path, state: Path, change: dict[str, Any]) -> None:
    is_kept = serve(folder, state, **change).spec.order_id == serve(folder, state).spec.order_id
    assert is_kept == (change.keys() <= {"image", "normalize"})


def test_chunks_and_buffers_are_in_the_order_id_of_chunks_only(folder: Path, state: Path) -> None:
    chunks = [{"chunk": 4, "buffer": 2}, {"chunk": 5, "buffer": 2}, {"chunk": 4, "buffer": 1}]
    served = [serve(folder, state, shuffle={"kind": "chunk", **each}).spec for each in chunks]
    assert [(spec.chunk, spec.buffer) for spec in served] == [(4, 2), (5, 2), (4, 1)]
    assert len({spec.order_id for spec in served}) == 3
    full = serve(folder, state).spec
    assert (full.chunk, full.buffer) == (0, 0)


def test_order_ids_do_not_change_between_versions() -> None:
    """Tokens of older versions carry them."""
    chunks = some_spec(shuffle="chunk", chunk=3200, buffer=16, content_id="content")
    full, stored = some_spec(content_id="content"), some_spec(shuffle="none", content_id="content")
    assert compute_order_id(full.order_facts) == "ac15cf2244928540fe7061fb7f3f1cbc"
    assert compute_order_id(stored.order_facts) == "217041106b0a6718bbe4d5796ef2851f"
    assert compute_order_id(chunks.order_facts) == "7beeb5458b54bb9b8d2d015b3efb353e"


def test_a_stream_has_a_shuffle_score_and_advice(folder: Path, state: Path) -> None:
    sorted_by_class = serve(folder, state, shuffle={"kind": "chunk", "chunk": 1, "buffer": 1}, batch_size=2)
    found = score_shuffle_mixing(sorted_by_class.spec, sorted_by_class.manifest.gather_label)
    assert found is not None
    assert (sorted_by_class.shuffle_score, sorted_by_class.mixing_advice) == (found.score, found.advice)
    kept = serve(folder, state, shuffle="none")
    assert (kept.shuffle_score, kept.mixing_advice) == (None, None)


def test_opening_a_stream_reads_no_labels_and_its_score_is_computed_once(
    folder: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    label_rows = Manifest.gather_label

    def noted(self: Manifest, name: str, ids: Ids) -> Any:
        read.append(name)
        return label_rows(self, name, ids)

    monkeypatch.setattr(Manifest, "gather_label", noted)
    stream = serve(folder, state)
    assert read == []
    scores = [stream.shuffle_score, replace(stream, max_bad_fraction=0.5).shuffle_score, stream.mixing_advice]
    assert (read, scores[0]) == (["label"], scores[1])


def test_scores_are_computed_in_a_thread(folder: Path, state: Path) -> None:
    threads: list[int] = []
    stream = serve(folder, state)

    def rows_of(name: str, ids: Ids) -> Any:
        threads.append(threading.get_ident())
        return stream.manifest.gather_label(name, ids)

    measure_mixing = partial(score_shuffle_mixing, stream.spec, rows_of)
    asyncio.run(measure_shuffles_in_thread([replace(stream, measure_mixing=measure_mixing)]))
    assert threads
    assert threading.get_ident() not in threads


def test_a_changed_name_or_size_changes_the_order_id(folder: Path, state: Path) -> None:
    before = serve(folder, state).spec.order_id
    path = folder / "cat/0000.jpg"
    data = path.read_bytes()
    path.write_bytes(data + b"\0")
    larger = serve(folder, state, rescan=True).spec.order_id
    path.write_bytes(data)
    path.rename(path.with_name("0000a.jpg"))
    renamed = serve(folder, state, rescan=True).spec.order_id
    assert len({before, larger, renamed}) == 3


def test_neither_the_root_nor_the_mtimes_are_in_the_order_id(folder: Path, state: Path, tmp_path: Path) -> None:
    before = serve(folder, state).spec.order_id
    for path in folder.rglob("*.jpg"):
        change_times(path, 10**18)
    assert serve(folder, state, rescan=True).spec.order_id == before
    moved = folder.rename(tmp_path / "elsewhere")
    assert serve(moved, state).spec.order_id == before


def test_streams_share_one_class_list(folder: Path, state: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other", {"bee": 3, "dog": 2}, size=(8, 8))
    served = list_all({"train": stream_config(folder), "validation": stream_config(other)}, state)
    train, validation = served["train"], served["validation"]
    assert train.spec.labels["label"].classes == ("bee", "cat", "dog") == validation.spec.labels["label"].classes
    assert validation.manifest.label_column("label").tolist() == [0, 0, 0, 2, 2]


def folders(tmp_path: Path, **labels: object) -> dict[str, dict[str, Any]]:
    """A stream for each of `labels`, over a folder of its own."""
    sources = {name: write_images(tmp_path / name, {"cat": 2, "dog": 3}, size=(8, 8)) for name in labels}
    return {name: stream_config(sources[name], labels=labels[name]) for name in labels}


@pytest.mark.parametrize(
    ("labels", "together"),
    [
        ({"a": {"x": "category"}, "b": {"y": "category"}}, ["a", "b"]),
        ({"a": {"x": "category"}, "b": {"x": "tags"}}, ["ab"]),
        ({"a": {"x": "category", "y": "category"}, "b": {"y": "category", "z": "tags"}, "c": {"z": "tags"}}, ["abc"]),
        ({"a": {"x": "category"}, "b": {"y": "tags"}, "c": {"x": "category", "y": "tags"}}, ["abc"]),
        ({"a": {"x": "float"}, "b": {"x": "float"}}, ["a", "b"]),
        ({"a": None, "b": None, "c": {}}, ["ab", "c"]),
        ({"a": None, "b": {"label": "category"}}, ["ab"]),
    ],
    ids=str,
)
def test_streams_that_share_classes_are_one_family(tmp_path: Path, labels: dict[str, Any], together: list[str]) -> None:
    config = load_config({"streams": folders(tmp_path, **labels)})
    assert sorted("".join(sorted(family)) for family in group_streams_by_family(config)) == together


def test_streams_of_one_folder_or_table_are_one_family(folder: Path, tmp_path: Path) -> None:
    table = {"kind": "table", "path": str(tmp_path / "t.csv"), "image": "i", "root": str(folder)}
    sources = {"whole": table, "part": table | {"where": {"split": "test"}}, "other": table | {"path": "/u.csv"}}
    config = load_config({"streams": {name: stream_config(folder, source=source) for name, source in sources.items()}})
    assert set(group_streams_by_family(config)) == {frozenset({"whole", "part"}), frozenset({"other"})}


def test_a_change_in_another_family_does_not_list_again(state: Path, tmp_path: Path) -> None:
    streams = folders(tmp_path, a={"x": "category"}, b={"y": "category"})
    before = list_all(streams, state)
    write_images(tmp_path / "a", {"emu": 1}, size=(8, 8))
    write_images(tmp_path / "b", {"emu": 1}, size=(8, 8))
    streams["b"] |= {"labels": {"z": "category"}}
    assert find_unlisted_streams(load_config({"streams": streams}), state) == {"b"}
    after = list_all(streams, state)
    assert after["a"].manifest_path == before["a"].manifest_path
    assert [after[name].spec.samples for name in "ab"] == [5, 6]


def test_a_change_in_a_family_lists_the_whole_family_again(state: Path, tmp_path: Path) -> None:
    streams = folders(tmp_path, a={"x": "category"}, b={"x": "category"}, c={"y": "category"})
    before = list_all(streams, state)
    streams["b"] |= {"source": {"kind": "folder", "path": str(write_images(tmp_path / "e", {"emu": 1}))}}
    assert find_unlisted_streams(load_config({"streams": streams}), state) == {"a", "b"}
    after = list_all(streams, state)
    assert after["a"].spec.labels["x"].classes == ("cat", "dog", "emu")
    assert after["a"].spec.order_id != before["a"].spec.order_id
    assert after["c"].spec == before["c"].spec


def test_bad_samples_of_other_families_survive_a_listing(state: Path, tmp_path: Path) -> None:
    streams = folders(tmp_path, a={"x": "category"}, b={"y": "category"})
    for stream in list_all(streams, state).values():
        stream.quarantine.append_new_bad_samples([BadSample(0, "bad")])
    streams["b"] |= {"labels": {"z": "category"}}
    after = list_all(streams, state)
    assert [after[name].quarantine.reasons for name in "ab"] == [{0: "bad"}, {}]


def test_an_earlier_configuration_finds_its_list_again(folder: Path, state: Path) -> None:
    first = serve(folder, state)
    serve(folder, state, labels={"kind": "category"})
    assert has_all_manifests(load_config({"streams": {"train": stream_config(folder)}}), state)
    assert serve(folder, state).manifest_path == first.manifest_path


def list_all(streams: dict[str, Any], state: Path) -> dict[str, ServedStream]:
    """Lists the streams that are not listed yet, and opens all."""
    config = load_config({"streams": streams})
    write_sample_manifests(config, state, lambda *_: None, names=find_unlisted_streams(config, state))
    return {stream.spec.name: stream for stream in open_streams(config, state)}


def opened(state: Path, train: dict[str, Any], validation: dict[str, Any]) -> list[ServedStream]:
    """The stream `train`, and one like it but for the keys of `validation`."""
    streams = {"train": train, "validation": {"like": "train", "shuffle": "none", **validation}}
    return [*list_all(streams, state).values()]


def test_two_streams_are_the_parts_of_one_folder(folder: Path, state: Path) -> None:
    source = {"kind": "folder", "path": str(folder)}
    train, validation = opened(
        state,
        stream_config(folder, source={**source, "part": "train"}, split={"validation": 0.4}),
        {"source": {**source, "part": "validation"}},
    )
    files = [
        [stream.format_file_name(sample) for sample in range(stream.spec.samples)] for stream in (train, validation)
    ]
    assert sorted(files[0] + files[1]) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
    assert (train.spec.shuffle, validation.spec.shuffle) == ("full", "none")
    counts = [stream.spec.labels["label"].counts for stream in (train, validation)]
    assert [sum(each) for each in zip(*counts, strict=True)] == [5, 6]
    assert all(stream.spec.labels["label"].classes == ("cat", "dog") for stream in (train, validation))
    assert train.spec.order_id != validation.spec.order_id


def test_another_split_has_a_manifest_of_its_own(folder: Path, state: Path) -> None:
    source = {"kind": "folder", "path": str(folder), "part": "train"}
    streams = [serve(folder, state, source=source, split={"validation": 0.4, "seed": seed}) for seed in range(3)]
    assert len({stream.manifest_path for stream in streams}) == 3
    assert len({stream.spec.order_id for stream in streams}) > 1


def test_rows_of_one_table_make_two_streams_that_share_their_classes(folder: Path, state: Path, tmp_path: Path) -> None:
    rows = "cat/0000.jpg,train,cat,red\ncat/0001.jpg,train,cat,\ndog/0000.jpg,test,dog,round;red\n"
    (tmp_path / "all.csv").write_text(f"file,split,kind,tags\n{rows}")
    source = {"kind": "table", "path": str(tmp_path / "all.csv"), "image": "file", "root": str(folder)}
    train, validation = opened(
        state,
        stream_config(
            folder, source={**source, "where": {"split": "train"}}, labels={"kind": "category", "tags": "tags"}
        ),
        {"source": {**source, "where": {"split": "test"}}},
    )
    assert (train.spec.samples, validation.spec.samples) == (2, 1)
    for name, classes in (("kind", ("cat", "dog")), ("tags", ("red", "round"))):
        assert train.spec.labels[name].classes == validation.spec.labels[name].classes == classes
    assert (train.spec.labels["tags"].counts, validation.spec.labels["tags"].counts) == ((1, 0), (1, 1))
    assert validation.manifest.gather_label("tags", np.array([0])).tolist() == [[1, 1]]


def test_a_stream_opens_without_its_images(folder: Path, state: Path, tmp_path: Path) -> None:
    listed = serve(folder, state).spec
    folder.rename(tmp_path / "elsewhere")
    assert serve(folder, state).spec == listed


def test_a_folder_without_images_is_refused(tmp_path: Path, state: Path) -> None:
    (tmp_path / "data" / "cat").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"streams\.train"):
        serve(tmp_path / "data", state)


def test_an_epoch_without_batches_is_refused_with_the_remedy(folder: Path, state: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"11 samples cannot fill one batch of 12.*drop_remainder: false or a smaller"
    ):
        serve(folder, state, batch_size=12, drop_remainder=True)


@pytest.mark.parametrize("under", [False, True])
def test_a_state_folder_that_cannot_be_made_is_refused_with_the_remedy(
    folder: Path, tmp_path: Path, *, under: bool
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot keep state in .*file.*set STATE_DIRECTORY"):
        serve(folder, blocked / "under" if under else blocked)


def test_a_full_disk_is_a_configuration_error(folder: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot write the manifest .*No space left"):
        serve(folder, state)
    assert [path.name for path in state.iterdir()] == []


def test_the_state_directory_of_systemd_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/streamd:/var/lib/other")
    assert find_state_directory() == Path("/var/lib/streamd")


def test_without_systemd_the_users_state_folder_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert find_state_directory() == tmp_path / "streamd"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_state_directory() == tmp_path / ".local/state/streamd"


def test_a_state_folder_with_a_name_that_is_not_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", os.fsdecode(b"/var/lib/\xff"))
    with pytest.raises(ConfigError, match=r"^cannot keep state in '/var/lib/\\udcff', whose name is not UTF-8; set "):
        find_state_directory()


def test_parts_of_one_source_are_taken_from_one_listing(folder: Path, state: Path) -> None:
    train = stream_config(folder) | {"split": {"validation": 0.5}}
    streams = {
        part: train | {"source": {"kind": "folder", "path": str(folder), "part": part}}
        for part in ("train", "validation")
    }
    listed: list[str] = []
    config = load_config({"streams": streams | {"other": stream_config(folder) | {"labels": {}}}})
    write_sample_manifests(config, state, lambda stream, _: listed.append(stream))
    train_ids, validation_ids, other = open_streams(config, state)
    assert listed == ["train", "other"]
    assert train_ids.spec.samples + validation_ids.spec.samples == other.spec.samples == 11


def test_a_new_source_key_changes_the_list_id_only_where_it_is_set() -> None:
    plain = NpySource("x.npy", table=Path("t.csv"))
    assert _format_source_for_id(plain) == repr(plain)
    assert _format_source_for_id(replace(plain, names="file")) == f"{plain!r}{{'names': 'file'}}"


# --- transforms


def test_a_transform_is_found_beside_the_configuration_and_follows_its_source(
    folder: Path, state: Path, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = program("augment", "").parent
    monkeypatch.chdir(beside)
    first = serve(folder, state, transform="augment:f")
    assert first.transform is not None
    assert (first.transform.function, first.transform.folder) == ("f", str(beside))
    program("augment", "# edited")
    second = serve(folder, state, transform="augment:f")
    assert second.transform not in {first.transform, None}
    assert (second.spec, second.manifest_path) == (first.spec, first.manifest_path)


def test_a_missing_transform_is_refused_before_samples_are_listed(folder: Path, state: Path) -> None:
    config = load_config({"streams": {"train": stream_config(folder, transform="nowhere_to_be_found:f")}})
    with pytest.raises(ConfigError, match=r"^streams\.train\.transform: there is no module 'nowhere_to_be_found'"):
        write_sample_manifests(config, state, lambda *_: pytest.fail("it lists"))
    assert find_unlisted_streams(config, state) == {"train"}


def test_bad_samples_belong_to_one_version_of_a_transform_and_a_rescan_clears_all(
    folder: Path, state: Path, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program("augment", "").parent)
    plain, changed = serve(folder, state), serve(folder, state, transform="augment:f")
    plain.quarantine.append_new_bad_samples([BadSample(0, "bad")])
    changed.quarantine.append_new_bad_samples([BadSample(1, "transform raised")])
    assert serve(folder, state).quarantine.reasons == {0: "bad"}
    assert serve(folder, state, transform="augment:f").quarantine.reasons == {1: "transform raised"}
    assert serve(folder, state, transform="augment:g").quarantine.reasons == {}
    serve(folder, state, rescan=True)
    assert serve(folder, state, transform="augment:f").quarantine.reasons == {}
