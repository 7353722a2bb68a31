"""A process that has imported what `streamd serve` imports, and forks daemons that need not: it spares half a second.

It has no threads and nothing open, so a daemon from here is as one that was started by itself: environment, folder,
limits and log are those of the test. Run as a program this is that process; imported it starts it, at the first daemon.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

_LIMITS: Final = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)  # that tests lower


class ForkedDaemon:
    """A daemon from the fork server, with as much of `subprocess.Popen` as the tests use."""

    def __init__(self, fork_server: ForkServer, pid: int) -> None:
        self._fork_server = fork_server
        self._ended = os.pidfd_open(pid)
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode if self.returncode is not None or not self._has_ended(0) else self._reap()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is not None:
            return self.returncode
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("streamd serve", timeout or 0)
        return self._reap()

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._ended], [], [], timeout_s)[0])

    def _reap(self) -> int:
        self.returncode = self._fork_server.ask({"reap": self.pid})
        os.close(self._ended)
        return self.returncode


class ForkServer:
    """The process, from the first daemon on; closing it ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()

    @property
    def pids(self) -> set[int]:
        """Its own, once it runs."""
        return set() if self._process is None else {self._process.pid}

    def fork_daemon(self, arguments: list[str], environment: dict[str, str], log: Path) -> ForkedDaemon:
        """`streamd` with these arguments; what it says is added to the log."""
        limits = [resource.getrlimit(each) for each in _LIMITS]
        place = {"folder": str(Path.cwd()), "log": str(log)}
        return ForkedDaemon(
            self, self.ask({"arguments": arguments, "environment": environment, "limits": limits, **place})
        )

    def ask(self, errand: dict[str, object]) -> int:
        """Has something done, and the number that comes back."""
        if self._process is None:
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # no threads: it forks
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(errand).encode() + b"\n")
        return int(self._process.stdout.readline())


def _errand() -> dict[str, Any]:
    """Forks a daemon an errand, and returns it in the daemon alone. The fork server ends when there are no more."""
    for line in sys.stdin.buffer:
        errand: dict[str, Any] = json.loads(line)
        if "reap" in errand:
            _answer(os.waitstatus_to_exitcode(os.waitpid(errand["reap"], 0)[1]))
        elif pid := os.fork():
            _answer(pid)
        else:
            return errand
    sys.exit()


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _take_over(
    arguments: list[str], environment: dict[str, str], limits: list[tuple[int, int]], folder: str, log: str
) -> None:
    """Makes this process what a shell would have made it."""
    nothing, said = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for ours, theirs in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(ours, theirs)
    os.close(nothing)
    os.close(said)
    for which, (soft, hard) in zip(_LIMITS, limits, strict=True):
        resource.setrlimit(which, (soft, hard))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder  # as `python -m` has it
    sys.argv = ["streamd", *arguments]


if __name__ == "__main__":
    import streamd.daemon.daemon  # noqa: F401 - imported by the command when it is called
    from streamd.cli.main import main

    gc.freeze()  # what all share is not copied for being looked at
    _take_over(**_errand())
    main()
