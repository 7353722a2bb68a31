"""Thumbnails drawn in a process that may crash, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.daemon.monitor import sample_images as under_test
from streamd.daemon.monitor.sample_images import ThumbnailCache
from streamd.daemon.streams.served_stream import ServedStream


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    served = serve(write_images(tmp_path / "data", {"cat": 4}), tmp_path / "state")
    yield served
    served.manifest.close()


class Drawing:
    """Stands in for the process: it draws a sample's number, and dies at sample 3."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.streams: list[ServedStream] = []
        self.began = asyncio.Semaphore(0)

    async def __call__(self, stream: ServedStream, ids: list[int]) -> AsyncIterator[bytes]:
        self.streams.append(stream)
        self.runs.append(ids)
        self.began.release()
        await asyncio.sleep(0)
        for sample_id in ids:
            if sample_id == 3:
                return
            yield b"%d" % sample_id


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Drawing:
    drawing = Drawing()
    monkeypatch.setattr(under_test, "_draw_in_subprocess", drawing)
    return drawing


def of(stream: ServedStream, thumbnails: ThumbnailCache, *ids: int) -> list[bytes]:
    async def ask() -> list[bytes]:
        return await asyncio.gather(*(thumbnails.get_or_draw_thumbnail(stream, each) for each in ids))

    return asyncio.run(ask())


def test_a_process_with_the_environment_of_the_daemon_draws_what_can_be_seen(
    stream: ServedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("open(__file__ + '.seen', 'x')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    first, again = of(stream, ThumbnailCache(), 0, 0)
    assert first.startswith(b"\xff\xd8\xff")
    assert first == again
    assert (tmp_path / "sitecustomize.py.seen").exists()


def test_what_is_asked_for_meanwhile_is_drawn_together_and_kept(stream: ServedStream, drawing: Drawing) -> None:
    thumbnails = ThumbnailCache()
    assert of(stream, thumbnails, 0, 1, 2, 1) == [b"0", b"1", b"2", b"1"]
    assert of(stream, thumbnails, 2, 0) == [b"2", b"0"]
    assert drawing.runs == [[0], [1, 2]]


def test_the_sample_that_crashes_the_process_has_none_and_the_others_do(stream: ServedStream, drawing: Drawing) -> None:
    assert of(stream, ThumbnailCache(), 0, 3, 1) == [b"0", b"", b"1"]
    assert drawing.runs == [[0], [3, 1], [1]]


def test_who_leaves_takes_nobodys_picture_along(stream: ServedStream, drawing: Drawing) -> None:
    async def leave() -> bytes:
        thumbnails = ThumbnailCache()
        first, second, third = (
            asyncio.ensure_future(thumbnails.get_or_draw_thumbnail(stream, each)) for each in (0, 1, 2)
        )
        await first
        for _ in range(2):
            await drawing.began.acquire()
        second.cancel()
        return await third

    assert asyncio.run(leave()) == b"2"
    assert drawing.runs == [[0], [1, 2], [2]]


def test_so_many_are_kept_and_no_more(stream: ServedStream, drawing: Drawing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_THUMBNAILS", 2)
    thumbnails = ThumbnailCache()
    for sample_id in (0, 1, 2, 1, 0):
        of(stream, thumbnails, sample_id)
    assert drawing.runs == [[0], [1], [2], [0]]


def test_what_a_list_has_become_is_not_drawn_for_what_it_was(stream: ServedStream, drawing: Drawing) -> None:
    changed = replace(stream, spec=replace(stream.spec, content_id="another"))

    async def reload() -> list[bytes]:
        thumbnails = ThumbnailCache()
        asked = (stream, 0), (stream, 1), (changed, 1), (stream, 2)
        return await asyncio.gather(*(thumbnails.get_or_draw_thumbnail(*each) for each in asked))

    assert asyncio.run(reload()) == [b"0", b"1", b"1", b"2"]
    assert drawing.streams == [stream, changed, stream]
    assert drawing.runs == [[0], [1], [1, 2]]


class Hanging(Drawing):
    """Its process waits for a mount that is gone, and outlives its kill for as long as that is so."""

    def __init__(self) -> None:
        super().__init__()
        self.returncode: int | None = None
        self.pid = 1

    async def __call__(self, stream: ServedStream, ids: list[int]) -> AsyncIterator[bytes]:
        async for picture in super().__call__(stream, ids[:1]):
            yield picture
        if self.returncode is None and stream.spec.content_id != "another":
            raise under_test._HangingProcessError(self)  # type: ignore[arg-type]  # stands in for the process


def test_a_process_that_hangs_costs_its_list_its_pictures_until_it_ends_and_no_other_list(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging()
    monkeypatch.setattr(under_test, "_draw_in_subprocess", hanging)
    changed = replace(stream, spec=replace(stream.spec, content_id="another"))
    thumbnails = ThumbnailCache()
    assert [of(stream, thumbnails, each) for each in (0, 1, 1)] == [[b"0"], [b""], [b""]]
    assert hanging.runs == [[0]]
    assert of(changed, thumbnails, 1) == [b"1"]
    hanging.returncode = -9
    assert of(stream, thumbnails, 1) == [b"1"]


def test_a_process_that_outlives_its_kill_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        pid = 1

        async def wait(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(under_test, "THUMBNAIL_S", 0.01)
    with pytest.raises(under_test._HangingProcessError, match="1"):
        asyncio.run(under_test._wait_for_process_exit(Process()))  # type: ignore[arg-type]  # stands in for the process
