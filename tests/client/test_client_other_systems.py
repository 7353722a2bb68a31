"""The client on a system that is not Linux, as far as a Python without Linux's calls shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images
from support.remote_daemon import RemoteKeys, find_address

ROOT = Path(__file__).parents[2]


def run_elsewhere(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "support.other_system", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_is_imported_without_what_only_linux_has() -> None:
    run_elsewhere()


@pytest.mark.long
def test_the_client_reads_over_tcp_without_what_only_linux_has(tmp_path: Path) -> None:
    keys = RemoteKeys(tmp_path / "keys")
    images = write_images(tmp_path / "images", {"cat": 40, "dog": 44})
    config = {"curve": keys.config, "streams": {"train": stream_config(images)}}
    with DaemonProcess(tmp_path, config, listen_remotely=True) as daemon:
        curve = keys.add_client("elsewhere")
        assert run_elsewhere(find_address(daemon), curve["secret"], curve["server"]) == "22 [True, True]\n"
