"""Real daemons for tests: `streamd serve` in a process of its own, on a configuration and a state folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from PIL import Image

from streamd.client.sockets import find_served_path
from streamd.config.load import load_config
from streamd.daemon.streams.catalog import find_unlisted_streams, write_sample_manifests
from streamd.errors import ConfigError
from support.fork_server import ForkedDaemon, ForkServer

LIMIT_S = 40.0


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Waits for a condition; the limit is there to fail, not to pace."""
    deadline_s = time.monotonic() + limit_s
    pause = 0.001
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {limit_s:g} s in vain until {what}"
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def write_images(folder: Path, classes: dict[str, int], *, size: tuple[int, int] = (40, 50), seed: int = 0) -> Path:
    """A folder of JPEGs, one sub-folder a class, each image different from every other."""
    rng = np.random.default_rng(seed)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC)
            picture.save(folder / name / f"{number:04}.jpg", quality=90)
    return folder


def stream_config(folder: Path, **changes: object) -> dict[str, object]:
    """A stream over a folder of classes, 32x32, batches of 8."""
    return {
        "source": {"kind": "folder", "path": str(folder)},
        "image": {"size": [32, 32]},
        "batch_size": 8,
        **changes,
    }


class DaemonProcess:
    """`streamd serve` as its users start it, with one worker unless the configuration says more.

    It spares each daemon of the tests two times half a second: samples are listed here, unless they are to be listed
    `apart`, and the fork server forks it, where there is one, unless it lists apart or has an environment of its own.
    """

    fork_server: ClassVar[ForkServer | None] = None

    def __init__(
        self,
        place: Path,
        config: dict[str, object],
        *,
        environment: dict[str, str] | None = None,
        apart: bool | None = None,
        listen_remotely: bool = False,
    ) -> None:
        # Sockets have short names, whatever pytest calls its folders.
        self._sockets = Path(tempfile.mkdtemp(prefix="sd"))
        self.endpoint = f"ipc://{self._sockets}/s"
        self.config = place / "config.yaml"
        self.log = place / "log"
        self.state = place / "state"
        listen = [self.endpoint, *(["tcp://127.0.0.1:0"] if listen_remotely else [])]
        self.config.write_text(json.dumps({"memory": "64MiB", "workers": 1, "listen": listen, **config}))
        self._environment = {**os.environ, "STATE_DIRECTORY": str(self.state), **(environment or {})}
        # An environment may change how samples are listed.
        self._apart = environment is not None if apart is None else apart
        self._own = self._apart or environment is not None
        self._process: subprocess.Popen[bytes] | ForkedDaemon | None = None

    @property
    def own_endpoint(self) -> str:
        """The endpoint behind the daemon's door that serves this user, for raw ZeroMQ sockets."""
        return f"ipc://{find_served_path(self.endpoint, LIMIT_S)}"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> Self:
        """Starts the daemon and waits until it serves."""
        if not self._apart:
            self._list()
        self.log.touch()
        offset = self.log.stat().st_size
        self._process = self._run(["serve", "--config", str(self.config)])
        wait_until(lambda: b"daemon.ready" in self._said(offset) or self.process.poll() is not None, "it serves")
        assert self.process.poll() is None, self._said(offset).decode()
        return self

    def _run(self, arguments: list[str]) -> subprocess.Popen[bytes] | ForkedDaemon:
        if self.fork_server is not None and not self._own:
            return self.fork_server.fork_daemon(arguments, self._environment, self.log)
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "streamd.cli.main", *arguments]
            return subprocess.Popen(command, stderr=log, stdout=log, env=self._environment)

    def _list(self) -> None:
        with contextlib.suppress(ConfigError):  # the daemon will say so
            config = load_config(self.config)
            if names := find_unlisted_streams(config, self.state):
                write_sample_manifests(config, self.state, lambda *_: None, names=names)

    def _said(self, offset: int) -> bytes:
        return self.log.read_bytes()[offset:]

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedDaemon:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self) -> list[int]:
        """The pids of its decode processes."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait(LIMIT_S)
        shutil.rmtree(self._sockets)

    def restart_after_kill(self) -> Self:
        """kill -9, then the same command again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)
        return self.start()


Start = Callable[..., DaemonProcess]  # the type of the fixture `start_daemon`
