"""The request of `streamd.local` to its daemon: JSON, whatever a notebook's mapping contains."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamd.errors import ConfigError
from streamd.ipc.local_daemon import LocalDaemonRequest, endpoint_in_folder


def test_a_request_is_json_with_plain_paths_and_numbers() -> None:
    request = LocalDaemonRequest({"workers": np.uint8(1), "streams": {"train": {"source": Path("/data")}}}, "/a")
    assert json.loads(request.encode()) == {
        "config": {"workers": 1, "streams": {"train": {"source": "/data"}}},
        "folder": "/a",
        "size": None,
        "root": None,
        "labels": [],
        "encoding": None,
    }


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"it cannot be handed to a daemon: .* is of type object"):
        LocalDaemonRequest({"workers": object()}, "/a").encode()


def test_the_endpoint_is_in_the_requested_folder() -> None:
    assert LocalDaemonRequest("config.yaml", "/a").endpoint == endpoint_in_folder("/a") == "ipc:///a/s"


# --- the lock of a process that owns a daemon

WATCHER = """
import sys
from streamd.ipc.local_daemon import wait_for_release
wait_for_release(int(sys.argv[1]))
print("released", flush=True)
"""
OWNER = """
import os, signal, subprocess, sys, threading
from streamd.ipc.local_daemon import LifeLock
locks = []
making = threading.Thread(target=lambda: locks.append(LifeLock(b"")))
making.start()
making.join()
held = locks[0].descriptor
subprocess.Popen([sys.executable, "-c", sys.argv[2], str(held)], pass_fds=[held])
copied = os.dup(held)
forked = os.fork()
if not forked:
    os.close(held)
    print(os.getpid(), copied, flush=True)
    signal.pause()
sys.stdin.readline()
match sys.argv[1]:
    case "release":
        locks[0].release()
        signal.pause()
    case "os._exit": os._exit(0)
    case "exec": os.execv(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"])
    case "kill": os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ending", ["release", "exit", "os._exit", "exec", "kill"])
def test_a_life_lock_is_released_by_its_process_alone_and_however_that_ends(ending: str) -> None:
    command = [sys.executable, "-c", OWNER, ending, WATCHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        forked, copied = map(int, owner.stdout.readline().split())
        try:
            # The thread that made it has ended, and a forked child has closed its descriptor: it is held.
            with Path(f"/proc/{forked}/fd/{copied}").open("rb+") as file, pytest.raises(BlockingIOError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner.stdin.write("\n")
            owner.stdin.flush()
            assert owner.stdout.readline() == "released\n"
            os.kill(forked, 0)  # it lives
        finally:
            for pid in (forked, owner.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
