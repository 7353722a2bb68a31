"""Decoding on a real Ray cluster of simulated nodes: equal bytes, and every promise while nodes come and go."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import crashing_decoders
from support.crashing_decoders import Broken, mark
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.ray_cluster import RayCluster, cluster_of, list_descendants, longest_pause, signal_node, wait_for_nodes

import streamd
from streamd.core.receipt import Receipt

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
IMAGES = 400
MOST_PAUSE_S = 20.0  # some calls of a busy host, and far from the 65 s after which Ray itself gives up a frozen node
MEMORY_BYTES = 64 << 20
TRANSFORM = """
import numpy as np

def darken(image, labels, rng):
    return image // 2 + np.uint8(rng.integers(0, 50)), labels
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": IMAGES // 2, "dog": IMAGES // 2}, size=(375, 500))


@pytest.fixture
def nodes() -> Iterator[tuple[RayCluster, list[int]]]:
    with cluster_of(2) as found:
        yield found


def serve(start: Start, cluster: RayCluster, folder: Path, count: int, **environment: str) -> DaemonProcess:
    """A daemon that decodes on `count` nodes of a cluster, all of which serve."""
    config = {"engine": {"kind": "ray", "address": cluster.address}, "streams": {"train": stream_config(folder)}}
    daemon = start(config, environment=environment or None)
    wait_for_nodes(daemon.log, count)
    return daemon


def drain(endpoint: str, epochs: int, times_s: list[float]) -> list[Receipt]:
    """Reads epochs, and adds the time of each batch."""
    with streamd.connect(endpoint) as client, client.subscribe("train", epochs=epochs) as stream:
        times_s.extend(time.monotonic() for _ in stream)
        return list(stream.receipts)


class Training(threading.Thread):
    """A trainer that reads `epochs` epochs in the background."""

    def __init__(self, endpoint: str, epochs: int) -> None:
        super().__init__()
        self.times_s: list[float] = []
        self.receipts: list[Receipt] = []
        self._endpoint, self._epochs = endpoint, epochs
        self.start()

    def run(self) -> None:
        self.receipts = drain(self._endpoint, self._epochs, self.times_s)

    def wait_for_batches(self, count: int) -> None:
        wait_until(lambda: len(self.times_s) >= count, f"{count} batches were read")

    def finish(self) -> None:
        """Waits for the end; every receipt must be right, and no pause too long."""
        self.join(160)
        assert not self.is_alive()
        assert [receipt.ok for receipt in self.receipts] == [True] * self._epochs
        assert longest_pause(self.times_s) <= MOST_PAUSE_S


def slot_bytes(daemon: DaemonProcess) -> int:
    """The shared memory of a daemon's slots."""
    sizes = 0
    for path in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.readlink().name.startswith("memfd:streamd-"):
                sizes += path.stat().st_blocks * 512
    return sizes


def digests(endpoint: str, name: str) -> list[bytes]:
    """The pixels and ids of one epoch, batch by batch."""
    with streamd.connect(endpoint) as client, client.subscribe(name, epochs=1) as stream:
        return [b.images.tobytes() + b.sample_ids.tobytes() + b.labels["label"].tobytes() for b in stream]


def test_nodes_give_the_bytes_of_the_local_engine(
    nodes: tuple[RayCluster, list[int]], folder: Path, tmp_path: Path
) -> None:
    streams = {"plain": stream_config(folder), "train": stream_config(folder, transform="augment:darken")}
    places = {"nodes": {"engine": {"kind": "ray", "address": nodes[0].address}}, "local": {}}
    found = {}
    for name, top in places.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "augment.py").write_text(TRANSFORM)
        with DaemonProcess(tmp_path / name, {**top, "streams": streams}) as daemon:
            if top:
                wait_for_nodes(daemon.log, 2)
            found[name] = [digests(daemon.endpoint, stream) for stream in streams]
            assert daemon.terminate() == 0
    assert found["nodes"] == found["local"]
    wait_until(lambda: not any(map(decodes, nodes[1])), "the nodes have ended their decode processes")


