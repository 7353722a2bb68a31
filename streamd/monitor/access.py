"""Who may see samples: whoever has the token, which this host's users get from `streamd status --url`."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

_SCHEME: Final = "Bearer "
_TOKEN_BYTES: Final = 24


def new_token() -> str:
    """One that nobody guesses, fit for an address."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def opens(authorization: str | None, token: str) -> bool:
    """Whether an Authorization header carries the token; how long that takes says nothing about it."""
    if authorization is None or not authorization.startswith(_SCHEME):
        return False
    return hmac.compare_digest(authorization.removeprefix(_SCHEME).encode(errors="replace"), token.encode())
