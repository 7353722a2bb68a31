"""Pictures of a batch, and thumbnails of bad samples, which a worker beside the pool draws."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image
from support.daemon_process import LIMIT_S
from support.sample_batches import flat, some_batch, some_masked_batch

from streamd.client.batch import Batch
from streamd.core.counters import ProcessStats
from streamd.core.display import BatchDisplay
from streamd.core.sampler import BadRow
from streamd.daemon.batch_sender import BatchPreview, Preview
from streamd.daemon.monitor import sample_images as under_test
from streamd.daemon.monitor.sample_images import BatchDrawer, ThumbnailCache, encode_batch_view, encode_pictures
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import DrawThumbnail, OpenStream, WorkerDied


@pytest.fixture
def preview(stream: ServedStream) -> Preview:
    """Its first three rows: a dog in the place of a broken cat, a cat, and none."""
    images = np.stack([np.full((32, 32, 3), shade, np.uint8) for shade in (10, 100, 0)])
    labels = {"label": np.array([0, 1, 0])}
    weights, ids = np.array([1, 1, 0], np.float32), np.array([7, 3, -1])
    bad = (BadRow(0, 5, "cat/0005.jpg", "a damaged JPEG", "substituted"),)
    return Preview(stream, Batch({"image": images}, labels, weights, ids, bad, 4, 2, str, stream.spec), 5, 4)


def opened(address: str) -> Image.Image:
    head, _, data = address.partition(",")
    assert head in {"data:image/png;base64", "data:image/jpeg;base64"}
    return Image.open(BytesIO(base64.b64decode(data)))


def test_each_row_has_its_picture_its_labels_and_its_file(preview: Preview) -> None:
    told = json.loads(encode_batch_view(preview))
    assert (told["stream"], told["epoch"], told["index"], told["rows"]) == ("train", 4, 2, 5)
    shown = [opened(sample.pop("picture")) for sample in told["samples"]]
    bad = {"file": "cat/0005.jpg", "reason": "a damaged JPEG"}
    assert told["samples"] == [
        {"labels": ["dog"], "sample_id": 7, "file": "dog/0003.jpg", "mark": "substituted", "weight": 1, "bad": bad},
        {"labels": ["cat"], "sample_id": 3, "file": "cat/0003.jpg", "mark": "", "weight": 1, "bad": None},
        {"labels": [], "sample_id": -1, "file": "", "mark": "no sample", "weight": 0, "bad": None},
    ]
    for picture, image in zip(shown, preview.first_rows.images, strict=True):
        assert np.array_equal(np.asarray(picture), image)


def test_all_pictures_of_a_sample_are_shown_side_by_side_with_their_masks(preview: Preview) -> None:
    masked = some_masked_batch(3, 300, 150, views=2)
    told = encode_batch_view(replace(preview, first_rows=replace(masked, sample_ids=np.array([7, 3, -1]))))
    picture = opened(json.loads(told)["samples"][0]["picture"])
    assert (picture.format, picture.size) == ("JPEG", (112 + 4 + 112, 224))
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    for left in (0, 116):
        assert np.ptp(pixels[180, left + 20]) > 50, "the orange of class 1"
        assert np.ptp(pixels[40, left + 60]) < 20, "a grey photo below the black of class 0"


@pytest.mark.parametrize(
    ("shape", "kind", "size"),
    [
        ((64, 20, 3), "PNG", (20, 64)),
        ((65, 20, 3), "JPEG", (20, 65)),
        ((40, 40, 1), "PNG", (40, 40)),
        ((448, 896, 3), "JPEG", (224, 112)),
        ((300, 300, 1), "JPEG", (224, 224)),
    ],
)
def test_small_pictures_are_exact_and_large_ones_reduced(
    shape: tuple[int, int, int], kind: str, size: tuple[int, int]
) -> None:
    picture = opened(encode_pictures(BatchDisplay(some_batch(flat(1, *shape)), 1).build_row(0)))
    assert (picture.format, picture.size) == (kind, size)
    assert np.allclose(np.asarray(picture), 128, atol=2)


def test_a_small_picture_with_its_mask_is_exact_too() -> None:
    (shown,) = BatchDisplay(some_masked_batch(1, 20, 30), 1).build_row(0)
    picture = opened(encode_pictures([shown]))
    assert picture.format == "PNG"
    assert np.array_equal(np.asarray(picture), shown.blend_mask())


class BatchPreviewFake:
    """A stream of which the same batch leaves whenever somebody waits for it, or none ever does."""

    def __init__(self, preview: Preview | None) -> None:
        self._preview = preview

    async def wait_for_preview(self, stream: str) -> Preview:
        assert stream == "train"
        if self._preview is None:
            await asyncio.get_running_loop().create_future()
        return cast("Preview", self._preview)


def pictures(preview: Preview | None) -> BatchDrawer:
    return BatchDrawer(cast("BatchPreview", BatchPreviewFake(preview)), ProcessStats())


async def test_a_batch_with_several_viewers_is_drawn_once(preview: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Preview] = []

    def draw(each: Preview) -> bytes:
        drawn.append(each)
        return encode_batch_view(each)

    monkeypatch.setattr(under_test, "encode_batch_view", draw)
    one = pictures(preview)
    first, second = await asyncio.gather(one.draw_next_sent_batch("train"), one.draw_next_sent_batch("train"))
    assert first == second
    assert json.loads(first or b"")["heading"] == "train 4:2 · 4 samples · 32x32 RGB"
    assert drawn == [preview]
    assert one._drawings["train"].preview is None, "it is drawn, and kept no longer"


async def test_a_viewer_a_moment_later_gets_the_same_batch(preview: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    async def see() -> int:
        return int(json.loads(await one.draw_next_sent_batch("train") or b"")["index"])

    monkeypatch.setattr(under_test, "_FRESH_S", LIMIT_S)
    one = pictures(preview)
    assert await see() == 2
    later = replace(preview, first_rows=replace(preview.first_rows, index=3))
    one._batch_preview = cast("BatchPreview", BatchPreviewFake(later))
    assert await see() == 2
    monkeypatch.setattr(under_test, "_FRESH_S", 0.0)
    assert await see() == 3


async def test_without_sent_batches_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "SHOWN_S", 0.0)
    assert await pictures(None).draw_next_sent_batch("train") is None


async def test_a_failed_drawing_without_viewers_raises_nothing(
    preview: Preview, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ends = threading.Event(), threading.Event()

    def fail(each: Preview) -> bytes:
        del each
        began.set()
        ends.wait()
        raise MemoryError

    monkeypatch.setattr(under_test, "encode_batch_view", fail)
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    one = pictures(preview)
    asked = asyncio.ensure_future(one.draw_next_sent_batch("train"))
    await asyncio.to_thread(began.wait)
    page = one._drawings["train"].encoded_view
    asked.cancel()
    await asyncio.wait({asked})
    drawn = asyncio.Event()
    page.add_done_callback(lambda _: drawn.set())
    ends.set()
    await drawn.wait()
    del page, one
    gc.collect()
    assert told == []


# --- bad samples


class DrawingFake:
    """Stands in for the workers, each of which has a list open."""

    def __init__(self) -> None:
        self.workers: list[WorkerFake] = []
        self.lists: list[str] = []  # the list of each process
        self.runs: list[list[int]] = []  # the samples of each process
        self.began = asyncio.Semaphore(0)
        self.hanging_list = ""  # its files lie on a mount that is gone

    def build_worker(self, decoder: object, streams: Sequence[OpenStream]) -> WorkerFake:
        del decoder
        (stream,) = streams
        self.workers.append(WorkerFake(self, stream.spec.content_id))
        return self.workers[-1]


class WorkerFake:
    """Draws a sample's number, and dies at sample 3. Where its files are gone, it outlives its kill."""

    def __init__(self, drawing: DrawingFake, list_id: str) -> None:
        self._drawing = drawing
        self._list_id = list_id
        self.is_running = False

    async def run_task(self, task: DrawThumbnail) -> bytes | WorkerDied:
        if not self.is_running:
            self._drawing.lists.append(self._list_id)
            self._drawing.runs.append([])
        self.is_running = task.sample_id != 3
        self._drawing.runs[-1].append(task.sample_id)
        self._drawing.began.release()
        await self._touch_files()
        return b"%d" % task.sample_id if self.is_running else WorkerDied("killed by SIGSEGV")

    async def stop(self) -> None:
        if self.is_running:
            await self._touch_files()
            self.is_running = False

    async def _touch_files(self) -> None:
        await asyncio.sleep(0)
        if self._list_id == self._drawing.hanging_list:
            await asyncio.Event().wait()


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> DrawingFake:
    drawing = DrawingFake()
    monkeypatch.setattr(under_test, "RestartingWorker", drawing.build_worker)
    return drawing


