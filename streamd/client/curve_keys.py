"""The CURVE keys of a client: its own pair, and the public key of the daemon that it connects to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq

from streamd.client.arguments import format_argument
from streamd.errors import ConfigError
from streamd.ipc.endpoint import is_remote
from streamd.ipc.key_files import KeyPair, read_key_pair, read_public_key

_FORM: Final = 'curve={"secret": "me.key_secret", "server": "daemon.key"}'


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """The keys of one client for one daemon, as text."""

    public: str
    secret: str = field(repr=False)
    server: str


def find_curve_keys(endpoint: str, curve: object) -> CurveKeys | None:
    """Returns the keys for an endpoint, from `curve` or the environment; None for one that needs none.

    Raises ConfigError for a tcp:// endpoint without keys, for keys without such an endpoint, and for files without
    keys.
    """
    given = _parse_curve_argument(curve)
    if not is_remote(endpoint):
        if given:
            raise ConfigError(f"curve: keys are for tcp:// endpoints, and {endpoint} is none; leave curve out")
        return None
    secret = given.get("secret") or os.environ.get("STREAMD_CURVE_SECRET")
    server = given.get("server") or os.environ.get("STREAMD_CURVE_SERVER")
    if not secret or not server:
        missing = "your secret key" if not secret else "the daemon's public key"
        raise ConfigError(
            f"{endpoint} needs keys, and {missing} is missing: write {_FORM}, give --curve-secret and --curve-server, "
            "or set $STREAMD_CURVE_SECRET and $STREAMD_CURVE_SERVER; `streamd keygen DIR` makes a pair"
        )
    pair = read_key_pair(Path(secret).expanduser(), "curve secret")
    return CurveKeys(pair.public, pair.secret, read_public_key(Path(server).expanduser(), "curve server"))


def _parse_curve_argument(curve: object) -> dict[str, str]:
    """Returns the files that a caller names. Raises ConfigError."""
    if curve is None:
        return {}
    if not isinstance(curve, Mapping) or set(curve) - {"secret", "server"}:
        raise ConfigError(f"{format_argument('curve', curve)}: write {_FORM}")
    files = {}
    for name, value in curve.items():
        if not isinstance(value, str | os.PathLike):
            raise ConfigError(f"{format_argument(f'curve {name}', value)}: write the path of a key file: {_FORM}")
        files[name] = os.fsdecode(value)
    return files


def create_key_pair() -> KeyPair:
    """Makes a new pair of keys."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())
