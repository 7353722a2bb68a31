"""Access control and response headers of the HTTP server.

Samples need a token, which the users of this host get from `streamd status --url`.

The Host header guards against DNS rebinding: a page of another site may point its own name at this daemon, and have a
browser send requests here. Such a request carries that site's name in its Host header. An IP address cannot be another
site's name.

Responses are never cached, and browsers must not guess their types.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from typing import Final

from aiohttp import web

_BEARER_PREFIX: Final = "Bearer "
JSON_TYPE: Final = "application/json"
STARTING_TEXT: Final = (
    "the samples are being listed, or the workers are starting"  # what a daemon does before it serves
)


def is_authorized(authorization: str | None, token: str) -> bool:
    """Whether an Authorization header carries the token. The time of the comparison reveals nothing about the token."""
    if authorization is None or not authorization.startswith(_BEARER_PREFIX):
        return False
    return hmac.compare_digest(authorization.removeprefix(_BEARER_PREFIX).encode(errors="replace"), token.encode())


def is_own_host_header(host: str | None, names: Collection[str]) -> bool:
    """Whether a Host header is an IP address, `localhost`, one of our `names`, or None.

    None is accepted, since every browser sends the header. Ports do not matter: the request may come by a tunnel.
    """
    if host is None:
        return True
    name = _strip_port(host).lower().removesuffix(".")
    return name in {"localhost", *(each.lower() for each in names)} or _is_ip_address(name)


def _strip_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and (not port or (port.isascii() and port.isdecimal())) else host


def _is_ip_address(name: str) -> bool:
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def build_text_response(status: int, text: str, **headers: str) -> web.Response:
    """Builds a response of one line of plain text."""
    return build_http_response(status, f"{text}\n".encode(), "text/plain; charset=utf-8", **headers)


def build_http_response(status: int, body: bytes = b"", content_type: str = JSON_TYPE, **headers: str) -> web.Response:
    """Builds a response with `body` of type `content_type` and the headers of every response."""
    return web.Response(status=status, body=body, headers={**build_response_headers(content_type), **headers})


def build_response_headers(content_type: str) -> dict[str, str]:
    """Returns the headers of every response."""
    return {
        "Content-Type": content_type,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Server": "streamd",
    }
