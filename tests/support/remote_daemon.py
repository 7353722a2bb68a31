"""Daemons that serve other hosts, at a port of this one, and the keys for them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import zmq

from streamd.ipc.key_files import KeyPair, write_key_files
from support.daemon_process import DaemonProcess

_READY: Final = re.compile(r"serving other hosts at (tcp://\S+)")


class RemoteKeys:
    """The keys of a daemon, and of clients whose public halves lie in the folder `clients`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clients = folder / "clients"
        self.clients.mkdir(parents=True)
        self._make_pair("daemon")

    def _make_pair(self, name: str) -> Path:
        public, secret = zmq.curve_keypair()
        return write_key_files(self._folder / name, name, KeyPair(public.decode(), secret.decode()))[0]

    def add_client(self, name: str, *, streams: str | None = None, allowed: bool = True) -> dict[str, str]:
        """Makes a client's keys, and returns what it gives as `curve`."""
        public = self._make_pair(name)
        if allowed:
            shutil.copy(public, self.clients)
        if streams is not None:
            listed = self.clients / public.name
            listed.write_text(listed.read_text().replace("metadata\n", f'metadata\n    streams = "{streams}"\n'))
        return {
            "secret": str(self._folder / name / f"{name}.key_secret"),
            "server": str(self._folder / "daemon" / "daemon.key"),
        }

    def remove_client(self, name: str) -> None:
        (self.clients / f"{name}.key").unlink()

    @property
    def config(self) -> dict[str, str]:
        """The key `curve` of the daemon's configuration."""
        return {"secret": str(self._folder / "daemon" / "daemon.key_secret"), "clients": str(self.clients)}


def find_address(daemon: DaemonProcess) -> str:
    """Returns the address for other hosts of a running daemon."""
    *_, address = _READY.finditer(daemon.log.read_text())
    return address[1]


def find_network_gate(daemon: DaemonProcess) -> int | None:
    """Returns the process of a daemon's gate for other hosts, None between two."""
    for pid in daemon.workers():  # all its children
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"\0streamd.gate\0network\0" in command:
            return pid
    return None
