"""The entry point of a bridge: `python -m streamd.ray LINK SETTINGS`, a socket's descriptor and JSON."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from typing import Final

import msgspec

from streamd.core.cluster_settings import ClusterSettings
from streamd.ipc.inherited_state import correct_inherited_state
from streamd.ray.bridge import Bridge
from streamd.ray.cluster import Cluster

_STDOUT, _STDERR = 1, 2
_settings: Final = msgspec.json.Decoder(ClusterSettings)


def main() -> None:
    """Runs a bridge on the socket whose descriptor is the first argument."""
    correct_inherited_state()
    os.dup2(_STDERR, _STDOUT)  # libraries may print, and the standard output of a command is for its results
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the daemon drains; the bridge ends when the daemon does
    settings = _settings.decode(sys.argv[2])
    cluster = Cluster(settings)
    try:
        with socket.socket(fileno=int(sys.argv[1])) as link:
            asyncio.run(Bridge(link, settings, cluster).run())
    finally:
        cluster.leave()


if __name__ == "__main__":
    main()
