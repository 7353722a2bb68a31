"""How answers look."""

from __future__ import annotations

from streamd.daemon.monitor.http_access import build_http_response, build_text_response


def test_nothing_is_kept_or_taken_for_something_else() -> None:
    for answer in (build_text_response(404, "no"), build_http_response(200, b"{}")):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_a_line_is_text_and_ends() -> None:
    answer = build_text_response(401, "why", Allow="GET")
    assert (answer.status, answer.body, answer.headers["Allow"]) == (401, b"why\n", "GET")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_other_answers_are_json_unless_it_is_said() -> None:
    assert build_http_response(200, b"{}").headers["Content-Type"] == "application/json"
    assert build_http_response(200, b"", "image/jpeg").headers["Content-Type"] == "image/jpeg"
