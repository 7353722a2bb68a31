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
from streamd.ipc.inherited_state import die_with_parent
die_with_parent(int({parent}))
print(os.getpid(), flush=True)
while True: pass
"""
STARTER = """
import os, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", sys.argv[1].format(parent=os.getpid())])
helper.wait()
"""


TIED_STARTER = """
import os, subprocess, sys
subprocess.run([sys.executable, "-m", "streamd.ipc.inherited_state", str(os.getpid()), *sys.argv[1:]])
"""


def runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it is gone, or goes between opening and reading
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


@pytest.mark.parametrize(
    "module",
    [
        "cli.probe",
        "daemon.streams.listing_process",
        "gate.__main__",
    ],
)
def test_helper_processes_die_with_their_parent(module: str) -> None:
    source = Path(__file__).parents[2].joinpath("streamd", *module.split(".")).with_suffix(".py").read_text()
    assert "die_with_parent(os.getppid())" in source.partition("def main()")[2]


def test_workers_with_side_tasks_die_with_their_parent() -> None:
    source = Path(__file__).parents[2].joinpath("streamd", "worker", "main.py").read_text()
    assert "die_with_parent(os.getppid())" in source.partition("def _run_side_task(")[2].partition("    def ")[0]


def test_a_module_that_is_run_by_this_one_gets_its_arguments_and_dies_with_the_named_process(tmp_path: Path) -> None:
    program = "import os, sys\nassert sys.argv[1:] == ['a', 'b']\nprint(os.getpid(), flush=True)\nwhile True: pass"
    (tmp_path / "endless.py").write_text(program)
    command = [sys.executable, "-c", TIED_STARTER, "endless", "a", "b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as starter:
        assert starter.stdout is not None
        helper = int(starter.stdout.readline())
        assert runs(helper)
        starter.kill()
    wait_until(lambda: not runs(helper), "the command ends")
