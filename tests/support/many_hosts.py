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

from support.daemon_process import stream_config
from support.served_folder import change_times

LIMIT_S = 60.0


def namespace_prefix() -> list[str]:
    """The command that runs another one with a network, a name and shared memory of its own."""
    mapped = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *mapped, "--net", "--uts", "--ipc", "--"]


class VirtualHost:
    """A host with a copy of `data`, whose files have other times and another root."""

    def __init__(self, place: Path, data: Path, number: int) -> None:
        self.place = place
        self.state, self.log, self.config = place / "state", place / "log", place / "config.yaml"
        self._sockets = Path(tempfile.mkdtemp(prefix="sd"))  # sockets have short names
        shutil.copytree(data, place / "data", copy_function=shutil.copyfile)
        for count, path in enumerate(sorted((place / "data").rglob("*.jpg"))):
            change_times(path, 10**18 + 10**9 * number + count)
        self.write_config()
        self._process: subprocess.Popen[str] | None = None

    def write_config(self, expect: dict[str, Any] | None = None, **changes: Any) -> None:
        """Writes the configuration; it differs from the other hosts' in its paths alone, unless there are `changes`."""
        stream = {"batch_size": 2, "image": {"size": [8, 8]}, **changes}
        config = {
            "listen": [f"ipc://{self._sockets}/s"],
            "memory": "64MiB",
            "workers": 1,
            "expect": expect,
            "streams": {"train": stream_config(self.place / "data", **stream)},
        }
        self.config.write_text(json.dumps(config))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of streamd on this host."""
        command = [*namespace_prefix(), sys.executable, "-m", "streamd.cli.main", *arguments]
        environment = os.environ | {"STATE_DIRECTORY": str(self.state)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=LIMIT_S)

    def start(self) -> Self:
        """Starts the daemon, and the program that runs trainers beside it."""
        self.log.unlink(missing_ok=True)
        program = str(Path(__file__).with_name("host_program.py"))
        command = [*namespace_prefix(), sys.executable, program, str(self.config), str(self.state), str(self.log)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=0)
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
