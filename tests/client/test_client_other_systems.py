"""The client on a system that is not Linux, as far as a Python without Linux's calls shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images
from support.remote_daemon import RemoteKeys, find_address

import streamd
from streamd.client.arguments import check_endpoint_system
from streamd.errors import ConfigError

ROOT = Path(__file__).parents[2]


def run_elsewhere(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "support.other_system", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_is_imported_without_what_only_linux_has() -> None:
    run_elsewhere()


@pytest.mark.parametrize("endpoint", [None, "ipc:///run/streamd/streamd.sock", "/run/streamd/streamd.sock"])
def test_elsewhere_an_endpoint_of_the_same_host_is_refused_with_the_way_over_tcp(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delenv("STREAMD_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match=r"daemons run on Linux alone.*tcp://host:5555"):
        streamd.connect(endpoint)


@pytest.mark.parametrize("variable", [None, "tcp://gpu1:5555"])
def test_elsewhere_a_tcp_endpoint_is_taken(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delenv("STREAMD_ENDPOINT", raising=False)
    if variable is not None:
        monkeypatch.setenv("STREAMD_ENDPOINT", variable)
    check_endpoint_system(None if variable else "tcp://gpu1:5555")


def test_elsewhere_a_private_daemon_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ConfigError, match="starts a daemon, which needs Linux"):
        streamd.local(str(tmp_path))


@pytest.mark.long
def test_the_client_reads_over_tcp_without_what_only_linux_has(tmp_path: Path) -> None:
    keys = RemoteKeys(tmp_path / "keys")
    images = write_images(tmp_path / "images", {"cat": 40, "dog": 44})
    config = {"curve": keys.config, "streams": {"train": stream_config(images)}}
    with DaemonProcess(tmp_path, config, listen_remotely=True) as daemon:
        curve = keys.add_client("elsewhere")
        assert run_elsewhere(find_address(daemon), curve["secret"], curve["server"]) == "22 [True, True]\n"
