"""Whose requests are answered. A page of another site may send a browser here, under a name that it points at us. Pure.

Such a request carries that site's name in its Host header. An address cannot be anybody else's name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection


def is_ours(host: str | None, names: Collection[str]) -> bool:
    """Whether a Host header is an address, `localhost`, one of our `names`, or None: every browser sends one.

    Ports do not matter: there may be a tunnel between.
    """
    if host is None:
        return True
    name = _without_port(host).lower().removesuffix(".")
    return name in {"localhost", *(each.lower() for each in names)} or _is_address(name)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and (not port or (port.isascii() and port.isdecimal())) else host


def _is_address(name: str) -> bool:
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