def decodes(raylet: int) -> bool:
    """Whether a node has decode processes."""
    return any(b"streamd.worker" in _command(pid) for pid in list_descendants(raylet))


def _command(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_node_that_dies_or_freezes_costs_a_short_pause(
    nodes: tuple[RayCluster, list[int]], start_daemon: Start, folder: Path, fault: signal.Signals
) -> None:
    daemon = serve(start_daemon, nodes[0], folder, 2)
    training = Training(daemon.endpoint, 12)
    training.wait_for_batches(20)
    signal_node(nodes[1][0], fault)
    training.wait_for_batches(100)
    assert slot_bytes(daemon) <= MEMORY_BYTES
    training.finish()
    assert "node.silent" in daemon.log.read_text() or "node.lost" in daemon.log.read_text()
    assert "sample.bad" not in daemon.log.read_text()


def test_a_node_that_joins_in_mid_epoch_gets_work(start_daemon: Start, folder: Path) -> None:
    with cluster_of(1) as (cluster, _):
        daemon = serve(start_daemon, cluster, folder, 1)
        training = Training(daemon.endpoint, 20)
        training.wait_for_batches(10)
        cluster.add_node()
        wait_for_nodes(daemon.log, 2)
        training.finish()


def test_a_file_that_crashes_its_decoder_is_bad_by_name_as_on_this_host(
    start_daemon: Start, folder: Path, tmp_path: Path
) -> None:
    ills = Broken(tmp_path / "ills", 3.0)
    mark(folder / "cat" / "0003.jpg", crashing_decoders.SEGV)
    with cluster_of(2, ills.environment) as (cluster, _):
        daemon = serve(start_daemon, cluster, folder, 2)
        (receipt,) = drain(daemon.endpoint, 1, [])
        assert receipt.ok
        (line,) = [line for line in daemon.log.read_text().splitlines() if "sample.bad" in line]
        assert "cat/0003.jpg" in line
        assert "crashes its decoder: SIGSEGV" in line


def test_the_daemon_stays_while_the_head_is_gone_and_goes_on_when_the_cluster_is_back(
    start_daemon: Start, folder: Path
) -> None:
    with cluster_of(1) as (cluster, _):
        daemon = serve(start_daemon, cluster, folder, 1)
        cluster.kill_head()
        wait_until(lambda: "cluster.away" in daemon.log.read_text(), "the daemon says so", 90)
        port = cluster.port
    again = RayCluster(port=port)
    try:
        again.add_node()
        wait_for_nodes(daemon.log, 2)
        (receipt,) = drain(daemon.endpoint, 1, [])
        assert receipt.ok
        assert "cluster.back" in daemon.log.read_text()
    finally:
        again.close()


def test_a_local_cluster_is_started_and_ended_with_the_daemon(start_daemon: Start, folder: Path) -> None:
    home = "/proc/nobody"  # nothing can be written there, as under systemd; and no other process has it
    config = {"engine": {"kind": "ray", "address": "local"}, "streams": {"train": stream_config(folder)}}
    daemon = start_daemon(config, environment={"HOME": home})
    wait_for_nodes(daemon.log, 1)
    (receipt,) = drain(daemon.endpoint, 1, [])
    assert receipt.ok
    (head,) = [pid for pid in list_processes_of(home) if b"gcs_server" in _command(pid)]
    settings = read_environment(head)
    assert settings[b"RAY_USAGE_STATS_ENABLED"] == b"0"
    assert settings[b"RAY_AUTH_MODE"] == b"token"
    assert len(settings[b"RAY_AUTH_TOKEN"]) == 64
    assert daemon.terminate() == 0
    wait_until(lambda: not list_processes_of(home), "all processes of the cluster have ended", 120)


def list_processes_of(home: str) -> list[int]:
    """The processes of this host with this home directory."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if read_environment(pid).get(b"HOME") == home.encode()]


def read_environment(pid: int) -> dict[bytes, bytes]:
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
    return {}
