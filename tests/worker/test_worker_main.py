"""A worker process that is driven over its socket pair."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs
from PIL import Image
from support.boxed_pictures import write_coco
from support.daemon_process import wait_until
from support.served_folder import file_of, serve
from support.transform_programs import Write
from support.worker_driver import ANSWER_S, ROWS, Hand, pixels, task

from streamd.core.sampler import PAD_ID, Ids
from streamd.core.slot_layout import compute_layout, compute_slot_bytes
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.cache import RECORD_TYPE
from streamd.dataset.transform_source import find_transform_source
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.messages import bundle_records, split_records
from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, SlotStore, WorkerPhase, create_memfd
from streamd.ipc.worker_messages import (
    MAX_RECORD_BYTES,
    CachePlace,
    CloseStream,
    OpenStream,
    StreamOpenFailed,
    StreamReady,
    StreamRemark,
    TaskDone,
    UnmapSlots,
    WorkerReport,
    decode_report,
    encode_command,
)
from streamd.limits import PAGE_BYTES, WORKER_DATA_BYTES
from streamd.worker import main
from streamd.worker.stream_reader import Blob, StreamReader


@pytest.fixture
def hand() -> Iterator[Hand]:
    with Hand() as hand:
        yield hand


@pytest.fixture
def images(hand: Hand, stream: ServedStream) -> Callable[[int], npt.NDArray[np.generic]]:
    """The pixels that lie in a slot."""
    return lambda slot: compute_layout(stream.spec, ROWS).images.build_array_in_memory(hand.slots.map_slot(slot)).copy()


Images = Callable[[int], npt.NDArray[np.generic]]


@pytest.mark.long
def test_a_worker_answers_an_opened_stream_with_its_pixel_id(hand: Hand, stream: ServedStream) -> None:
    assert hand.open(stream) == StreamReady(0, compute_pixel_id(stream.spec.image))


def test_a_task_fills_its_rows_of_the_slot(hand: Hand, stream: ServedStream, images: Images) -> None:
    hand.open(stream)
    rows, ids = [3, 0, 6, 1], [8, 0, PAD_ID, 4]
    done = hand.finish(task(stream, 77, rows, ids))
    assert (done.number, done.bad) == (77, ())
    assert min(done.read_ns, done.decode_ns, done.idle_ns) >= 0
    assert 0 <= done.waited_ns <= done.read_ns
    filled = images(1)
    for row, sample_id in zip(rows, ids, strict=True):
        assert np.array_equal(filled[row], pixels(stream, sample_id) if sample_id >= 0 else 0 * filled[row])
    place, memory = compute_layout(stream.spec, ROWS), hand.slots.map_slot(1)
    assert place.sample_ids.build_array_in_memory(memory)[rows].tolist() == ids
    assert place.weights.build_array_in_memory(memory)[rows].tolist() == [1.0, 1.0, 0.0, 1.0]
    assert place.labels["label"].build_array_in_memory(memory)[rows].tolist() == [0, 1, 0, 0]
    assert not filled[[2, 4, 5, 7]].any()


@pytest.mark.long
def test_tasks_are_answered_in_their_order(hand: Hand, stream: ServedStream, images: Images) -> None:
    hand.open(stream)
    hand.send(task(stream, 1, list(range(8)), list(range(8))))
    hand.send(task(stream, 2, [0], [8], slot=2))
    for number in (3, 4, 5):
        hand.send(task(stream, number, [number], [number], slot=2))
    assert hand.finished(5) == [1, 2, 3, 4, 5]
    assert np.array_equal(images(2)[4], pixels(stream, 4))
    assert np.array_equal(images(1)[7], pixels(stream, 7))


def test_finished_tasks_are_reported_before_the_worker_waits_for_a_disk(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, opened = asyncio.Event(), list[StreamReader]()

    async def read(source: StreamReader, ids: Ids, *, is_ahead: bool) -> tuple[list[Blob], float]:
        opened.append(source)
        if ids[0] > 0:
            await disk.wait()
        return source.read_files_timed(ids, is_ahead=is_ahead)

    async def receive_finished(link: socket.socket, count: int) -> list[int]:
        reports: list[TaskDone] = []
        while len(reports) < count:
            records = split_records(await asyncio.to_thread(link.recv, MAX_RECORD_BYTES))
            reports += [report for report in map(decode_report, records) if isinstance(report, TaskDone)]
        assert all(done.waited_ns == done.read_ns > 0 for done in reports), "the processor did nothing meanwhile"
        return [done.number for done in reports]

    async def drive(ours: socket.socket, theirs: socket.socket, slots: SlotStore, page: int) -> None:
        working = asyncio.create_task(main.Worker(theirs, ProgressPage(page)).run())
        ours.send(encode_command(OpenStream(0, str(stream.manifest_path), stream.spec)))
        assert isinstance(decode_report(await asyncio.to_thread(ours.recv, MAX_RECORD_BYTES)), StreamReady)
        tasks = bundle_records([encode_command(task(stream, number, [0], [number])) for number in range(4)])
        socket.send_fds(ours, [tasks], [slots.ensure_slot(1, compute_slot_bytes(stream.spec))])
        assert await receive_finished(ours, 1) == [0]
        disk.set()
        assert await receive_finished(ours, 3) == [1, 2, 3]
        ours.close()
        await working

    monkeypatch.setattr(main, "_read_in_thread", read)
    monkeypatch.setattr(time, "thread_time_ns", lambda: 0)
    monkeypatch.setattr(signal, "alarm", lambda _: None)  # it would end this process
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(ANSWER_S)
    slots, page = SlotStore(), create_memfd("track", PROGRESS_PAGE_BYTES)
    with ours, theirs:
        asyncio.run(drive(ours, theirs, slots, page))
    opened[0].close()  # which a worker leaves to the end of its process
    os.close(page)
    slots.close()


def mapped(pid: int) -> int:
    """How many slots a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:streamd-")


