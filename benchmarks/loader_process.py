"""Other loaders: an environment for each kind, environments/NAME, and processes in them that talk by lines.

    python benchmarks/loader_process.py NAME...

makes the environments that are not up to date: a venv with exactly peers/requirements/NAME.txt.

Each process leads a group of its own, which is killed at the end: loaders have workers, and some never end by
themselves.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

HERE: Final = Path(__file__).resolve().parent
INSTALL_S: Final = 1800.0
_STAMP: Final = "requirements.sha256"


class EnvironmentFailedError(Exception):
    """An environment that cannot be made; its message is the last thing that was said."""


def last_line(text: str) -> str:
    """The last line that says anything, without the installer's colours and notices."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1] if lines else "nothing was said"


def python_of(name: str | None) -> Path:
    """The Python of an environment; of None, the one that runs this. Makes the environment when it is not up to date.

    Of several processes that ask at once, one makes it and the others wait. Raises EnvironmentFailedError.
    """
    if name is None:
        return Path(sys.executable)
    folder, wanted = HERE / "environments" / name, HERE / "peers" / "requirements" / f"{name}.txt"
    if not wanted.exists():
        raise EnvironmentFailedError(f"there is no {wanted.relative_to(HERE)}")
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    stamp, python = folder / _STAMP, folder / "bin" / "python"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text().strip() != digest:
            print(f"installing {wanted.relative_to(HERE)} (minutes, the first time)", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            _install(python, wanted)
            stamp.write_text(f"{digest}\n")
    return python


def _install(python: Path, wanted: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise EnvironmentFailedError(f"pip took longer than {INSTALL_S:.0f} s") from late
    if done.returncode:
        raise EnvironmentFailedError(last_line(done.stderr))


class CellFailedError(Exception):
    """A measurement that came to nothing; its message is the last thing that was said."""


class Process:
    """One process of a loader, which talks by lines."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._running = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**inherited, **settings},
            start_new_session=True,
            text=True,
        )

    def wait_for(self, word: str) -> None:
        """Reads lines until `word`. Raises CellFailedError when the process ends before."""
        while self._read_line() != word:
            pass

    def answer(self) -> dict[str, Any]:
        """Reads lines until one is a JSON object. Not until the end: a loader's workers may have the pipe, too.

        Raises CellFailedError when there is none.
        """
        while True:
            with suppress(ValueError):
                found = json.loads(self._read_line())
                if isinstance(found, dict):
                    return found

    def tell(self, line: str) -> None:
        with suppress(BrokenPipeError):  # one that has ended is found out by its answer
            assert self._running.stdin is not None  # noqa: S101 - it is a pipe
            self._running.stdin.write(line)
            self._running.stdin.flush()

    def _read_line(self) -> str:
        assert self._running.stdout is not None  # noqa: S101 - it is a pipe
        line = self._running.stdout.readline()
        if not line:
            raise CellFailedError(self._complaint())
        return line.strip()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGKILL)

    def _complaint(self) -> str:
        self._running.wait()
        self._said.seek(0)
        return f"{last_line(self._said.read().decode(errors='replace'))} (exit {self._running.returncode})"

    def close(self) -> None:
        self.kill()
        self._running.wait()
        for pipe in (self._running.stdin, self._running.stdout, self._said):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def started(
    commands: Sequence[Sequence[str]], limit_s: float, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[Process]]:
    """Runs `commands` side by side, `settings` in their environment; all have ended when the body has.

    Kills them when the body takes longer than `limit_s`, and then raises CellFailedError.
    """
    late = threading.Event()
    processes: list[Process] = []

    def end() -> None:
        late.set()
        for process in processes:
            process.kill()

    with ExitStack() as stack:
        for command in commands:
            processes.append(Process(command, settings))
            stack.callback(processes[-1].close)
        timer = threading.Timer(limit_s, end)
        timer.start()
        stack.callback(timer.cancel)
        try:
            yield processes
        except CellFailedError as error:
            if late.is_set():
                raise CellFailedError(f"no answer within {limit_s:.0f} s") from error
            raise


def main() -> None:
    for name in sys.argv[1:]:
        try:
            print(python_of(name))
        except EnvironmentFailedError as error:
            sys.exit(f"loader_process: {name}: {error}")


if __name__ == "__main__":
    main()
