"""A Python without what only Linux has, as on macOS or Windows: run with `-m`, before streamd is imported.

It reads a stream over tcp:// and prints its steps and receipts: ADDRESS SECRET SERVER, or nothing to import alone.
"""

from __future__ import annotations

import importlib.abc
import os
import select
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MODULES: Final = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})
NAMES: Final[dict[ModuleType, tuple[str, ...]]] = {
    os: (
        *("EFD_CLOEXEC", "EFD_NONBLOCK", "O_CLOEXEC", "eventfd", "eventfd_read", "eventfd_write", "fork", "geteuid"),
        *("getuid", "memfd_create", "pidfd_open", "register_at_fork", "sched_getaffinity"),
    ),
    select: ("epoll", "poll", "EPOLLIN", "POLLIN"),
    socket: ("SOCK_SEQPACKET", "SO_PEERCRED", "recv_fds", "send_fds"),
}


class Refuser(importlib.abc.MetaPathFinder):
    """Finds no module of MODULES."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def remove_linux() -> None:
    """Takes away what other systems do not have."""
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.meta_path.insert(0, Refuser())
    for name in (*MODULES, "selectors"):  # which chooses among what is there when it is imported
        sys.modules.pop(name, None)


def main() -> None:
    """Imports the client, and reads two epochs if there is an address."""
    import numpy  # noqa: F401, ICN001, PLC0415 - it has its own ways on other systems
    import zmq  # noqa: F401, PLC0415 - as above

    remove_linux()
    import streamd  # noqa: PLC0415 - only now

    connect = streamd.connect
    if sys.argv[1:]:
        address, secret, server = sys.argv[1:]
        with (
            connect(address, curve={"secret": secret, "server": server}) as client,
            client.subscribe("train", epochs=2) as stream,
        ):
            print(sum(1 for _ in stream), [receipt.ok for receipt in stream.receipts])  # noqa: T201 - for the test


if __name__ == "__main__":
    main()
