"""Lists go to another host: the same identities from other roots and mtimes, and only verdicts that hold there."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images
from support.driven_frames import clip_config, write_drives
from support.served_folder import change_times
from support.tar_shards import pack

from streamd.config.load import load_config
from streamd.config.schema import Config
from streamd.core.sampler import BadSample
from streamd.daemon.streams.catalog import build_lock_paths, has_all_manifests, open_streams, write_sample_manifests
from streamd.daemon.streams.manifest_archive import ExchangedList, export_lists, import_lists
from streamd.daemon.streams.manifest_locks import ManifestLock
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError
from streamd.worker.stream_reader import StreamReader


class Host:
    """A folder with data, a state folder, and streams over the data."""

    def __init__(self, place: Path, **streams: dict[str, Any]) -> None:
        self.place, self.state = place, place / "state"
        place.mkdir(exist_ok=True)
        self.state.mkdir(exist_ok=True)
        self.config: Config = load_config({"streams": streams or {"train": stream_config(place / "data")}})

    def list_samples(self) -> ServedStream:
        write_sample_manifests(self.config, self.state, lambda *_: None)
        return self.open()

    def open(self) -> ServedStream:
        return open_streams(self.config, self.state)[0]

    def export(self) -> Path:
        export_lists(self.config, self.state, self.place / "lists")
        return self.place / "lists"

    def import_from(self, other: Host) -> list[ExchangedList]:
        return import_lists(self.config, self.state, other.export(), lambda *_: None)


def copy_data(source: Path, target: Path) -> None:
    """A copy whose files all have other times."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for number, path in enumerate(sorted(target.rglob("*"))):
        change_times(path, 10**18 + number)


@pytest.fixture
def one(tmp_path: Path) -> Host:
    write_images(tmp_path / "one" / "data", {"cat": 5, "dog": 6}, size=(8, 8))
    return Host(tmp_path / "one")


@pytest.fixture
def other(tmp_path: Path, one: Host) -> Host:
    copy_data(one.place / "data", tmp_path / "other" / "data")
    return Host(tmp_path / "other")


def readable(stream: ServedStream) -> bool:
    reader = StreamReader.open(stream.spec, stream.manifest_path)
    found = reader.read_files(np.arange(stream.spec.samples, dtype=np.int64))
    reader.close()
    return all(isinstance(each, bytes) for each in found)


def test_a_copy_with_other_times_and_another_root_has_the_same_order_and_is_not_stale(one: Host, other: Host) -> None:
    exported = one.list_samples()
    (said,) = other.import_from(one)
    imported = other.open()
    assert has_all_manifests(other.config, other.state)
    assert (imported.spec.order_id, said.order_id) == (exported.spec.order_id, exported.spec.order_id)
    assert imported.manifest.root == other.place / "data"
    assert not np.array_equal(imported.manifest.mtimes_ns, exported.manifest.mtimes_ns)
    assert readable(imported)


def test_a_list_made_on_the_other_host_is_the_same_as_the_imported_one(one: Host, other: Host) -> None:
    one.list_samples()
    other.import_from(one)
    imported = other.open().manifest_path.read_bytes()
    assert other.list_samples().manifest_path.read_bytes() == imported


def test_the_archive_names_no_folder_and_no_time_of_the_host(one: Host) -> None:
    one.list_samples()
    with zipfile.ZipFile(one.export()) as archive:
        contents = b"".join(archive.read(name) for name in archive.namelist())
    assert os.fsencode(one.place) not in contents


def test_a_file_that_changes_after_the_import_is_stale(one: Host, other: Host) -> None:
    one.list_samples()
    other.import_from(one)
    change_times(other.place / "data" / "cat" / "0000.jpg", 7)
    assert not readable(other.open())


@pytest.mark.parametrize("damage", ["missing", "of another size"])
def test_a_copy_that_is_not_whole_is_refused_by_file_and_nothing_changes(one: Host, other: Host, damage: str) -> None:
    one.list_samples()
    path = other.place / "data" / "dog" / "0003.jpg"
    path.unlink() if damage == "missing" else path.write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"1 of 11 listed files is not in .*other/data'?, or of another size: .*0003"):
        other.import_from(one)
    assert not has_all_manifests(other.config, other.state)
    assert not list(other.state.glob(".import-*"))


def test_only_verdicts_on_bytes_that_were_read_are_exported(one: Host, other: Host) -> None:
    stream = one.list_samples()
    stream.quarantine.append_new_bad_samples(
        [BadSample(3, "a damaged JPEG"), BadSample(4, "No such file or directory", of_this_host=True)]
    )
    (said,) = other.import_from(one)
    assert said.verdicts == 1
    assert other.open().quarantine.list_bad_samples() == [BadSample(3, "a damaged JPEG")]


