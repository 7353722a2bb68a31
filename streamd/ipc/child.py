"""Starts processes of this package, with the ends of their links, and says what has become of them.

Each is `python -m MODULE ARGUMENTS`. What is started here has a process group of its own: the terminal's Ctrl-C reaches
this process alone, which ends the others. What such a process does first stands in `inherited_state`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from streamd.core.stderr_guard import child_stderr
from streamd.errors import ConfigError

_BUFFER_BYTES: Final = 1 << 16  # of a pipe that is read, before the child waits


def build_command(module: str, *arguments: object) -> list[str]:
    """Returns the command that runs a module of this package with these arguments."""
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]  # -P: none of the current folder in its place


@contextmanager
def open_child_link(kind: int = socket.SOCK_SEQPACKET) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yields both ends of a new socket pair: this process's, which does not block, and the child's.

    The child is started within the block. After an error in it, both ends are closed.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    try:
        ours.setblocking(False)
        yield ours, theirs
    except BaseException:
        ours.close()
        raise
    finally:
        # The child has its own copy. With its end open here too, its death would not end the link.
        theirs.close()


async def start_child(
    module: str,
    *arguments: object,
    passed: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    buffer_bytes: int = _BUFFER_BYTES,
) -> asyncio.subprocess.Process:
    """Starts a process with copies of the descriptors `passed`, and `environment` beside this one's. Raises OSError.

    Its standard error is by default where this process writes, and at most `buffer_bytes` of a pipe are read ahead.
    """
    return await asyncio.create_subprocess_exec(
        *build_command(module, *arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=child_stderr() if stderr is None else stderr,
        limit=buffer_bytes,
        **_build_options(passed, environment),
    )


async def start_linked_child(
    module: str, *arguments: object, passed: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Starts a process whose first argument is the descriptor of its link of datagrams, before `arguments`.

    Returns it with this process's end, which the caller closes. Raises OSError.
    """
    with open_child_link() as (ours, theirs):
        link = theirs.fileno()
        process = await start_child(module, link, *arguments, passed=[link, *passed], environment=environment)
    return process, ours


def start_child_of_thread(
    module: str, *arguments: object, stdin: int = subprocess.DEVNULL, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """As `start_child`, for a thread without an event loop; pipes are not buffered."""
    return subprocess.Popen(
        build_command(module, *arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=child_stderr(),
        bufsize=0,
        **_build_options(),
    )


def _build_options(passed: Sequence[int] = (), environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"pass_fds": passed, "env": {**os.environ, **(environment or {})}, "process_group": 0}


def kill_child(process: asyncio.subprocess.Process) -> None:
    """Kills a process, unless it has ended."""
    with suppress(ProcessLookupError):
        process.kill()


def check_result(work: str, status: int, output: bytes, causes: str) -> None:
    """Raises ConfigError unless a process that writes its result to standard output has done its `work`.

    What is wrong with the data is what it has written. Without a word it was ended: by a signal, for one of `causes`.
    """
    if not status:
        return
    if output:
        raise ConfigError(output.decode(errors="replace"))
    if status > 0:
        raise ConfigError(f"{work} failed with status {status}")
    raise ConfigError(f"{work} was ended by {signal.Signals(-status).name}: {causes}")
