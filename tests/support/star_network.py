"""One network namespace with a virtual cable to each of several others, which reach it and not each other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final, Self

from support.daemon_process import wait_until

LIMIT_S: Final = 60.0
HUB: Final = "10.78.0.1"  # the address of the one in the middle, which every other reaches


class StarNetwork:
    """Namespaces: 0 is in the middle and has the address HUB, the others are 10.78.0.2 and on.

    Each is named by its address. The middle passes packets on, as a switch would.
    """

    def __init__(self, others: int) -> None:
        self._others = others
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        own = os.geteuid() == 0
        self._hold(["unshare", *([] if own else ["--user", "--map-root-user"]), "--net", "--uts"])
        self._run(0, "ip", "link", "add", "br0", "type", "bridge")
        self._run(0, "ip", "address", "add", f"{HUB}/24", "dev", "br0")
        self._run(0, "ip", "link", "set", "br0", "up")
        self._run(0, "ip", "link", "set", "lo", "up")
        self._run(0, "hostname", HUB)
        for number in range(1, self._others + 1):
            self._add_host(number)
        return self

    def _add_host(self, number: int) -> None:
        self._hold([*self.prefix(0), "unshare", "--net", "--uts"])
        peer = str(self._holders[number].pid)
        self._run(0, "ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", peer)
        self._run(0, "ip", "link", "set", f"to{number}", "master", "br0", "up")
        self._run(number, "hostname", self.address(number))
        self._run(number, "ip", "link", "set", "lo", "up")
        self._run(number, "ip", "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        self._run(number, "ip", "link", "set", "eth0", "up")

    @staticmethod
    def address(number: int) -> str:
        """The address of a namespace."""
        return f"10.78.0.{number + 1}"

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait(LIMIT_S)

    def prefix(self, number: int) -> list[str]:
        """The command that runs another one in one of the namespaces."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self._holders[number].pid), *user, "--net", "--uts", "--"]

    def _hold(self, command: list[str]) -> None:
        holder = subprocess.Popen([*command, "sleep", "infinity"])
        self._holders.append(holder)
        # The command enters its namespace first and becomes `sleep` then.
        wait_until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", "a network is there")

    def _run(self, number: int, *command: str) -> None:
        subprocess.run([*self.prefix(number), *command], check=True, timeout=LIMIT_S)
