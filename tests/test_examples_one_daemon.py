"""One daemon for the trainers of four other hosts, as examples/hosts/one_daemon.yaml has it, over namespaces."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from loader_process import python_of
from support.daemon_process import wait_until, write_images
from support.example_daemons import EXAMPLES
from support.star_network import HUB, StarNetwork

from streamd.config.load import load_config
from streamd.config.rules import list_unserved_settings

FOLDER: Final = EXAMPLES / "hosts"
ROOT: Final = EXAMPLES.parent
LIMIT_S: Final = 180.0
WORLD: Final = 4
ADDRESS: Final = f"tcp://{HUB}:5555"
STREAMD: Final = [sys.executable, "-m", "streamd.cli.main"]


def make_keys(place: Path, name: str) -> None:
    subprocess.run([*STREAMD, "keygen", place / name], check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of the daemon's host, with the data and the keys that the example names."""
    write_images(tmp_path / "data", {"birch": 50, "oak": 50}, size=(40, 40))
    shutil.copy(FOLDER / "one_daemon.yaml", tmp_path / "config.yaml")
    keys = tmp_path / "keys"
    (keys / "clients").mkdir(parents=True)
    make_keys(keys, "daemon")
    for number in range(WORLD):
        make_keys(keys, f"gpu{number}")
        (keys / f"gpu{number}" / f"gpu{number}.key").rename(keys / "clients" / f"gpu{number}.key")
    (tmp_path / "run").mkdir()
    return tmp_path


@contextlib.contextmanager
def serve(place: Path, networks: StarNetwork) -> Iterator[None]:
    """Runs the daemon in the middle of the network."""
    log = place / "log"
    environment = os.environ | {"STATE_DIRECTORY": str(place / "state"), "RUNTIME_DIRECTORY": str(place)}
    command = [*networks.prefix(0), *STREAMD, "serve", "--config", str(place / "config.yaml")]
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until(lambda: b"daemon.ready" in log.read_bytes() or daemon.poll() is not None, "it serves")
        assert daemon.poll() is None, log.read_text()
        yield
    finally:
        daemon.terminate()
        daemon.wait(LIMIT_S)


def run_ranks(place: Path, networks: StarNetwork, commands: Sequence[Sequence[object]]) -> str:
    """Runs a command on each host, with the keys of that host; what all of them printed."""
    running = [
        subprocess.Popen(
            [*networks.prefix(number + 1), *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "STREAMD_ENDPOINT": ADDRESS,
                "STREAMD_CURVE_SECRET": str(place / "keys" / f"gpu{number}" / f"gpu{number}.key_secret"),
                "STREAMD_CURVE_SERVER": str(place / "keys" / "daemon" / "daemon.key"),
                "PYTHONPATH": str(ROOT),
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            },
        )
        for number, command in enumerate(commands)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert [process.returncode for process in running] == [0] * WORLD, "\n".join(said)
    return "\n".join(said)


@pytest.mark.long
def test_the_configuration_of_one_daemon_is_one_that_is_served(place: Path) -> None:
    config = load_config(place / "config.yaml")
    assert list_unserved_settings(config) == []
    assert config.listen == (ADDRESS.replace(HUB, "0.0.0.0"),)  # noqa: S104 - as the example has it


@pytest.mark.train
@pytest.mark.timeout(300)  # it may have to install torch
def test_four_hosts_train_from_one_daemon_with_a_key_each(place: Path) -> None:
    with StarNetwork(WORLD) as networks, serve(place, networks):
        of_job = ["--nnodes", WORLD, "--nproc-per-node", 1, "--master-addr", networks.address(1)]
        torchrun = [python_of("keras_torch"), "-m", "torch.distributed.run", *of_job, "--master-port", 29500]
        program = [FOLDER / "train_torch.py", place / "run"]
        said = run_ranks(place, networks, [[*torchrun, "--node-rank", each, *program] for each in range(WORLD)])

    assert sorted(re.findall(r"rank (\d) of 4, epoch 1: loss", said)) == ["0", "1", "2", "3"]
    receipts = sorted((place / "run").glob("receipts-*.jsonl"))
    verified = subprocess.run([*STREAMD, "verify", *receipts], capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout
    assert [line for line in verified.stdout.splitlines() if line.startswith("train epoch")] == [
        f"train epoch {epoch}: one epoch, 12 batches in 4 receipts" for epoch in range(2)
    ]
    log = (place / "log").read_text()
    assert "gate.ended" not in log
