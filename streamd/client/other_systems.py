"""What the client says on macOS and Windows, where it reaches daemons of other hosts alone."""

from __future__ import annotations

import os

from streamd.errors import ConfigError
from streamd.ipc.endpoint import is_remote


def can_run_daemons() -> bool:
    """Whether this system has what daemons and their local trainers need: Linux has."""
    return hasattr(os, "pidfd_open")


def check_endpoint_system(endpoint: object) -> None:
    """Raises ConfigError if this system can have no daemon at an endpoint, None meaning the default one."""
    found = os.environ.get("STREAMD_ENDPOINT") if endpoint is None else endpoint
    if can_run_daemons() or (isinstance(found, str) and is_remote(found)):
        return
    raise ConfigError(
        "daemons run on Linux alone, and from this system they are reached over TCP: "
        'streamd.connect("tcp://host:5555", curve={"secret": "me.key_secret", "server": "daemon.key"}), or set '
        "$STREAMD_ENDPOINT, $STREAMD_CURVE_SECRET and $STREAMD_CURVE_SERVER"
    )


def check_local_system() -> None:
    """Raises ConfigError if this system can run no private daemon."""
    if not can_run_daemons():
        raise ConfigError(
            "streamd.local starts a daemon, which needs Linux: run `streamd serve` on a Linux host, and connect to it "
            'with streamd.connect("tcp://host:5555", curve=...)'
        )
