"""A helper process never outlives its parent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon_process import wait_until

STUCK = """
import os
from streamd.ipc.parent_death import die_with_parent
die_with_parent(int({parent}))
print(os.getpid(), flush=True)
while True: pass
"""
STARTER = """
import os, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", sys.argv[1].format(parent=os.getpid())])
helper.wait()
"""


def runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_killing_the_parent_ends_a_stuck_helper() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER, STUCK], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        helper = int(starter.stdout.readline())
        assert runs(helper)
        starter.kill()
    wait_until(lambda: not runs(helper), "the helper ends")


def test_a_helper_whose_parent_is_already_dead_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK.format(parent=1 << 22)], check=False, timeout=20)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("module", ["streamd.cli.check.reader_process", "streamd.cli.probe.trainer_process"])
def test_helper_processes_of_commands_die_with_their_parent(module: str) -> None:
    source = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py").read_text()
    assert "die_with_parent(os.getppid())" in source.partition("def main()")[2]
