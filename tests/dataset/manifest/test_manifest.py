"""A manifest gives back what was scanned, all of it or nothing."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.manifest import Manifest, compute_content_id, write_manifest
from streamd.dataset.manifest.types import ArrayFiles, ListedValues, ScannedSamples, ShardFiles
from streamd.errors import ConfigError


def scanned(files: list[bytes]) -> ScannedSamples:
    n = len(files)
    angles = np.linspace(-1, 1, n, dtype=np.float32)
    return ScannedSamples(
        root=Path("/data"),
        files=files,
        sizes=np.arange(n, dtype=np.int64) + 100,
        mtimes_ns=np.arange(n, dtype=np.int64) + 10**18,
        labels={"label": np.arange(n, dtype=np.int64) % 2, "angle": angles},
        specs={
            "label": LabelSpec("label", "category", classes=("cat", "dog"), counts=(n - n // 2, n // 2)),
            "angle": LabelSpec("angle", "float", mean=0.0, std=0.5),
        },
    )


def written(tmp_path: Path, what: ScannedSamples) -> Path:
    path = tmp_path / "train.manifest"
    write_manifest(path, what, config_id="c1")
    return path


THREE = scanned([b"cat/a.jpg", b"dog/\xff\n.jpg", b"cat/b.jpg"])


def test_a_manifest_holds_what_was_written(tmp_path: Path) -> None:
    manifest = Manifest.open(written(tmp_path, THREE))
    assert (manifest.samples, manifest.root, manifest.config_id) == (3, Path("/data"), "c1")
    assert manifest.labels == THREE.specs
    assert manifest.content_id == compute_content_id(THREE)
    assert manifest.sizes.tolist() == THREE.sizes.tolist()
    assert manifest.mtimes_ns.tolist() == THREE.mtimes_ns.tolist()
    for name, values in THREE.labels.items():
        assert manifest.label_column(name).dtype == values.dtype
        assert manifest.label_column(name).tolist() == values.tolist()
    assert [manifest.file_name(row) for row in range(3)] == THREE.files
    assert manifest.file_names(np.array([2, 0, 2])) == [THREE.files[2], THREE.files[0], THREE.files[2]]
    assert manifest.file_names([]) == []


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=50))
def test_any_names_are_read_back(tmp_path_factory: pytest.TempPathFactory, names: list[bytes]) -> None:
    path = written(tmp_path_factory.mktemp("any"), scanned(names))
    assert Manifest.open(path).file_names(range(len(names))) == names


@pytest.mark.parametrize("sample_id", [-1, 3, 2**40])
def test_ids_out_of_range_are_refused(tmp_path: Path, sample_id: int) -> None:
    with pytest.raises(IndexError, match="asked of 3 samples"):
        Manifest.open(written(tmp_path, THREE)).file_name(sample_id)


def test_columns_are_read_only_views_of_the_mapping(tmp_path: Path) -> None:
    manifest = Manifest.open(written(tmp_path, THREE))
    assert not manifest.sizes.flags.owndata
    assert manifest.sizes.ctypes.data % 64 == 0
    assert manifest.label_column("angle").ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        manifest.sizes[0] = 1


def test_views_outlive_close_and_the_mapping_ends_with_the_last(tmp_path: Path) -> None:
    path = written(tmp_path, THREE)
    manifest = Manifest.open(path)
    sizes = manifest.sizes
    manifest.close()
    manifest.close()
    with pytest.raises(ValueError, match="is closed"):
        manifest.file_name(0)
    assert sizes.tolist() == [100, 101, 102]
    assert str(path) in Path("/proc/self/maps").read_text()
    del sizes
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_the_file_is_for_its_user_alone_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = written(tmp_path, THREE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208 - names are what is compared


def test_a_new_manifest_takes_the_place_of_a_mapped_one_and_leaves_it_whole(tmp_path: Path) -> None:
    old = Manifest.open(written(tmp_path, THREE))
    new = Manifest.open(written(tmp_path, scanned([b"x.jpg"])))
    assert old.file_names(range(3)) == THREE.files
    assert new.file_names([0]) == [b"x.jpg"]


def test_a_full_disk_leaves_the_old_manifest_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, THREE)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streamd.dataset.manifest.manifest.os.fsync", full)
    with pytest.raises(ConfigError, match=r"cannot write the manifest .* No space left on device; make room"):
        write_manifest(path, scanned([b"x.jpg"]), config_id="c2")
    assert Manifest.open(path).config_id == "c1"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_missing_state_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write the manifest '.*/none/m'"):
        write_manifest(tmp_path / "none" / "m", THREE, config_id="")
    with pytest.raises(ConfigError, match=r"there is no manifest at '.*/none/m'"):
        Manifest.open(tmp_path / "none" / "m")


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, THREE)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"cannot be used: .*; remove it, and it will be built again"):
            Manifest.open(path)


def test_every_damage_to_the_header_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, THREE)
    whole = path.read_bytes()
    length = int.from_bytes(whole[12:16], "little")
    for position in range(48 + length):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ConfigError, match="cannot be used"):
            Manifest.open(path)


def with_header(path: Path, header: bytes) -> Path:
    """Replaces the header of a manifest, with the checksum of the new one."""
    data = path.read_bytes()
    columns = data[-(-(48 + int.from_bytes(data[12:16], "little")) // 64) * 64 :]
    prefix = data[:12] + struct.pack("<I32s", len(header), hashlib.blake2b(header, digest_size=32).digest())
    path.write_bytes((prefix + header).ljust(-(-(48 + len(header)) // 64) * 64, b"\0") + columns)
    return path


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    header: dict[str, Any] = json.loads(data[48 : 48 + int.from_bytes(data[12:16], "little")])
    return header


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header: header.update(samples=4), "column 'offsets' has 4 rows"),
        (lambda header: header["columns"].pop("label.angle"), "column 'label.angle' has no rows"),
        (lambda header: header["columns"].pop("names"), "column 'names' has no rows"),
        (lambda header: header["columns"]["sizes"].update(shape=[2]), "column 'sizes' has 2 rows"),
        (lambda header: header["columns"]["sizes"].update(shape=[]), r"column 'sizes' is \|u1 \(\) at"),
        (lambda header: header["columns"]["sizes"].update(offset=-64), r"column 'sizes' is .* at -64"),
        (lambda header: header["columns"]["sizes"].update(dtype="O"), "column 'sizes' is O "),
        (lambda header: header["columns"]["sizes"].update(shape=[3, 1]), r"column 'sizes' is \|u1 \(3, 1\)"),
        (lambda header: header["columns"]["sizes"].update(dtype="|S1"), r"column 'sizes' is \|S1 \(3,\)"),
        (lambda header: header["labels"]["label"].update(type="tags", width=8), "column 'label.label' is .* \\(3,\\)"),
        (lambda header: header["labels"]["angle"].update(width=3), "column 'label.angle' is "),
        (lambda header: header.update(arrays={"shape": [1, 1, 3], "starts": [0, 5], "offsets": [0]}), "'offsets' has"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    path = written(tmp_path, THREE)
    header = header_of(path)
    with_header(path, json.dumps(header).encode())
    assert Manifest.open(path).samples == 3
    change(header)
    with_header(path, json.dumps(header).encode())
    with pytest.raises(ConfigError, match=f"its header contradicts itself: .*{said}"):
        Manifest.open(path)


def test_arrays_whose_rows_are_not_the_samples_are_refused(tmp_path: Path) -> None:
    place = ArrayFiles((1, 1, 3), (0, 3), (128,))
    path = written(
        tmp_path, replace(THREE, files=[b"x.npy"], sizes=np.array([9]), mtimes_ns=np.array([9]), arrays=place)
    )
    header = header_of(path)
    header["arrays"]["starts"] = [0, 2]
    with pytest.raises(ConfigError, match=r"its header contradicts itself: 1 files begin at rows \(0, 2\), of 3"):
        Manifest.open(with_header(path, json.dumps(header).encode()))


def test_shards_without_their_sizes_are_refused(tmp_path: Path) -> None:
    places = {name: np.zeros(3, np.int64) for name in ("shard", "offset")}
    shards = ShardFiles((b"a.tar",), (9,), (9,))
    path = written(tmp_path, replace(THREE, mtimes_ns=np.empty(0, np.int64), shards=shards, extra=places))
    header = header_of(path)
    header["shards"]["mtimes_ns"] = []
    with pytest.raises(ConfigError, match=r"its header contradicts itself: 1 shards have 1 sizes and 0 mtimes"):
        Manifest.open(with_header(path, json.dumps(header).encode()))


def test_a_header_that_is_not_text_is_of_another_kind(tmp_path: Path) -> None:
    path = written(tmp_path, THREE)
    with pytest.raises(ConfigError, match="its header is of another kind"):
        Manifest.open(with_header(path, json.dumps(header_of(path)).encode().replace(b"c1", b"\xff1")))


def test_another_kind_of_file_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"\x7fELF" + bytes(1000))
    with pytest.raises(ConfigError, match="it is not a manifest"):
        Manifest.open(tmp_path / "m")
    with pytest.raises(ConfigError, match="cannot read the manifest"):
        Manifest.open(tmp_path)


def test_display_names_are_stored_beside_file_names_and_change_no_id(tmp_path: Path) -> None:
    shown = replace(THREE, display_names=[b"original/a.jpg", b"", b"original/b.jpg"])
    manifest = Manifest.open(written(tmp_path, shown))
    assert manifest.display_names(range(3)) == [b"original/a.jpg", THREE.files[1], b"original/b.jpg"]
    assert manifest.file_names(range(3)) == THREE.files
    plain = tmp_path / "plain"
    plain.mkdir()
    assert Manifest.open(written(plain, THREE)).list_id == manifest.list_id
    assert compute_content_id(shown) == compute_content_id(THREE)


@pytest.mark.parametrize(
    "other",
    [
        replace(THREE, files=[b"cat/a.jpgd", b"og/\xff\n.jpg", b"cat/b.jpg"]),
        replace(THREE, sizes=THREE.sizes + 1),
        replace(THREE, labels=THREE.labels | {"angle": np.asarray(THREE.labels["angle"]) * 2}),
        replace(THREE, specs=THREE.specs | {"label": replace(THREE.specs["label"], classes=("cat", "dogs"))}),
        replace(THREE, specs=THREE.specs | {"label": replace(THREE.specs["label"], classes=("catdog",))}),
    ],
    ids=["names", "sizes", "values", "classes", "one class"],
)
def test_other_data_have_another_content_id(other: ScannedSamples) -> None:
    assert compute_content_id(other) != compute_content_id(THREE)


def with_label(values: ListedValues, spec: LabelSpec) -> ScannedSamples:
    return replace(THREE, labels={spec.name: values}, specs={spec.name: spec})


POSE = with_label(np.array([[1, 2], [3, 4], [5, 6]], np.float32), LabelSpec("x", "float", width=2))
TEXT = with_label(np.array([b"one", b"", "drei€".encode()]), LabelSpec("x", "string", text_bytes=7))
TAGS = with_label(
    np.packbits([[1, 0, 0, 0, 0, 0, 0, 0, 1], [0] * 9, [1] * 9], axis=1),
    LabelSpec("x", "tags", width=9, classes=tuple("abcdefghi"), counts=(2, 1, 1, 1, 1, 1, 1, 1, 2)),
)
WIDE = with_label(np.array([[1], [3], [5]], np.int64), LabelSpec("x", "int", width=1))
FLAT = with_label(np.array([1, 3, 5], np.int64), LabelSpec("x", "int"))


@pytest.mark.parametrize("what", [POSE, TEXT, TAGS, WIDE], ids=["vector", "string", "tags", "one wide"])
def test_columns_of_every_kind_of_label_are_read_back(tmp_path: Path, what: ScannedSamples) -> None:
    manifest = Manifest.open(written(tmp_path, what))
    assert manifest.labels == what.specs
    assert manifest.label_column("x").dtype == what.labels["x"].dtype
    assert manifest.label_column("x").tolist() == what.labels["x"].tolist()
    assert manifest.sizes.tolist() == THREE.sizes.tolist()


def test_gathered_rows_of_a_label_are_those_of_a_batch(tmp_path: Path) -> None:
    ids = np.array([2, 0, 2, 1])
    rows = Manifest.open(written(tmp_path, TAGS)).gather_label("x", ids)
    assert rows.tolist() == [[1] * 9, [1, 0, 0, 0, 0, 0, 0, 0, 1], [1] * 9, [0] * 9]
    rows = Manifest.open(written(tmp_path, POSE)).gather_label("x", ids)
    assert rows.tolist() == [[5, 6], [1, 2], [5, 6], [3, 4]]


def test_the_content_id_covers_every_kind_of_label() -> None:
    tags, text = (np.array(each.labels["x"]) for each in (TAGS, TEXT))
    tags[1, 1], text[1] = 128, b"x"
    others = [
        *(POSE, TEXT, TAGS, WIDE, FLAT),
        with_label(tags, TAGS.specs["x"]),
        with_label(text, TEXT.specs["x"]),
        with_label(np.asarray(POSE.labels["x"])[:, ::-1], POSE.specs["x"]),
        with_label(TAGS.labels["x"], replace(TAGS.specs["x"], classes=tuple("abcdefghj"))),
    ]
    assert len({compute_content_id(other) for other in others}) == len(others)


def test_samples_have_their_written_weights_or_one(tmp_path: Path) -> None:
    ids = np.array([2, 0, 2])
    plain = Manifest.open(written(tmp_path, THREE))
    assert (plain.has_weights, plain.gather_weights(ids).tolist()) == (False, [1] * 3)
    assert plain.gather_weights(ids).dtype == np.float32
    weighted = replace(THREE, weights=np.array([0.5, 0, 3], np.float32))
    manifest = Manifest.open(written(tmp_path, weighted))
    assert (manifest.has_weights, manifest.gather_weights(ids).tolist()) == (True, [3, 0.5, 3])
    assert manifest.labels == THREE.specs
    others = [THREE, weighted, replace(THREE, weights=np.ones(3, np.float32))]
    assert len({compute_content_id(other) for other in others}) == len(others)


def test_a_manifest_from_before_string_labels_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, THREE)
    whole = path.read_bytes()
    length = int.from_bytes(whole[12:16], "little")
    header = json.loads(whole[48 : 48 + length])
    assert [spec.pop("text_bytes") for spec in header["labels"].values()] == [0, 0]
    older = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    path.write_bytes(whole[:16] + hashlib.blake2b(older, digest_size=32).digest() + older + whole[48 + length :])
    manifest = Manifest.open(path)
    assert (manifest.labels, manifest.content_id) == (THREE.specs, compute_content_id(THREE))


def test_the_content_id_is_the_same_wherever_and_whenever_the_data_were_copied() -> None:
    labels = dict(reversed(THREE.labels.items()))
    copied = replace(THREE, root=Path("/elsewhere"), mtimes_ns=THREE.mtimes_ns + 5, labels=labels)
    assert compute_content_id(copied) == compute_content_id(THREE)


def test_the_content_id_is_pinned() -> None:
    assert compute_content_id(THREE) == "985656078d46d69636aca18fdcb9e057"


def test_a_sample_takes_under_a_hundred_bytes_beyond_its_name(tmp_path: Path) -> None:
    names = [b"%d" % row for row in range(10_000)]
    extra = written(tmp_path, scanned(names)).stat().st_size - sum(map(len, names))
    assert extra / len(names) < 25


def in_arrays(rows: list[int] | None = None) -> ScannedSamples:
    """Samples that are rows of two arrays, of 3 and of 4 rows, all of them or some."""
    n = 7 if rows is None else len(rows)
    return replace(
        scanned([b"a.npy", b"b.npy"]),
        labels={"angle": np.arange(n, dtype=np.float32)},
        specs={"angle": LabelSpec("angle", "float")},
        arrays=ArrayFiles((4, 5, 3), (0, 3, 7), (128, 64)),
        rows=None if rows is None else np.array(rows, np.int64),
    )


def test_samples_in_arrays_are_named_by_file_and_row(tmp_path: Path) -> None:
    manifest = Manifest.open(written(tmp_path, in_arrays()))
    assert (manifest.samples, manifest.arrays) == (7, ArrayFiles((4, 5, 3), (0, 3, 7), (128, 64)))
    assert manifest.file_names([0, 2, 3, 6]) == [b"a.npy[0]", b"a.npy[2]", b"b.npy[0]", b"b.npy[3]"]
    assert manifest.array_file_names() == [b"a.npy", b"b.npy"]
    assert (manifest.sizes.tolist(), manifest.lookup_sample_bytes(np.array([0, 6])).tolist()) == ([100, 101], [60, 60])
    assert manifest.lookup_rows(np.array([4, -1, 0])).tolist() == [4, -1, 0]
    with pytest.raises(IndexError, match="asked of 7 samples"):
        manifest.file_name(7)


def test_samples_that_are_some_rows_of_arrays_keep_their_places(tmp_path: Path) -> None:
    manifest = Manifest.open(written(tmp_path, in_arrays([6, 1, 3])))
    assert (manifest.samples, manifest.file_names(range(3))) == (3, [b"b.npy[3]", b"a.npy[1]", b"b.npy[0]"])
    assert manifest.lookup_rows(np.array([2, -1, 0])).tolist() == [3, -1, 6]


def test_files_have_their_own_bytes_and_no_arrays(tmp_path: Path) -> None:
    manifest = Manifest.open(written(tmp_path, THREE))
    assert (manifest.arrays, manifest.array_file_names()) == (None, [])
    assert manifest.lookup_sample_bytes(np.array([2, 0])).tolist() == [102, 100]


def test_the_content_id_covers_shape_and_places_of_rows_in_arrays() -> None:
    some = in_arrays([6, 1, 3])
    assert some.arrays is not None
    all_different = [
        some,
        replace(some, arrays=replace(some.arrays, shape=(5, 4, 3))),
        replace(some, arrays=replace(some.arrays, starts=(0, 4, 7))),
        replace(some, rows=np.array([6, 2, 3], np.int64)),
    ]
    assert len({compute_content_id(each) for each in all_different}) == len(all_different)


def test_a_sample_in_an_array_takes_no_more_than_its_labels(tmp_path: Path) -> None:
    n = 100_000
    many = replace(in_arrays(), labels={"y": np.zeros(n, np.int64)}, specs={"y": LabelSpec("y", "int")})
    many = replace(many, arrays=ArrayFiles((4, 5, 3), (0, 3, n), (128, 64)))
    assert written(tmp_path, many).stat().st_size < 8 * n + 4096
    assert written(tmp_path, replace(many, rows=np.arange(n))).stat().st_size < 16 * n + 4096


def test_the_name_of_a_folder_is_stored_once(tmp_path: Path) -> None:
    folder = b"a/long/way/down/into/a/folder/that/everything/lies/in/"
    names = [folder + b"%d.jpg" % row for row in range(10_000)]
    manifest = Manifest.open(written(tmp_path, scanned(names)))
    assert manifest.path.stat().st_size / len(names) < 40
    assert manifest.file_names([0, 9_999]) == [names[0], names[9_999]]


def test_numbers_of_any_size_are_read_back(tmp_path: Path) -> None:
    for edge in (2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**62):
        values = np.array([-edge, edge - 1, 0])
        what = replace(with_label(values, LabelSpec("x", "int")), sizes=np.array([0, edge, 1]))
        manifest = Manifest.open(written(tmp_path, what))
        assert manifest.label_column("x").tolist() == values.tolist()
        assert manifest.label_column("x").dtype == np.int64
        assert manifest.gather_label("x", np.array([1])).dtype == np.int64
        assert manifest.lookup_sample_bytes(np.array([1, 0])).tolist() == [edge, 0]


def test_a_manifest_of_version_1_is_read(tmp_path: Path) -> None:
    """Version 1: whole names in one blob, offsets in uint64."""
    path = written(tmp_path, THREE)
    whole = path.read_bytes()
    header = json.loads(whole[48 : 48 + int.from_bytes(whole[12:16], "little")])
    ends = np.cumsum([0, *map(len, THREE.files)]).astype("<u8")
    columns = {
        "names": np.frombuffer(b"".join(THREE.files), np.uint8),
        "offsets": ends,
        "sizes": THREE.sizes,
        "mtimes_ns": THREE.mtimes_ns,
        **{f"label.{name}": values for name, values in THREE.labels.items()},
    }
    body, header["columns"] = b"", {}
    for name, column in columns.items():
        body += bytes(-len(body) % 64)
        header["columns"][name] = {"dtype": column.dtype.str, "shape": column.shape, "offset": len(body)}
        body += np.asarray(column).tobytes()
    older = json.dumps(header).encode()
    start = b"streamdM" + struct.pack("<II", 1, len(older)) + hashlib.blake2b(older, digest_size=32).digest() + older
    path.write_bytes(start + bytes(-len(start) % 64) + body)
    manifest = Manifest.open(path)
    assert manifest.file_names(range(3)) == THREE.files
    assert (manifest.sizes.tolist(), manifest.content_id) == (THREE.sizes.tolist(), compute_content_id(THREE))
    assert manifest.label_column("label").tolist() == THREE.labels["label"].tolist()


def test_samples_in_shards_have_the_mtimes_of_their_shards(tmp_path: Path) -> None:
    shards = ShardFiles((b"a.tar", b"\xff.tar"), (10_000, 20_000), (10**18, 10**18 + 7))
    places = {"shard": np.array([0, 1, 1]), "offset": np.array([512, 512, 1 << 33])}
    files = [b"a.tar/1.jpg", b"\xff.tar/1.jpg", b"\xff.tar/2.jpg"]
    listed = replace(THREE, files=files, mtimes_ns=np.empty(0, np.int64), shards=shards, extra=places)
    manifest = Manifest.open(written(tmp_path, listed))
    assert (manifest.shards, manifest.samples, manifest.file_name(2)) == (shards, 3, files[2])
    assert manifest.mtimes_ns.tolist() == [10**18, 10**18 + 7, 10**18 + 7]
    assert manifest.lookup_mtimes_ns(np.array([2, 0])).tolist() == [10**18 + 7, 10**18]
    assert manifest.lookup_mtimes_ns(np.array(0)).item() == 10**18
    assert manifest.find_extra_column("offset").tolist() == [512, 512, 1 << 33]
    assert manifest.lookup_sample_bytes(np.array([1])).tolist() == [101]
    moved = replace(listed, shards=replace(shards, mtimes_ns=(1, 2)), extra={})
    assert compute_content_id(moved) == manifest.content_id


def test_ten_thousand_small_samples_in_shards_take_thirty_bytes_each(tmp_path: Path) -> None:
    count = 10_000
    listed = ScannedSamples(
        Path("/data"), [b"train-%04d.tar/%08d.jpg" % (row // 1000, row) for row in range(count)],
        np.full(count, 120_000), np.empty(0, np.int64), {"label": np.arange(count) % 1000},
        {"label": LabelSpec("label", "category", classes=tuple(range(1000)))},
        shards=ShardFiles((b"",) * 10, (1,) * 10, (1,) * 10),
        extra={"shard": np.arange(count) // 1000, "offset": np.arange(count) * 120_000},
    )  # fmt: skip
    assert written(tmp_path, listed).stat().st_size < 33 * count
