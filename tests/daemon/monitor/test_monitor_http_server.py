"""The HTTP server of the monitor, without a daemon: responses, and who may read them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from aiohttp import web
from msgspec.structs import replace
from support.daemon_process import LIMIT_S
from support.monitor_fake import Answer, answer, answers, ask, monitor, say
from support.sample_metrics import SESSION, STATUS, STREAM, Books

from streamd.core.sampler import BadSample
from streamd.core.status import MANY_DEATHS, DaemonStatus
from streamd.daemon.monitor import sample_images
from streamd.daemon.monitor.http_server import Monitor, _handle_loop_error
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import DrawThumbnail
from streamd.limits import MAX_MONITOR_CONNECTIONS, MAX_SESSIONS
from streamd.supervisor.worker_process import RestartingWorker


def test_a_daemon_that_starts_is_healthy_and_not_ready() -> None:
    assert answer(None, "/healthz")[::2] == (200, "ok\n")
    for path in ("/readyz", "/metrics"):
        assert answer(None, path).status == 503
        assert answer(None, path).body.startswith("starting")


def of_stream(**changes: Any) -> DaemonStatus:
    """Of a daemon with which all is well but for that."""
    return replace(STATUS, streams=(replace(STREAM, **{"receipts_bad": 0, **changes}),))


WELL: Final = of_stream()


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (replace(WELL, draining=True), "draining: the daemon is shutting down\n"),
        (of_stream(stopped="why"), "stream 'train' is stopped: see streamd status\n"),
        (replace(WELL, sessions=(SESSION,) * MAX_SESSIONS), "full: 256 trainers are connected, which is the limit\n"),
    ],
    ids=["draining", "stopped", "full"],
)
def test_it_is_not_ready_when_a_new_trainer_would_not_be_served(status: DaemonStatus, says: str) -> None:
    assert answer(Books(status), "/readyz")[::2] == (503, says)


@pytest.mark.parametrize(
    "status",
    [
        of_stream(failed="why"),
        of_stream(receipts_bad=1),
        replace(WELL, deaths_lately=MANY_DEATHS),
        replace(WELL, reload_failed=True),
    ],
    ids=["failed", "receipts", "deaths", "reload"],
)
def test_it_is_ready_with_troubles_while_trainers_are_served(status: DaemonStatus) -> None:
    assert len(status.all_troubles) == 1
    assert answer(Books(status), "/readyz")[::2] == (200, "ready, with 1 trouble: see streamd status\n")


def test_it_is_ready_while_one_more_trainer_fits() -> None:
    books = Books(replace(WELL, sessions=(SESSION,) * (MAX_SESSIONS - 1)))
    assert answer(books, "/readyz")[::2] == (200, "ready\n")


def test_metrics_are_uncached_text() -> None:
    said = answer(Books(), "/metrics")
    assert said.status == 200
    assert "content-type: text/plain; version=0.0.4; charset=utf-8" in said.headers
    assert "cache-control: no-store" in said.headers
    assert 'streamd_stream_samples{stream="train"} 1000.0' in said.body


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_head_is_answered_as_get_without_the_body(path: str) -> None:
    assert answer(Books(), path, "HEAD")[::2] == (200, "")


@pytest.mark.parametrize(
    "path", ["/metric", "/metrics/", "/../etc/passwd", "/%00", "/page/", "/page/no.js", "/page/..%2Fweb.py"]
)
def test_an_unknown_path_gets_the_list_of_known_ones(path: str) -> None:
    said = answer(Books(), path)
    assert (said.status, "/metrics, /healthz and /readyz" in said.body) == (404, True)


def test_post_is_not_allowed() -> None:
    said = answer(Books(), "/metrics", "POST")
    assert (said.status, "allow: get,head" in said.headers) == (405, True)


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nothing"])
def test_a_page_of_another_site_learns_nothing(path: str) -> None:
    said = answer(Books(), path, host="evil.example")
    assert (said.status, "streamd_" in said.body, "nothing here" in said.body) == (421, False, False)


def test_requests_with_our_host_name_or_without_one_are_answered() -> None:
    assert answer(Books(), "/healthz", host=f"{socket.gethostname()}:9191").status == 200
    (said,) = answers(None, lambda to: say(to, b"GET /healthz HTTP/1.0\r\n\r\n"))
    assert said.status == 200


def test_a_request_that_is_not_http_only_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    said = answers(None, lambda to: say(to, b"\x16\x03\x01\r\n\r\n"), lambda to: ask(to, "/healthz"))
    assert [each.status for each in said] == [400, 200]
    assert caplog.text == ""


async def test_many_idle_connections_do_not_block_new_ones() -> None:
    async with monitor(Books()) as running:
        place = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        with contextlib.ExitStack() as open_still:
            many = range(2 * MAX_MONITOR_CONNECTIONS)
            idle = [open_still.enter_context(socket.create_connection(place)) for _ in many]
            assert (await ask(running, "/readyz")).status == 200
            idle[0].setblocking(False)
            async with asyncio.timeout(LIMIT_S):
                assert await asyncio.get_running_loop().sock_recv(idle[0], 1) == b"", "the oldest goes"
            assert running._runner.server is not None
            assert len(running._runner.server.connections) <= MAX_MONITOR_CONNECTIONS


async def test_a_taken_port_is_a_config_error_with_the_remedy() -> None:
    says = r"monitor: cannot listen on 127.*: Address already in use; choose another"
    async with monitor() as first:
        with pytest.raises(ConfigError, match=says):
            await Monitor(first.url.removeprefix("http://")).start_listening()


def test_an_unknown_host_name_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="monitor: cannot listen on nobody:0: Name or service not known; choose"):
        asyncio.run(Monitor("nobody:0").start_listening())


async def test_a_star_listens_on_every_address_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamd")
    monitor = Monitor("*:0")
    await monitor.start_listening()
    assert monitor._listening_server is not None
    assert "0.0.0.0" in [each.getsockname()[0] for each in monitor._listening_server.sockets]  # noqa: S104 - what a star means
    assert caplog.text.count("anyone who can reach this address can read the figures") == 1
    await monitor.close()


def test_listening_on_a_local_address_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamd")
    answer(None, "/healthz")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("address", "bound", "url"),
    [
        ("[::1]:9191", "::1", "http://[::1]:9191"),
        ("*:9191", "0.0.0.0", f"http://{socket.gethostname()}:9191"),  # noqa: S104 - every address
        ("*:9191", "::", "http://localhost:9191"),
    ],
    ids=["version six in brackets", "every address by name", "every address of version six by name"],
)
def test_the_url_is_one_that_a_browser_opens(address: str, bound: str, url: str) -> None:
    monitor = Monitor(address)
    monitor._listening_server = cast(
        "asyncio.Server", SimpleNamespace(sockets=[SimpleNamespace(getsockname=lambda: (bound, 9191, 0, 0))])
    )
    assert (monitor._host, monitor.url) == (address[:-5].strip("[]"), url)


def test_only_errors_outside_connections_reach_the_error_handler(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []
    loop = asyncio.new_event_loop()
    protocol = web.RequestHandler.__new__(web.RequestHandler)
    _handle_loop_error(
        loop, {"message": "data_received() failed", "protocol": protocol}, lambda _, context: heard.append(context)
    )
    _handle_loop_error(loop, {"message": "accept() failed", "socket": None}, lambda _, context: heard.append(context))
    assert (heard, [record.levelno for record in caplog.records]) == ([], [logging.WARNING] * 2)
    _handle_loop_error(loop, {"message": "a callback failed"}, lambda _, context: heard.append(context))
    loop.close()
    assert heard == [{"message": "a callback failed"}]


# --- the dashboard


SAMPLES = ("/pictures/train", "/bad/train", "/thumbnails/train/3")


@pytest.fixture
def books(stream: ServedStream) -> Books:
    stream.quarantine.append_new_bad_samples([BadSample(3, "a damaged JPEG: truncated")])
    return Books(streams={"train": stream})


def with_token(books: Books | None, path: str) -> Answer:
    (said,) = answers(books, lambda to: ask(to, path, token=to.token))
    return said


def test_the_content_policy_of_the_page_allows_only_this_server() -> None:
    said = answer(None, "/")
    assert (said.status, "content-type: text/html" in said.headers) == (200, True)
    assert "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';" in said.headers


def test_all_files_of_the_page_are_served_and_small() -> None:
    files = Monitor("127.0.0.1:0")._page_files
    for name, text in files.items():
        said = answer(None, f"/page/{name}")
        assert (said.status, said.body) == (200, text.decode())
    assert sum(map(len, files.values())) < 100_000


@pytest.mark.parametrize("path", SAMPLES)
@pytest.mark.parametrize("token", [None, "", "guessed"])
def test_samples_are_for_those_with_the_token(books: Books, path: str, token: str | None) -> None:
    (said,) = answers(books, lambda to: ask(to, path, token=token))
    assert (said.status, "www-authenticate: bearer" in said.headers) == (401, True)
    assert "`streamd status --url`" in said.body
    assert "cat" not in said.body


@pytest.mark.parametrize("path", SAMPLES)
def test_while_the_daemon_starts_samples_are_unavailable(path: str) -> None:
    assert with_token(None, path).status == 503


@pytest.mark.parametrize("path", [each.replace("train", "trian") for each in SAMPLES])
def test_an_unknown_stream_gets_the_nearest_name(books: Books, path: str) -> None:
    said = with_token(books, path)
    assert (said.status, "there is no stream 'trian'" in said.body, "'train'" in said.body) == (404, True, True)


def test_bad_samples_are_listed_with_file_and_reason(books: Books) -> None:
    said = with_token(books, "/bad/train")
    assert json.loads(said.body) == {
        "bad": 1,
        "samples": [{"sample_id": 3, "file": "cat/0003.jpg", "reason": "a damaged JPEG: truncated", "kind": "damaged"}],
        "before": None,
    }
    assert json.loads(with_token(books, "/bad/train?before=0").body)["samples"] == []


@pytest.mark.parametrize("before", ["-1", "x", "1e3", "%D9%A3", "9" * 19])
def test_a_page_position_that_is_not_a_number_is_refused(books: Books, before: str) -> None:
    assert with_token(books, f"/bad/train?before={before}").status == 400


def test_a_thumbnail_is_of_bad_samples_only_and_may_be_none(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    async def draw_nothing(_worker: object, task: DrawThumbnail) -> bytes:
        assert task.sample_id == 3
        return b""

    monkeypatch.setattr(RestartingWorker, "run_task", draw_nothing)
    assert with_token(books, "/thumbnails/train/3").status == 204
    assert with_token(books, "/thumbnails/train/4").status == 404
    assert with_token(books, f"/thumbnails/train/{'9' * 18}").status == 404


def test_without_sent_batches_there_are_no_pictures(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_images, "SHOWN_S", 0.0)
    assert with_token(books, "/pictures/train").status == 204


@contextlib.asynccontextmanager
async def told_live(running: Monitor, token: str = "") -> AsyncIterator[asyncio.StreamReader]:
    """The events of a page that is open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
    writer.write(f"GET /live HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    yield reader
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("knows", [True, False])
async def test_only_with_the_token_events_name_files(books: Books, knows: bool) -> None:
    books.told = replace(STATUS, streams=(replace(STREAM, stopped="cat/0001.jpg is bad"),))
    async with monitor(books) as running, told_live(running, running.token if knows else "guessed") as reader:
        await reader.readuntil(b"\r\n\r\n")
        assert (b"cat/0001.jpg" in await reader.readuntil(b"\n\n")) == knows


async def test_live_events_are_sent_until_the_daemon_ends(books: Books) -> None:
    async with contextlib.AsyncExitStack() as page:
        async with monitor(books) as running:
            reader = await page.enter_async_context(told_live(running))
            assert b"Content-Type: text/event-stream" in await reader.readuntil(b"\r\n\r\n")
            event = await reader.readuntil(b"\n\n")
        assert (await reader.read()).endswith(b"0\r\n\r\n")
    assert json.loads(event[event.index(b"data: ") + 6 :])["streams"][0]["name"] == "train"
