"""Who may see samples: whoever has the token, which this host's users get from `streamd status --url`.

Whose requests are answered. A page of another site may send a browser here, under a name that it points at us.

Such a request carries that site's name in its Host header. An address cannot be anybody else's name.

How anything is answered over HTTP: kept by nobody, and never taken for something else than it is.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection
from typing import Final

from aiohttp import web

_BEARER_PREFIX: Final = "Bearer "
_TOKEN_BYTES: Final = 24
JSON_TYPE: Final = "application/json"
STARTING_TEXT: Final = "the samples are listed, or the workers come up"  # what a daemon is at that does not serve yet


def create_token() -> str:
    """One that nobody guesses, fit for an address."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def is_authorized(authorization: str | None, token: str) -> bool:
    """Whether an Authorization header carries the token; how long that takes says nothing about it."""
    if authorization is None or not authorization.startswith(_BEARER_PREFIX):
        return False
    return hmac.compare_digest(authorization.removeprefix(_BEARER_PREFIX).encode(errors="replace"), token.encode())


def is_own_host_header(host: str | None, names: Collection[str]) -> bool:
    """Whether a Host header is an address, `localhost`, one of our `names`, or None: every browser sends one.

    Ports do not matter: there may be a tunnel between.
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
    """A line for people."""
    return build_http_response(status, f"{text}\n".encode(), "text/plain; charset=utf-8", **headers)


def build_http_response(status: int, body: bytes = b"", content_type: str = JSON_TYPE, **headers: str) -> web.Response:
    """Bytes of a type."""
    return web.Response(status=status, body=body, headers={**build_response_headers(content_type), **headers})


def build_response_headers(content_type: str) -> dict[str, str]:
    """The headers of every answer."""
    return {
        "Content-Type": content_type,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Server": "streamd",
    }
