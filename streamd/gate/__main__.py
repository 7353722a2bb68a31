"""The entry point of the door and of gates: `python -m streamd.gate door|user|network LINK DESCRIPTORS [LISTENER]`."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys

from streamd.gate.door import Door
from streamd.gate.network_gate import NetworkGate
from streamd.gate.user_gate import UserGate
from streamd.ipc.inherited_state import correct_inherited_state, die_with_parent, raise_oom_score
from streamd.limits import GATE_DATA_BYTES, GATE_FILES, REMOTE_GATE_DATA_BYTES


def main() -> None:
    """Runs the process until the daemon's end of its link closes."""
    correct_inherited_state()
    die_with_parent(os.getppid())
    role, *descriptors = sys.argv[1:]
    # Bounds what clients can make this process take, and leaves no dump of its memory.
    data_bytes = REMOTE_GATE_DATA_BYTES if role == "network" else GATE_DATA_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, GATE_FILES), most))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the daemon, which drains its trainers through it
    raise_oom_score()
    link, passed, *inherited = (socket.socket(fileno=int(each)) for each in descriptors)
    for each in (link, passed, *inherited):
        each.set_inheritable(False)
        each.setblocking(False)
    if role == "door":
        asyncio.run(Door(inherited[0]).run(link))
    elif role == "network":
        asyncio.run(NetworkGate(logging.getLogger("streamd").addHandler).run(link))
    else:
        asyncio.run(UserGate(passed, logging.getLogger("streamd").addHandler).run(link))


if __name__ == "__main__":
    main()