@pytest.mark.long
def test_a_dropped_slot_is_unmapped(hand: Hand, stream: ServedStream) -> None:
    hand.open(stream)
    for slot in (1, 2, 3):
        hand.finish(task(stream, slot, [0], [0], slot=slot))
    assert mapped(hand.process.pid) == 3
    hand.send(UnmapSlots((1, 3, 99)))
    wait_until(lambda: mapped(hand.process.pid) == 1, "two slots are unmapped")
    hand.finish(task(stream, 4, [0], [0], slot=2))


@pytest.mark.long
def test_a_slot_may_be_dropped_while_its_task_waits(hand: Hand, stream: ServedStream, images: Images) -> None:
    hand.open(stream)
    hand.send(task(stream, 1, list(range(8)), list(range(8))))
    hand.send(task(stream, 2, [3], [7], slot=2))
    hand.send(UnmapSlots((1, 2)))
    hand.send(task(stream, 3, [0], [0], slot=3))
    assert hand.finished(3) == [1, 2, 3]
    assert np.array_equal(images(2)[3], pixels(stream, 7))
    wait_until(lambda: mapped(hand.process.pid) == 1, "the dropped slots are unmapped")


@pytest.mark.parametrize("opens", [True, pytest.param(False, marks=pytest.mark.long)], ids=["at work", "told nothing"])
def test_a_worker_ends_with_its_daemon(hand: Hand, stream: ServedStream, *, opens: bool) -> None:
    if opens:
        hand.open(stream)
    assert hand.end() == (0, "")


@pytest.mark.long
def test_a_worker_amid_its_tasks_ends_with_its_daemon(hand: Hand, stream: ServedStream) -> None:
    hand.open(stream)
    for number in range(6):
        hand.send(task(stream, number, list(range(8)), list(range(8))))
    status, _ = hand.end()
    assert status in {0, 1}


@pytest.mark.long
def test_signals_to_the_daemons_group_do_not_end_a_worker(hand: Hand, stream: ServedStream) -> None:
    hand.open(stream)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        hand.process.send_signal(number)
    hand.finish(task(stream, 1, [0], [0]))
    assert hand.end() == (0, "")


def test_a_worker_has_its_niceness_limits_and_oom_score(hand: Hand, stream: ServedStream) -> None:
    hand.open(stream)
    pid = hand.process.pid
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert f"Max data size             {WORKER_DATA_BYTES}" in limits
    assert "Max core file size        0" in limits
    niceness = [int(Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()[16]) for each in ("self", pid)]
    assert niceness[1] == min(19, niceness[0] + 1)
    scores = [int(Path(f"/proc/{each}/oom_score_adj").read_text()) for each in ("self", pid)]
    assert scores[1] == min(1000, scores[0] + 300)