def test_verdicts_of_the_importing_host_on_the_old_list_are_gone(one: Host, other: Host) -> None:
    one.list_samples()
    other.list_samples().quarantine.append_new_bad_samples([BadSample(1, "bad here")])
    other.import_from(one)
    assert other.open().quarantine.reasons == {}


def test_other_settings_than_paths_are_refused(one: Host, tmp_path: Path, other: Host) -> None:
    one.list_samples()
    strange = Host(tmp_path / "other", train=stream_config(other.place / "data", labels={}))
    with pytest.raises(ConfigError, match="other settings of source, images, labels, split or weights"):
        strange.import_from(one)


def test_a_list_that_a_daemon_serves_is_not_replaced(one: Host, other: Host) -> None:
    one.list_samples()
    other.list_samples()
    lock = ManifestLock(build_lock_paths(other.config, other.state)["train"])
    assert lock.acquire_shared()
    with pytest.raises(ConfigError, match="is serving these samples"):
        other.import_from(one)


def test_shards_go_to_another_host(tmp_path: Path) -> None:
    def host(name: str) -> Host:
        source = {"kind": "tar", "path": str(tmp_path / name / "data" / "*.tar")}
        return Host(tmp_path / name, train={"source": source, "image": {"size": [8, 8]}, "labels": {}})

    folder = write_images(tmp_path / "images", {"a": 4}, size=(8, 8)) / "a"

    members = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
    pack(tmp_path / "one" / "data" / "0.tar", members)
    copy_data(tmp_path / "one" / "data", tmp_path / "two" / "data")
    one, two = host("one"), host("two")
    exported = one.list_samples()
    two.import_from(one)
    assert two.open().spec.order_id == exported.spec.order_id
    assert readable(two.open())


@pytest.mark.parametrize("content", [b"", b"no zip", "empty", "compressed", "cut"])
def test_a_file_that_holds_no_lists_is_refused(one: Host, other: Host, content: bytes | str) -> None:
    one.list_samples()
    path = one.export()
    whole = path.read_bytes()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            if content == "compressed":
                archive.writestr("lists.json", "{}")
    with pytest.raises(ConfigError, match="holds no whole lists"):
        import_lists(other.config, other.state, path, lambda *_: None)


def test_a_damaged_list_is_refused(one: Host, other: Host) -> None:
    one.list_samples()
    path = one.export()
    data = bytearray(path.read_bytes())
    data[data.index(b"streamdM") + 200] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="holds no whole lists"):
        import_lists(other.config, other.state, path, lambda *_: None)


def test_a_file_that_is_not_there_is_refused(other: Host) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        import_lists(other.config, other.state, other.place / "none", lambda *_: None)


def test_streams_that_are_listed_together_are_imported_together(tmp_path: Path, one: Host) -> None:
    one.list_samples()
    both = {name: stream_config(one.place / "data") for name in ("train", "again")}
    family = Host(tmp_path / "family", **both)
    with pytest.raises(ConfigError, match="no list of again, which must be listed together with train"):
        family.import_from(one)
    stranger = Host(tmp_path / "stranger", other=stream_config(one.place / "data"))
    with pytest.raises(ConfigError, match="has no list of a stream in this configuration"):
        stranger.import_from(one)


def test_clips_go_to_another_host_with_the_files_of_all_their_frames(tmp_path: Path) -> None:
    write_drives(tmp_path / "one" / "data")
    copy_data(tmp_path / "one" / "data", tmp_path / "other" / "data")
    one, other = (Host(place, train=clip_config(place / "data")) for place in (tmp_path / "one", tmp_path / "other"))
    exported = one.list_samples()
    other.import_from(one)
    imported = other.open()
    assert imported.spec.order_id == exported.spec.order_id
    clip, before = imported.manifest.images["clip"], exported.manifest.images["clip"]
    assert [clip.list_frame_files(row) for row in range(8)] == [before.list_frame_files(row) for row in range(8)]
    assert not np.array_equal(clip.mtimes_ns, exported.manifest.images["clip"].mtimes_ns)
    reader = StreamReader.open(imported.spec, imported.manifest_path)
    found = reader.read_files(np.arange(8, dtype=np.int64))
    reader.close()
    assert all(isinstance(each, tuple) and len(each[0]) == 3 for each in found)
    (other.place / "data" / "3.png").unlink()
    with pytest.raises(ConfigError, match=r"3\.png"):
        other.import_from(one)
