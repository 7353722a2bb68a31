"""A process that was started with its standard files closed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.daemon_process import LIMIT_S, stream_config, wait_until, write_images

import streamd

LOOK = """
import os, subprocess, sys
from streamd.ipc.inherited_state import correct_inherited_state
correct_inherited_state()
places = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
print("lost", file=sys.stderr), print("lost"), sys.stdout.flush(), sys.stdin.read()
child = subprocess.run(["readlink", "/proc/self/fd/2"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
open(sys.argv[1], "w").write("\\n".join([*places, child]))
"""
ALL = "0<&- 1>&- 2>&-"


def closing(which: str, *command: str) -> list[str]:
    """The command with these of its standard files closed, as a shell spells it."""
    return ["sh", "-c", f'exec "$@" {which}', "sh", *command]


def test_closed_standard_files_become_the_null_device(tmp_path: Path) -> None:
    found = tmp_path / "found"
    subprocess.run(closing(ALL, sys.executable, "-c", LOOK, str(found)), check=True, timeout=LIMIT_S)
    assert found.read_text().splitlines() == ["/dev/null"] * 4


def test_open_standard_files_are_unchanged(tmp_path: Path) -> None:
    found = tmp_path / "found"
    command = closing("2>&-", sys.executable, "-c", LOOK, str(found))
    done = subprocess.run(command, input=b"", stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
    assert done.stdout == b"lost\n"
    places = found.read_text().splitlines()
    assert places[0].startswith("pipe:")
    assert places[1].startswith("pipe:")
    assert places[2:] == ["/dev/null", "/dev/null"]


@pytest.mark.long
def test_a_daemon_whose_standard_error_is_closed_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    folder = write_images(tmp_path / "data", {"cat": 8})
    config = tmp_path / "config.yaml"
    with tempfile.TemporaryDirectory(prefix="sd") as sockets:
        streams = {"train": stream_config(folder)}
        config.write_text(json.dumps({"workers": 1, "listen": [f"ipc://{sockets}/s"], "streams": streams}))
        command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(config)]
        with subprocess.Popen(closing("2>&-", *command)) as daemon:
            try:
                wait_until(lambda: Path(f"{sockets}/s").exists() or daemon.poll() is not None, "it listens")
                with (
                    streamd.connect(f"ipc://{sockets}/s", timeout=LIMIT_S) as client,
                    client.subscribe("train", epochs=1) as stream,
                ):
                    assert [len(batch) for batch in stream] == [8]
            finally:
                daemon.terminate()
                assert daemon.wait(LIMIT_S) == 0
