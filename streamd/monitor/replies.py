"""How anything is answered over HTTP: kept by nobody, and never taken for something else than it is."""

from __future__ import annotations

from typing import Final

from aiohttp import web

JSON: Final = "application/json"
STARTING: Final = "the samples are listed, or the workers come up"  # what a daemon is at that does not serve yet


def told(status: int, text: str, **headers: str) -> web.Response:
    """A line for people."""
    return reply(status, f"{text}\n".encode(), "text/plain; charset=utf-8", **headers)


def reply(status: int, body: bytes = b"", content_type: str = JSON, **headers: str) -> web.Response:
    """Bytes of a type."""
    return web.Response(status=status, body=body, headers={**standing(content_type), **headers})


def standing(content_type: str) -> dict[str, str]:
    """The headers of every answer."""
    return {
        "Content-Type": content_type,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Server": "streamd",
    }
