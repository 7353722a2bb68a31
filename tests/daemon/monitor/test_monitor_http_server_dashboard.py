"""What the dashboard answers, and to whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemon_process import write_images
from support.monitor_fake import Answer, answer, ask, monitor
from support.sample_metrics import STATUS, STREAM, Books
from support.served_folder import serve

from streamd.core.bad_samples import BadSample
from streamd.daemon.monitor import sample_images
from streamd.daemon.monitor.http_server import Dashboard
from streamd.daemon.streams.served_stream import ServedStream

SAMPLES = ("/pictures/train", "/bad/train", "/thumbnails/train/3")


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    served = serve(write_images(tmp_path / "data", {"cat": 9}), tmp_path / "state")
    served.quarantine.append_new_bad_samples([BadSample(3, "a damaged JPEG: cut off")])
    yield served
    served.manifest.close()


@pytest.fixture
def books(stream: ServedStream) -> Books:
    return Books(streams={"train": stream})


def with_token(books: Books | None, path: str) -> Answer:
    async def run() -> Answer:
        async with monitor(books) as running:
            return await ask(running, path, token=running.token)

    return asyncio.run(run())


def test_the_page_may_do_nothing_but_ask_here() -> None:
    said = answer(None, "/")
    assert (said.status, "content-type: text/html" in said.headers) == (200, True)
    assert "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';" in said.headers


def test_all_that_the_page_names_is_there_and_small() -> None:
    files = Dashboard("token")._page_files
    for name, text in files.items():
        said = answer(None, f"/page/{name}")
        assert (said.status, said.body) == (200, text.decode())
    assert sum(map(len, files.values())) < 100_000


@pytest.mark.parametrize("path", SAMPLES)
@pytest.mark.parametrize("token", [None, "", "guessed"])
def test_samples_are_for_those_with_the_token(books: Books, path: str, token: str | None) -> None:
    async def run() -> Answer:
        async with monitor(books) as running:
            return await ask(running, path, token=token)

    said = asyncio.run(run())
    assert (said.status, "www-authenticate: bearer" in said.headers) == (401, True)
    assert "`streamd status --url`" in said.body
    assert "cat" not in said.body


@pytest.mark.parametrize("path", SAMPLES)
def test_while_the_daemon_starts_there_are_none(path: str) -> None:
    assert with_token(None, path).status == 503


@pytest.mark.parametrize("path", [each.replace("train", "trian") for each in SAMPLES])
def test_a_stream_that_is_not_served_is_said_with_the_near_name(books: Books, path: str) -> None:
    said = with_token(books, path)
    assert (said.status, "no stream 'trian'" in said.body, "'train'" in said.body) == (404, True, True)


def test_bad_samples_are_told_with_file_and_reason(books: Books) -> None:
    said = with_token(books, "/bad/train")
    assert json.loads(said.body) == {
        "bad": 1,
        "samples": [{"sample_id": 3, "file": "cat/0003.jpg", "reason": "a damaged JPEG: cut off", "kind": "damaged"}],
        "before": None,
    }
    assert json.loads(with_token(books, "/bad/train?before=0").body)["samples"] == []


@pytest.mark.parametrize("before", ["-1", "x", "1e3", "%D9%A3", "9" * 19])
def test_a_place_that_is_no_number_is_said(books: Books, before: str) -> None:
    assert with_token(books, f"/bad/train?before={before}").status == 400


def test_a_thumbnail_is_of_bad_samples_only_and_may_be_none(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(stream: ServedStream, ids: list[int]) -> AsyncIterator[bytes]:
        del stream
        for _ in ids:
            yield b""

    monkeypatch.setattr(sample_images, "_draw_in_subprocess", nothing)
    assert with_token(books, "/thumbnails/train/3").status == 204
    assert with_token(books, "/thumbnails/train/4").status == 404
    assert with_token(books, f"/thumbnails/train/{'9' * 18}").status == 404


def test_where_no_batch_leaves_there_is_nothing_to_see(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_images, "SHOWN_S", 0.0)
    assert with_token(books, "/pictures/train").status == 204


@pytest.mark.parametrize("knows", [True, False])
def test_only_with_the_token_events_name_files(books: Books, knows: bool) -> None:
    books.told = replace(STATUS, streams=(replace(STREAM, stopped="cat/0001.jpg is bad"),))

    async def run() -> bytes:
        async with monitor(books) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
            key = f"Authorization: Bearer {running.token if knows else 'guessed'}"
            writer.write(f"GET /live HTTP/1.1\r\nHost: localhost\r\n{key}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            event = await reader.readuntil(b"\n\n")
            writer.close()
            await writer.wait_closed()
        return event

    assert (b"cat/0001.jpg" in asyncio.run(run())) == knows


def test_what_goes_on_is_told_as_events_until_the_daemon_ends(books: Books) -> None:
    async def run() -> tuple[bytes, bytes]:
        async with monitor(books) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
            writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            event = await reader.readuntil(b"\n\n")
        rest = await reader.read()
        assert rest.endswith(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return head, event

    head, event = asyncio.run(run())
    assert b"Content-Type: text/event-stream" in head
    assert json.loads(event[event.index(b"data: ") + 6 :])["streams"][0]["name"] == "train"