async def of(stream: ServedStream, thumbnails: ThumbnailCache, *ids: int) -> list[bytes]:
    return await asyncio.gather(*(thumbnails.get_or_draw_thumbnail(stream, each) for each in ids))


async def test_thumbnails_are_drawn_in_a_process_with_the_daemons_environment(
    stream: ServedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("open(__file__ + '.seen', 'x')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(under_test, "THUMBNAIL_S", LIMIT_S)
    first, again = await of(stream, ThumbnailCache(), 0, 0)
    assert first.startswith(b"\xff\xd8\xff")
    assert first == again
    assert (tmp_path / "sitecustomize.py.seen").exists()


async def test_waiting_requests_are_drawn_together_and_cached(stream: ServedStream, drawing: DrawingFake) -> None:
    thumbnails = ThumbnailCache()
    assert await of(stream, thumbnails, 0, 1, 2, 1) == [b"0", b"1", b"2", b"1"]
    assert await of(stream, thumbnails, 2, 0) == [b"2", b"0"]
    assert drawing.runs == [[0], [1, 2]]


async def test_only_the_sample_that_crashes_the_process_has_no_thumbnail(
    stream: ServedStream, drawing: DrawingFake
) -> None:
    assert await of(stream, ThumbnailCache(), 0, 3, 1) == [b"0", b"", b"1"]
    assert drawing.runs == [[0], [3], [1]]


async def test_a_cancelled_request_does_not_affect_others(stream: ServedStream, drawing: DrawingFake) -> None:
    thumbnails = ThumbnailCache()
    first, second, third = (asyncio.ensure_future(thumbnails.get_or_draw_thumbnail(stream, each)) for each in (0, 1, 2))
    await first
    for _ in range(2):
        await drawing.began.acquire()
    second.cancel()
    assert await third == b"2"
    assert drawing.runs == [[0], [1], [2]]


async def test_the_thumbnail_cache_is_bounded(
    stream: ServedStream, drawing: DrawingFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "MAX_THUMBNAILS", 2)
    thumbnails = ThumbnailCache()
    for sample_id in (0, 1, 2, 1, 0):
        await of(stream, thumbnails, sample_id)
    assert drawing.runs == [[0], [1], [2], [0]]


async def test_thumbnails_of_an_old_list_are_not_used_for_a_new_one(stream: ServedStream, drawing: DrawingFake) -> None:
    changed = replace(stream, spec=replace(stream.spec, content_id="another"))
    thumbnails = ThumbnailCache()
    asked = (stream, 0), (stream, 1), (changed, 1), (stream, 2)
    drawn = await asyncio.gather(*(thumbnails.get_or_draw_thumbnail(*each) for each in asked))
    assert drawn == [b"0", b"1", b"1", b"2"]
    assert drawing.lists == [each.spec.content_id for each in (stream, changed, stream)]
    assert drawing.runs == [[0], [1], [1, 2]]


async def test_a_hanging_process_blocks_thumbnails_of_its_list_alone(
    stream: ServedStream, drawing: DrawingFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "THUMBNAIL_S", 0.01)
    drawing.hanging_list = stream.spec.content_id
    changed = replace(stream, spec=replace(stream.spec, content_id="another"))
    thumbnails = ThumbnailCache()
    assert [await of(stream, thumbnails, each) for each in (0, 1, 1)] == [[b""]] * 3
    assert drawing.runs == [[0]]
    assert await of(changed, thumbnails, 1) == [b"1"]
    drawing.hanging_list = ""
    drawing.workers[0].is_running = False
    assert await of(stream, thumbnails, 1) == [b"1"]
