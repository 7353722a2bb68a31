"""Ctrl-C and SIGTERM in a command that saves its work before it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.cli.terminal import StopSignals

# Is killed while its main thread writes a file again and again.
WRITING = """
import os, signal, sys
from pathlib import Path
from streamd.cli.terminal import StopSignals

signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
with StopSignals(lambda: print("stopping", flush=True)) as stop:
    stop.defer()
    with stop.write_beside(Path(sys.argv[1])) as file:
        print(file.name, flush=True)
        while True:
            try:
                file.write_bytes(b"half")
            except OSError:
                stop._watcher.join()
"""


def test_a_signal_raises_at_once_until_it_is_deferred() -> None:
    with StopSignals() as stop, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert (stop.signal_text, stop.exit_status) == ("Ctrl-C", 130)


def test_a_deferred_signal_waits_for_the_next_moment_that_allows_it() -> None:
    with StopSignals() as stop:
        stop.defer()
        with stop.allow_interrupt():
            pass
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), stop.allow_interrupt():
            pytest.fail("this is not reached")
    assert (stop.signal_text, stop.exit_status) == ("SIGTERM", 143)


def test_a_deferred_signal_ends_a_wait_that_allows_it() -> None:
    with StopSignals() as stop:
        stop.defer()
        with pytest.raises(KeyboardInterrupt), stop.allow_interrupt():
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_restored_and_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.exit_status == 0
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_in_a_forked_child_does_not_stop_its_parent() -> None:
    with StopSignals() as stop:
        stop.defer()
        child = os.fork()
        if not child:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert stop.exit_status == 0


def test_a_file_gets_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    stop = StopSignals()
    with stop.write_beside(tmp_path / "model.keras") as file:
        file.write_text("whole")
        assert file.suffix == ".keras"
        assert not (tmp_path / "model.keras").exists()
    with pytest.raises(NotADirectoryError), stop.write_beside(tmp_path / "model.keras") as file:
        file.mkdir()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"]


def test_a_second_signal_ends_the_process_at_once_without_a_partial_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITING, str(tmp_path / "model.keras")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "model.keras\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    assert list(tmp_path.iterdir()) == []