@pytest.mark.long
def test_a_worker_prints_nothing_of_a_damaged_file(hand: Hand, tmp_path: Path) -> None:
    page = io.BytesIO()
    Image.new("RGB", (8, 8)).save(page, "TIFF")
    (tmp_path / "data").mkdir()
    samples_per_pixel = struct.pack("<HHI", 277, 3, 1)
    told = page.getvalue().replace(samples_per_pixel + b"\3\0", samples_per_pixel + b"\xff\xff")
    (tmp_path / "data/a.tif").write_bytes(told)
    stream = serve(tmp_path / "data", tmp_path / "state")
    hand.open(stream)
    done = hand.finish(task(stream, 1, [0], [0]))
    assert [bad.reason for bad in done.bad] == ["a damaged TIFF: its header cannot be read"]
    assert hand.end() == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("words", [b"\x63nonsense", b"\x02short"])
def test_a_malformed_command_ends_a_worker_with_a_protocol_error(hand: Hand, words: bytes) -> None:
    hand.link.send(words)
    assert hand.link.recv(1) == b""
    status, said = hand.end()
    assert status == 1
    assert "ProtocolError" in said


@pytest.mark.long
def test_a_stream_whose_data_are_away_is_opened_with_its_first_task(hand: Hand, stream: ServedStream) -> None:
    root = Path(stream.manifest.root)
    hand.send(OpenStream(0, str(stream.manifest_path), stream.spec, away=True))
    assert isinstance(hand.hear(), StreamReady)
    assert root not in {link.readlink() for link in Path(f"/proc/{hand.process.pid}/fd").iterdir()}
    hand.send(task(stream, 6, [0, 1], [3, 4]))
    assert isinstance(hand.hear(), StreamReady)
    assert isinstance(report := hand.hear(), TaskDone)
    assert report.bad == ()


@pytest.mark.long
def test_tasks_of_a_stream_fail_while_its_data_are_away(hand: Hand, stream: ServedStream) -> None:
    root = Path(stream.manifest.root)
    aside = root.rename(root.with_name("aside"))
    assert isinstance(ready := hand.open(stream), StreamReady)  # what its pipeline makes is known without them
    report = hand.finish(task(stream, 5, [0, 1], [3, PAD_ID]))
    assert [each.sample_id for each in report.bad] == [3, PAD_ID]
    assert {(each.lasting, each.away) for each in report.bad} == {(False, True)}
    assert "No such file or directory" in report.bad[0].reason

    aside.rename(root)
    hand.send(task(stream, 6, [0, 1], [3, 4]))
    assert hand.hear() == ready
    assert isinstance(done := hand.hear(), TaskDone)
    assert (done.number, done.bad) == (6, ())


def kept(folder: Path) -> list[int]:
    """Samples that a cache of nine holds for whoever opens it."""
    (path,) = folder.glob("*.cache")
    return np.flatnonzero(np.fromfile(path, RECORD_TYPE, 9, offset=PAGE_BYTES)["checksum"]).tolist()


def open_cached(hand: Hand, stream: ServedStream, folder: Path) -> None:
    place = CachePlace(str(folder), None, writable=True)
    hand.send(OpenStream(0, str(stream.manifest_path), stream.spec, place))
    assert isinstance(hand.hear(), StreamReady)


def test_decoded_rows_are_cached_and_gathered_by_the_next_task(
    hand: Hand, stream: ServedStream, images: Images, tmp_path: Path
) -> None:
    open_cached(hand, stream, tmp_path)
    done = hand.finish(task(stream, 1, [0, 1, 2], [5, PAD_ID, 7]))
    assert done.gathered == 0
    wait_until(lambda: kept(tmp_path) == [5, 7], "rows are published")
    file_of(stream, 5).unlink()
    done = hand.finish(task(stream, 2, [0, 1, 2, 3], [5, 2, PAD_ID, 7], slot=2))
    assert (done.gathered, done.bad) == (2, ())
    assert np.array_equal(images(1)[0], images(2)[0])
    assert np.array_equal(images(2)[1], pixels(stream, 2))
    assert not images(2)[2].any()


