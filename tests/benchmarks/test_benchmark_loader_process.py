"""Processes of one measurement: what they say, what they leave behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import loader_process
import pytest
from loader_process import CellFailedError, EnvironmentFailedError, Process, last_line, python_of, started
from support.daemon_process import wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that somebody has yet to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_answer_is_the_last_line_whatever_libraries_print_before() -> None:
    code = "print('a banner'); print('ready'); input(); print('noise'); print('{\"rate\": 7}')"
    with started([python(code)], 20.0) as (process,):
        process.wait_for("ready")
        process.tell("go\n")
        assert process.answer() == {"rate": 7}


@pytest.mark.parametrize("code", ["import no_such_library", "print('ready'); import no_such_library"])
def test_a_process_that_fails_is_quoted_with_its_last_line(code: str) -> None:
    def take(process: Process) -> None:
        process.wait_for("ready")
        process.tell("go\n")
        process.answer()

    with started([python(code)], 20.0) as (process,), pytest.raises(CellFailedError) as told:
        take(process)

    assert str(told.value) == "ModuleNotFoundError: No module named 'no_such_library' (exit 1)"


def test_an_answer_counts_though_a_loaders_worker_keeps_the_pipe() -> None:
    code = "import os, signal; os.fork() or signal.pause(); print('{\"rate\": 7}', flush=True)"
    with started([python(code)], 20.0) as (process,):
        assert process.answer() == {"rate": 7}


def test_a_process_that_hangs_ends_with_its_time() -> None:
    hanging = python("import signal; signal.pause()")
    with (
        pytest.raises(CellFailedError, match=r"^no answer within 0 s$"),
        started([hanging, hanging], 0.2) as (process, _),
    ):
        process.wait_for("ready")


def test_what_a_loader_has_started_ends_with_it(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
worker = os.fork()
if worker:
    pathlib.Path({str(tmp_path / "worker")!r}).write_text(str(worker))
    print("ready", flush=True)
signal.pause()
"""
    with started([python(code)], 20.0) as (process,):
        process.wait_for("ready")
        worker = int((tmp_path / "worker").read_text())
        assert not ended(worker)

    wait_until(lambda: ended(worker), "the worker has ended")


def test_an_environment_without_requirements_is_refused() -> None:
    with pytest.raises(EnvironmentFailedError, match=r"there is no peers/requirements/nobody\.txt"):
        python_of("nobody")
    assert python_of(None) == Path(sys.executable)


def test_the_last_line_is_the_last_that_says_something() -> None:
    assert last_line("first\nERROR: no such package\n\n[notice] a new pip\n") == "ERROR: no such package"
    assert last_line(" \n") == "nothing was said"


def test_processes_that_ask_for_an_environment_at_once_get_one_that_was_made_once(tmp_path: Path) -> None:
    source = Path(loader_process.__file__)
    shutil.copy(source, tmp_path)
    (tmp_path / "peers" / "requirements").mkdir(parents=True)
    (tmp_path / "peers" / "requirements" / "nothing.txt").touch()
    command = [sys.executable, str(tmp_path / source.name), "nothing"]

    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in asking]

    assert [process.returncode for process in asking] == [0, 0]
    assert "".join(said).count("installing") == 1
