"""An open stream in a worker: what it reads, what it leaves to a store, and when it reads ahead."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import write_images
from support.opened_streams import LABELS, holding
from support.served_folder import change_times, file_of, serve
from support.transform_programs import Write

from streamd.core.sampler import PAD_ID, BadSample
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.open_beneath import read_file
from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, create_memfd
from streamd.ipc.worker_messages import CachePlace, OpenStream, TransformPlace
from streamd.worker import stream_reader as opened_module
from streamd.worker.stream_reader import ReadPace, StreamReader, UnreadFile, open_reader, predict_pixel_id


def test_files_of_samples_in_a_store_are_not_read_ahead(source: StreamReader, stream: ServedStream) -> None:
    stocked, _ = holding(source, 2, 4)
    file_of(stream, 4).unlink()
    ids = np.array([4, 3, PAD_ID], np.int64)
    late, read, pad = stocked.read_files(ids)
    assert (late, read, pad) == (UnreadFile.LATER, file_of(stream, 3).read_bytes(), None)
    assert stocked.find_samples_to_decode(ids).tolist() == [False, True, False]


def test_prefetching_is_passed_on_to_the_store(source: StreamReader) -> None:
    stocked, store = holding(source, 2)
    stocked.prefetch_rows(np.array([4, 2], np.int64))
    source.prefetch_rows(np.array([4, 2], np.int64))  # which has none
    assert store.expected == [4, 2]


def test_a_store_is_closed_with_its_source(stream: ServedStream) -> None:
    stocked, store = holding(StreamReader.open(stream.spec, stream.manifest_path))
    stocked.close()
    assert store.closed


def test_opening_a_stream_without_its_root_is_an_error(stream: ServedStream, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(DataAwayError, match=r"^'.*data' cannot be opened: No such file or directory$"):
        StreamReader.open(stream.spec, stream.manifest_path)


# --- the root


def bad(source: StreamReader, *ids: int) -> list[BadSample]:
    blobs = source.read_files(np.array(ids, np.int64))
    return [blob for blob in blobs if isinstance(blob, BadSample)]


def test_a_file_that_is_missing_from_a_proven_root_is_lastingly_bad(source: StreamReader, stream: ServedStream) -> None:
    file_of(stream, 3).unlink()
    assert bad(source, 2, 3) == [BadSample(3, "No such file or directory", lasting=True, of_this_host=True)]


@pytest.mark.parametrize("leave", ["nothing", "an empty folder", "other files", "a quarter"])
def test_files_are_away_where_the_root_is_not_the_listed_one(
    source: StreamReader, stream: ServedStream, tmp_path: Path, leave: str
) -> None:
    root, aside = stream.manifest.root, tmp_path / "aside"
    names = [file_of(stream, each).relative_to(root) for each in range(9)]
    root.rename(aside)  # the source has it open still, and reads on there, until it fails
    (aside / names[3]).rename(tmp_path / "kept")
    if leave != "nothing":
        for name in names:
            (root / name.parent).mkdir(parents=True, exist_ok=True)
    if leave == "other files":
        for name in names:
            (root / name).write_bytes(b"another file")
    if leave == "a quarter":
        for name in names[:2]:
            (root / name).write_bytes((aside / name).read_bytes())
    (each,) = bad(source, 3)
    assert (each.sample_id, each.lasting, each.away) == (3, False, True)
    if root.exists():
        shutil.rmtree(root)
    (tmp_path / "kept").rename(aside / names[3])
    aside.rename(root)
    assert bad(source, 3, 5) == []


def test_a_root_that_is_mounted_over_is_read_where_its_path_leads(
    source: StreamReader, stream: ServedStream, tmp_path: Path
) -> None:
    root = stream.manifest.root
    shutil.copytree(root, tmp_path / "mounted")
    below = root.rename(tmp_path / "below")  # which the source has open, as the folder under a mount point
    shutil.rmtree(below / "cat")
    for path in (tmp_path / "mounted").glob("*/*"):
        change_times(path, file_mtime_ns(stream, path.relative_to(tmp_path / "mounted")))
    (tmp_path / "mounted").rename(root)
    assert bad(source, 0, 3, 5) == []


def file_mtime_ns(stream: ServedStream, name: Path) -> int:
    names = [stream.format_file_name(each) for each in range(stream.spec.samples)]
    return int(stream.manifest.mtimes_ns[names.index(str(name))])


def test_a_root_that_is_moved_during_a_read_makes_no_sample_lastingly_bad(
    source: StreamReader, stream: ServedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of(stream, 3).unlink()
    tries = iter(range(2))

    def go_with_the_second(*arguments: Any) -> bytes:
        if next(tries) == 1:
            stream.manifest.root.rename(tmp_path / "aside")
        return read_file(*arguments)

    monkeypatch.setattr(opened_module, "read_file", go_with_the_second)
    (each,) = bad(source, 3)
    assert (each.lasting, each.away) == (False, True)


def test_the_pixel_id_can_be_predicted_while_the_data_are_away(
    stream: ServedStream, place: TransformPlace, tmp_path: Path
) -> None:
    command = OpenStream(0, str(stream.manifest_path), stream.spec, None, place)
    source, remark = open_reader(command)
    (tmp_path / "data").rename(tmp_path / "moved")
    descriptor = create_memfd("track", PROGRESS_PAGE_BYTES)
    track = ProgressPage(descriptor)
    assert predict_pixel_id(command, track) == (source.pixel_id, remark)
    track.close()
    os.close(descriptor)
    source.close()


def test_a_stream_with_a_cache_opens_without_its_root_and_serves_cached_samples(
    stream: ServedStream, tmp_path: Path
) -> None:
    cache = CachePlace(str(tmp_path), None, writable=True)
    (tmp_path / "data").rename(tmp_path / "moved")
    source, _ = open_reader(OpenStream(0, str(stream.manifest_path), stream.spec, cache))
    lacking, _ = holding(source, 2)
    held, away = lacking.read_files(np.array([2, 3], np.int64))
    assert held is UnreadFile.LATER
    assert isinstance(away, BadSample)
    assert (away.sample_id, away.lasting, away.away) == (3, False, True)
    (tmp_path / "moved").rename(tmp_path / "data")
    assert source.read_files(np.array([3], np.int64)) == [file_of(stream, 3).read_bytes()]
    source.close()


# --- reading ahead


QUICK, SLOW = (32, 0.0003), (32, 0.01)  # the files of a group, and the seconds that they took


@pytest.mark.parametrize(
    ("groups", "reads_ahead"),
    [
        ([QUICK] * 7, True),
        ([QUICK] * 8, False),
        ([QUICK] * 20 + [SLOW], True),
        ([QUICK] * 20 + [SLOW] + [QUICK] * 7, True),
        ([(0, 0.0)] * 20, True),
        ([(1, 0.0003)] * 8, True),
    ],
    ids=["seven quick groups", "eight", "a slow one after", "and seven quick ones", "no files", "slow for one file"],
)
def test_files_are_read_ahead_until_eight_groups_in_a_row_took_no_time(
    groups: list[tuple[int, float]], *, reads_ahead: bool
) -> None:
    pace = ReadPace()
    for files, seconds in groups:
        pace.record_group(files, seconds)
    assert pace.reads_ahead == reads_ahead


def test_a_manifest_that_another_daemon_has_replaced_is_refused(stream: ServedStream) -> None:
    write_images(stream.manifest.root, {"cat": 5})
    serve(stream.manifest.root, stream.manifest_path.parent, rescan=True, labels=LABELS)
    with pytest.raises(ConfigError, match="listed again by another streamd"):
        StreamReader.open(stream.spec, stream.manifest_path)


@pytest.fixture
def place(program: Write) -> TransformPlace:
    """Of a transform that raises on images of one colour, as some of the built-in ones are."""
    text = "def f(image, labels, rng):\n    if (image == image[0]).all():\n        raise ValueError('no contrast')\n"
    return find_transform_source("augment:f", program("augment", f"{text}    return image, labels").parent)


def test_a_transform_changes_the_pixel_id_and_not_the_decoded_pixel_id(
    stream: ServedStream, place: TransformPlace, tmp_path: Path
) -> None:
    plain, _ = open_reader(OpenStream(0, str(stream.manifest_path), stream.spec))
    cache = CachePlace(str(tmp_path), None, writable=True)
    changed, _ = open_reader(OpenStream(0, str(stream.manifest_path), stream.spec, cache, place))
    assert plain.pixel_id == plain.decoded_pixel_id == changed.decoded_pixel_id != changed.pixel_id
    assert [path.stem.split("-")[1] for path in tmp_path.glob("*.cache")] == [plain.pixel_id[:16]]
    plain.close()
    changed.close()


def test_remarks_of_transform_and_cache_are_joined(stream: ServedStream, place: TransformPlace, tmp_path: Path) -> None:
    nowhere = CachePlace(str(tmp_path / "nowhere"), None, writable=True)
    source, remark = open_reader(OpenStream(0, str(stream.manifest_path), stream.spec, nowhere, place))
    assert "augment.py:3: no contrast; nothing is cached: " in remark
    source.close()


def test_a_stream_whose_transform_cannot_be_used_is_left_closed(
    stream: ServedStream, place: TransformPlace, program: Write
) -> None:
    program("augment", "edited")
    with pytest.raises(ConfigError, match="send SIGHUP"):  # that no descriptor is left open, conftest sees to
        open_reader(OpenStream(0, str(stream.manifest_path), stream.spec, None, place))
