"""Who may see samples, which hosts are accepted, and the headers of responses."""

from __future__ import annotations

import pytest

from streamd.daemon.monitor.http_server import (
    build_http_response,
    build_text_response,
    is_authorized,
    is_own_host_header,
)


@pytest.mark.parametrize(
    "wrong",
    [None, "", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret ", "bearer secret", "Bearer sécret"],
)
def test_only_the_token_gives_access(wrong: str | None) -> None:
    assert is_authorized("Bearer secret", "secret")
    assert not is_authorized(wrong, "secret")


@pytest.mark.parametrize(
    "host",
    [None, "localhost", "LocalHost:9191", "127.0.0.1", "127.0.0.1:9191", "[::1]:8080", "[fe80::1]", "10.0.0.7:1",
     "node1", "node1:9191", "NODE1.", "gpu.example.org:9191"],
)  # fmt: skip
def test_addresses_and_our_own_names_are_accepted_at_any_port(host: str | None) -> None:
    assert is_own_host_header(host, ("node1", "gpu.example.org"))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9191", "localhost.evil.example", "127.0.0.1.evil.example", "node1.evil.example", "",
     "[::1", "1:2:3", "localhost:evil", "127.0.0.1:80:80"],
)  # fmt: skip
def test_any_other_host_name_is_refused(host: str) -> None:
    assert not is_own_host_header(host, ("node1",))


def test_responses_are_neither_cached_nor_sniffed() -> None:
    for answer in (build_text_response(404, "no"), build_http_response(200, b"{}")):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_a_text_response_ends_with_a_newline() -> None:
    answer = build_text_response(401, "why", Allow="GET")
    assert (answer.status, answer.body, answer.headers["Allow"]) == (401, b"why\n", "GET")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_other_responses_are_json_by_default() -> None:
    assert build_http_response(200, b"{}").headers["Content-Type"] == "application/json"
    assert build_http_response(200, b"", "image/jpeg").headers["Content-Type"] == "image/jpeg"