@pytest.mark.long
def test_closing_a_stream_publishes_its_cached_rows(hand: Hand, stream: ServedStream, tmp_path: Path) -> None:
    open_cached(hand, stream, tmp_path)
    hand.finish(task(stream, 1, [0], [5]))
    hand.send(CloseStream(0))
    wait_until(lambda: kept(tmp_path) == [5], "the row is published")
    assert hand.end() == (0, "")


@pytest.mark.long
def test_a_worker_works_without_a_cache_that_cannot_be_opened(hand: Hand, stream: ServedStream, tmp_path: Path) -> None:
    open_cached(hand, stream, tmp_path / "nowhere")
    assert isinstance(remark := hand.hear(), StreamRemark)
    assert remark.stream == 0
    assert "nothing is cached" in remark.text
    assert "No such file or directory" in remark.text
    done = hand.finish(task(stream, 1, [0], [5]))
    assert (done.gathered, done.bad) == (0, ())


@pytest.mark.long
def test_a_worker_says_once_that_boxes_were_drawn_on_other_sizes(hand: Hand, tmp_path: Path) -> None:
    path = write_coco(tmp_path, [{"image_id": 10, "category_id": 3, "bbox": [1, 2, 3, 4]}])
    path.write_text(path.read_text().replace('"id": 10,', '"id": 10, "width": 160, "height": 120,'))
    source = {"kind": "coco", "path": str(path), "root": str(tmp_path / "images")}
    stream = serve(tmp_path, tmp_path / "state", source=source, labels={"boxes": {"type": "boxes", "max": 2}})
    hand.open(stream)
    hand.send(task(stream, 1, [0, 1], [1, 0]))
    assert hand.hear() == StreamRemark(
        0,
        "labels.boxes was drawn on pictures of another size, so it is scaled to the size that they have; streamd check "
        "counts them",
    )
    assert isinstance(hand.hear(), TaskDone)
    assert isinstance(hand.finish(task(stream, 2, [0], [0])), TaskDone)
    stream.manifest.close()


WORDY = "def f(image, labels, rng):\n    print('a word')\n    return 255 - image, {'label': 1 - labels['label']}"
LATE = "def f(image, labels, rng):\n    return image[: 32 - 8 * labels['label']], labels"
WRONG = "def f(image, labels, rng):\n    return image.T, labels"


@pytest.mark.long
def test_a_transform_changes_rows_and_a_faulty_one_is_reported_with_its_line(
    hand: Hand, stream: ServedStream, program: Write
) -> None:
    def send(number: int, text: str) -> None:
        place = find_transform_source(f"module{number}:f", program(f"module{number}", text).parent)
        hand.send(OpenStream(number, str(stream.manifest_path), stream.spec, None, place))

    def opened(number: int, text: str) -> WorkerReport:
        send(number, text)
        return hand.hear()

    assert isinstance(ready := opened(0, WORDY), StreamReady)
    assert ready.pixel_id != compute_pixel_id(stream.spec.image)
    done = hand.finish(task(stream, 1, [0, 1, 2], [5, PAD_ID, 0]))
    assert (done.bad, done.unfit) == ((), "")
    place, memory = compute_layout(stream.spec, ROWS), hand.slots.map_slot(1)
    assert np.array_equal(place.images.build_array_in_memory(memory)[0], 255 - pixels(stream, 5))
    assert place.labels["label"].build_array_in_memory(memory)[:3].tolist() == [1, 0, 0]

    assert isinstance(told := opened(1, WRONG), StreamOpenFailed)
    assert told.reason.startswith(
        "streams.train.transform: transform at module1.py:1: it returns an image of uint8 (3, 32, 32); "
    )

    assert isinstance(opened(2, LATE), StreamReady)
    done = hand.finish(structs.replace(task(stream, 2, [0], [3]), stream=2))
    assert done.unfit.startswith("transform at module2.py:1: it returns an image of uint8 (24, 32, 3); ")
    assert "; the sample was cat/0003.jpg; fix the transform" in done.unfit

    send(3, "import time\ndef f(image, labels, rng):\n    time.sleep(1e6)")
    wait_until(lambda: hand.track.read_transform_trial().phase is WorkerPhase.TRYING, "the transform is tried")
    trial = hand.track.read_transform_trial()
    assert (trial.stream, trial.subject) == (3, "transform at module3.py:2")
    status, printed = hand.end()  # nobody waits for it
    assert (status, set(printed.split("\n"))) == (0, {"a word", ""})
