"""What is answered over HTTP, and to whom; no daemon needed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from aiohttp import web
from daemons import LIMIT_S, stream_config
from made_figures import STATUS, STREAM, Books

from streamd.daemon import Daemon
from streamd.errors import ConfigError, MissingExtraError
from streamd.limits import MAX_MONITOR_CONNECTIONS
from streamd.monitor.web import Monitor, _contain
from streamd.stats import Stats


class Answer(NamedTuple):
    status: int
    headers: str
    body: str


@contextlib.asynccontextmanager
async def monitor(books: Books | None = None) -> AsyncIterator[Monitor]:
    """One that answers, of `books` or of a daemon that starts."""
    monitor = Monitor("127.0.0.1:0")
    await monitor.open()
    if books is not None:
        monitor.watch(books, Stats())
    running = asyncio.ensure_future(monitor.run())
    try:
        yield monitor
    finally:
        running.cancel()
        await asyncio.wait({running})


async def say(to: Monitor, words: bytes) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(to.url.rpartition(":")[2]))
    writer.write(words)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return Answer(int(head.split()[1]), head.lower(), body)


async def ask(to: Monitor, path: str, method: str = "GET", host: str = "localhost") -> Answer:
    return await say(to, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


def answers(books: Books | None, *questions: Callable[[Monitor], Awaitable[Answer]]) -> list[Answer]:
    async def run() -> list[Answer]:
        async with monitor(books) as running:
            return [await question(running) for question in questions]

    return asyncio.run(run())


def answer(books: Books | None, path: str, method: str = "GET", host: str = "localhost") -> Answer:
    (only,) = answers(books, lambda to: ask(to, path, method, host))
    return only


def test_a_daemon_that_starts_is_healthy_and_not_ready() -> None:
    assert answer(None, "/healthz")[::2] == (200, "ok\n")
    for path in ("/readyz", "/metrics"):
        assert answer(None, path).status == 503
        assert answer(None, path).body.startswith("starting")


@pytest.mark.parametrize(
    ("books", "status", "says"),
    [
        (Books(), 200, "ready\n"),
        (Books(replace(STATUS, draining=True)), 503, "draining: the daemon is going away\n"),
        (Books(replace(STATUS, streams=(replace(STREAM, stopped="why"),))), 503, "stream 'train' is stopped: why\n"),
    ],
)
def test_ready_means_that_a_trainer_who_comes_is_served(books: Books, status: int, says: str) -> None:
    assert answer(books, "/readyz")[::2] == (status, says)


def test_metrics_are_text_that_nobody_keeps() -> None:
    said = answer(Books(), "/metrics")
    assert said.status == 200
    assert "content-type: text/plain; version=0.0.4; charset=utf-8" in said.headers
    assert "cache-control: no-store" in said.headers
    assert 'streamd_stream_samples{stream="train"} 1000.0' in said.body


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_head_is_answered_as_get_without_the_body(path: str) -> None:
    assert answer(Books(), path, "HEAD")[::2] == (200, "")


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/../etc/passwd", "/%00"])
def test_what_is_not_there_says_what_is(path: str) -> None:
    said = answer(Books(), path)
    assert (said.status, "/metrics, /healthz and /readyz" in said.body) == (404, True)


def test_nothing_can_be_changed() -> None:
    said = answer(Books(), "/metrics", "POST")
    assert (said.status, "allow: get,head" in said.headers) == (405, True)


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nothing"])
def test_a_page_of_another_site_learns_nothing(path: str) -> None:
    said = answer(Books(), path, host="evil.example")
    assert (said.status, "streamd_" in said.body, "nothing here" in said.body) == (421, False, False)


def test_our_own_name_and_nobodys_name_are_answered() -> None:
    assert answer(Books(), "/healthz", host=f"{socket.gethostname()}:9191").status == 200
    (said,) = answers(None, lambda to: say(to, b"GET /healthz HTTP/1.0\r\n\r\n"))
    assert said.status == 200


def test_what_is_no_http_costs_a_connection_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    said = answers(None, lambda to: say(to, b"\x16\x03\x01\r\n\r\n"), lambda to: ask(to, "/healthz"))
    assert [each.status for each in said] == [400, 200]
    assert caplog.text == ""


def test_who_opens_many_connections_and_says_nothing_keeps_nobody_out() -> None:
    async def run() -> tuple[bytes, int, int]:
        async with monitor(Books()) as running:
            place = ("127.0.0.1", int(running.url.rpartition(":")[2]))
            with contextlib.ExitStack() as open_still:
                many = range(2 * MAX_MONITOR_CONNECTIONS)
                idle = [open_still.enter_context(socket.create_connection(place)) for _ in many]
                said = await ask(running, "/readyz")
                idle[0].setblocking(False)
                async with asyncio.timeout(LIMIT_S):
                    end = await asyncio.get_running_loop().sock_recv(idle[0], 1)  # the oldest goes
                assert running._runner.server is not None
                return end, said.status, len(running._runner.server.connections)

    end, status, connections = asyncio.run(run())
    assert (end, status, connections <= MAX_MONITOR_CONNECTIONS) == (b"", 200, True)


def test_a_port_that_is_taken_is_a_mistake_that_says_what_to_do() -> None:
    async def twice() -> None:
        async with monitor() as first:
            await Monitor(first.url.removeprefix("http://")).open()

    with pytest.raises(ConfigError, match=r"monitor: cannot listen at 127.*: Address already in use; choose another"):
        asyncio.run(twice())


def test_a_name_that_nobody_has_is_a_mistake_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="monitor: cannot listen at nobody:0: Name or service not known; choose"):
        asyncio.run(Monitor("nobody:0").open())


def test_a_star_is_every_address_which_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[str]:
        monitor = Monitor("*:0")
        await monitor.open()
        assert monitor._listener is not None
        hosts = [each.getsockname()[0] for each in monitor._listener.sockets]
        await monitor.close()
        return hosts

    caplog.set_level(logging.INFO, "streamd")
    assert "0.0.0.0" in asyncio.run(run())  # noqa: S104 - what a star means
    assert "whoever reaches this address may read the figures" in caplog.text


def test_an_address_of_this_machine_alone_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamd")
    answer(None, "/healthz")
    assert caplog.text == ""


def test_an_address_of_the_sixth_version_is_told_in_brackets() -> None:
    monitor = Monitor("[::1]:9191")
    listening = SimpleNamespace(getsockname=lambda: ("::1", 9191, 0, 0))
    monitor._listener = cast("asyncio.Server", SimpleNamespace(sockets=[listening]))
    assert (monitor._host, monitor.url) == ("::1", "http://[::1]:9191")


def test_without_its_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = {"listen": f"ipc://{tmp_path}/s", "monitor": "127.0.0.1:0", "streams": {"train": stream_config(tmp_path)}}
    daemon = Daemon(config, state=tmp_path)
    monkeypatch.delitem(sys.modules, "streamd.monitor.web")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError, match=r"monitor needs aiohttp, .*streamd\[monitor\]"):
        asyncio.run(daemon._open_monitor(asyncio.TaskGroup()))
    daemon._server.close()


def test_a_failing_connection_is_not_the_daemons_end_and_any_other_failure_is(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []
    loop = asyncio.new_event_loop()
    protocol = web.RequestHandler.__new__(web.RequestHandler)
    _contain(
        loop, {"message": "data_received() failed", "protocol": protocol}, lambda _, context: heard.append(context)
    )
    _contain(loop, {"message": "accept() failed", "socket": None}, lambda _, context: heard.append(context))
    assert (heard, [record.levelno for record in caplog.records]) == ([], [logging.WARNING] * 2)
    _contain(loop, {"message": "a callback failed"}, lambda _, context: heard.append(context))
    loop.close()
    assert heard == [{"message": "a callback failed"}]
