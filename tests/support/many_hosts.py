"""Several hosts on one machine: each has namespaces, a copy of the data, a state folder and a daemon of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from support.daemon_process import stream_config, wait_until
from support.served_folder import change_times

LIMIT_S = 60.0
TESTS = Path(__file__).resolve().parents[1]


def namespace_prefix() -> list[str]:
    """The command that runs another one with a network, a name and shared memory of its own."""
    mapped = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *mapped, "--net", "--uts", "--ipc", "--"]


class VirtualHost:
    """A host with a copy of `data`, whose files have other times and another root.

    `prefix` runs a command on this host; by default, each command has namespaces of its own.
    """

    def __init__(self, place: Path, data: Path, number: int, prefix: list[str] | None = None) -> None:
        self.place = place
        self.prefix = namespace_prefix() if prefix is None else prefix
        self.state, self.log, self.config = place / "state", place / "log", place / "config.yaml"
        self._sockets = Path(tempfile.mkdtemp(prefix="sd"))  # sockets have short names
        shutil.copytree(data, place / "data", copy_function=shutil.copyfile)
        for count, path in enumerate(sorted((place / "data").rglob("*.jpg"))):
            change_times(path, 10**18 + 10**9 * number + count)
        self.write_config()
        self._process: subprocess.Popen[str] | None = None

    @property
    def endpoint(self) -> str:
        """The address of its daemon."""
        return f"ipc://{self._sockets}/s"

    def write_config(self, expect: dict[str, Any] | None = None, **changes: Any) -> None:
        """Writes the configuration; it differs from the other hosts' in its paths alone, unless there are `changes`."""
        stream = {"batch_size": 2, "image": {"size": [8, 8]}, **changes}
        config = {
            "listen": [self.endpoint],
            "memory": "64MiB",
            "workers": 1,
            "expect": expect,
            "streams": {"train": stream_config(self.place / "data", **stream)},
        }
        self.config.write_text(json.dumps(config))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of streamd on this host."""
        command = [*self.prefix, sys.executable, "-m", "streamd.cli.main", *arguments]
        environment = os.environ | {"STATE_DIRECTORY": str(self.state)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=LIMIT_S)

    def start(self) -> Self:
        """Starts the daemon, and the program that runs trainers beside it."""
        self.log.unlink(missing_ok=True)
        program = str(Path(__file__).with_name("host_program.py"))
        command = [*self.prefix, sys.executable, program, str(self.config), str(self.state), str(self.log)]
        pipe = subprocess.PIPE
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=0, env=environment)
        assert self._read_line() == "ready", self.log.read_text()
        return self

    def begin_leg(
        self,
        ranks: list[int],
        world: int,
        *,
        steps: int | None = None,
        token: str | None = None,
        receipts: Path,
        dies_after: int | None = None,
    ) -> None:
        """Lets ranks read on this host; the whole host dies after that many steps of one of them, if given."""
        leg = {"ranks": ranks, "world": world, "steps": steps, "token": token, "receipts": str(receipts)}
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**leg, "dies_after": dies_after}) + "\n")
        self._process.stdin.flush()

    def end_leg(self) -> list[dict[str, Any]]:
        """What each rank took, and its token; nothing if the host died."""
        line = self._read_line()
        return json.loads(line) if line else []

    def _read_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """Kills whatever runs on this host."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None
        shutil.rmtree(self._sockets, ignore_errors=True)

    def restart(self) -> Self:
        """Starts again what was killed."""
        assert self._process is not None
        assert self._process.wait(LIMIT_S) == -signal.SIGKILL
        self._process.communicate()
        return self.start()


class LinkedNetworks:
    """Two network namespaces, which a virtual cable joins: 10.77.0.1 and 10.77.0.2, each on `eth0`.

    Each host is named by its address, since there is nobody who would resolve another name.
    """

    ADDRESSES = ("10.77.0.1", "10.77.0.2")

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        own = os.geteuid() == 0
        self._hold(["unshare", *([] if own else ["--user", "--map-root-user"]), "--net", "--uts"])
        self._hold([*self.prefix(0), "unshare", "--net", "--uts"])
        other = str(self._holders[1].pid)
        self._run(0, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other)
        for number, address in enumerate(self.ADDRESSES):
            self._run(number, "hostname", address)
            self._run(number, "ip", "link", "set", "lo", "up")
            self._run(number, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self._run(number, "ip", "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait(LIMIT_S)

    def prefix(self, number: int) -> list[str]:
        """The command that runs another one in one of the networks."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self._holders[number].pid), *user, "--net", "--uts", "--"]

    def _hold(self, command: list[str]) -> None:
        holder = subprocess.Popen([*command, "sleep", "infinity"])
        self._holders.append(holder)
        # The command enters its namespace first and becomes `sleep` then.
        wait_until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", "a network is there")

    def _run(self, number: int, *command: str) -> None:
        subprocess.run([*self.prefix(number), *command], check=True, timeout=LIMIT_S)
