"""Which nodes of a real Ray cluster decode: those that prove themselves, have what is wanted, and are let in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.ray_cluster import RayCluster, cluster_of, foreign_node, wait_for_nodes
from test_ray_cluster import drain

import streamd
from streamd.client.client import Client
from streamd.core.status import NodeStatus
from streamd.limits import PAGE_BYTES

Write = Callable[[Path], Path]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
WHO = """
import os
import numpy as np

def mark(image, labels, rng):
    image[:] = int(os.environ.get("STREAMD_TEST_SHADE", "0"))
    return image, labels
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 40, "dog": 40})


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """A cluster with one node that is as it should be."""
    with cluster_of(1) as (found, _):
        yield found


def list_nodes(client: Client) -> tuple[NodeStatus, ...]:
    cluster = client.status().cluster
    return () if cluster is None else cluster.nodes


def config_of(cluster: RayCluster, folder: Path, engine: dict[str, Any] | None = None, **stream: Any) -> dict[str, Any]:
    return {
        "engine": {"kind": "ray", "address": cluster.address, **(engine or {})},
        "streams": {"train": stream_config(folder, **stream)},
    }


INIT = Path(streamd.__file__)
PROBE = min((INIT.parent / "decode" / "probes").glob("*.png"))


def other_version(place: Path) -> Path:
    text = INIT.read_text()
    assert f'__version__ = "{streamd.__version__}"' in text
    place.write_text(text.replace(streamd.__version__, "0.0.1"))
    return place


def broken_installation(place: Path) -> Path:
    place.write_text("raise ModuleNotFoundError(\"No module named 'PIL'\")\n")
    return place


def other_pixels(place: Path) -> Path:
    with Image.open(PROBE) as picture:
        picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(place, "PNG")
    return place


@pytest.mark.parametrize(
    ("path", "write", "reason"),
    [
        (INIT, other_version, f"it has streamd 0.0.1, and the daemon {streamd.__version__}: install the same version"),
        (INIT, broken_installation, "streamd cannot start there: ModuleNotFoundError: No module named 'PIL'"),
        (PROBE, other_pixels, "it makes other pixels"),
    ],
    ids=["another version", "a broken installation", "other pixels"],
)
def test_a_node_of_another_installation_is_refused_by_name_and_the_others_serve(
    cluster: RayCluster, start_daemon: Start, folder: Path, tmp_path: Path, path: Path, write: Write, reason: str
) -> None:
    with foreign_node(cluster, {path: write(tmp_path / "other")}):
        daemon = start_daemon(config_of(cluster, folder))
        wait_for_nodes(daemon.log, 1)
        wait_for_nodes(daemon.log, 1, "node.refused")
        (receipt,) = drain(daemon.endpoint, 1, [])
        assert receipt.ok
        text = daemon.log.read_text()
        assert [line for line in text.splitlines() if "node.refused" in line and reason in line], text
        assert "sample.bad" not in text
        with streamd.connect(daemon.endpoint) as client:
            # A refused node is tried again from time to time.
            states = ["refused", "serving"]
            wait_until(lambda: sorted(node.state for node in list_nodes(client)) == states, "one serves, one does not")


def test_a_node_without_the_data_is_refused_by_name_and_condemns_nothing(
    cluster: RayCluster, start_daemon: Start, folder: Path
) -> None:
    with foreign_node(cluster, {folder: None}):
        daemon = start_daemon(config_of(cluster, folder))
        wait_for_nodes(daemon.log, 1)
        wait_for_nodes(daemon.log, 1, "node.refused")
        receipts = drain(daemon.endpoint, 2, [])
        assert [(receipt.ok, receipt.bad) for receipt in receipts] == [(True, 0)] * 2
        text = daemon.log.read_text()
        assert f"'{folder}' is empty, or not the folder that was listed" in text
        assert "sample.bad" not in text


def test_only_nodes_with_the_resources_are_taken_and_their_number_is_bounded(
    cluster: RayCluster, start_daemon: Start, folder: Path
) -> None:
    for _ in range(2):
        cluster.add_node(resources={"decode": 1}, num_cpus=2)
    engine = {"resources": {"decode": 1}, "num_cpus": 2, "nodes": 1}
    daemon = start_daemon(config_of(cluster, folder, engine))
    wait_for_nodes(daemon.log, 1)
    (receipt,) = drain(daemon.endpoint, 1, [])
    assert receipt.ok
    with streamd.connect(daemon.endpoint) as client:
        (node,) = list_nodes(client)
    assert (node.state, node.workers) == ("serving", 2)


def test_a_runtime_env_reaches_the_decode_processes_and_one_that_cannot_be_made_is_named(
    cluster: RayCluster, start_daemon: Start, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "who.py").write_text(WHO)
    good, bad = {"env_vars": {"STREAMD_TEST_SHADE": "77"}}, {"working_dir": "/nowhere.zip"}
    config = config_of(cluster, folder, {"runtime_env": good}, transform="who:mark")
    # The daemon's own trial of the transform must give what the nodes' gives, or they would be refused.
    with DaemonProcess(tmp_path, config, environment=good["env_vars"]) as daemon:
        wait_for_nodes(daemon.log, 1)
        with streamd.connect(daemon.endpoint) as client:
            assert (client.batch("train", 0, 0).images == 77).all()
        assert daemon.terminate() == 0
    refused = start_daemon(config_of(cluster, folder, {"runtime_env": bad}))
    wait_for_nodes(refused.log, 1, "node.refused")
    assert "its runtime_env cannot be made" in refused.log.read_text()


def test_each_node_keeps_a_cache_of_its_own(
    cluster: RayCluster, start_daemon: Start, folder: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    daemon = start_daemon(config_of(cluster, folder, cache={"path": str(kept), "max": "64MiB"}))
    wait_for_nodes(daemon.log, 1)
    (receipt,) = drain(daemon.endpoint, 1, [])
    assert receipt.ok
    (cache,) = kept.glob("*.cache")
    wait_until(lambda: count_kept_samples(cache) == 80, "the node has kept all samples")
    for path in folder.rglob("*.jpg"):  # what is kept is served without its file's being read
        before = path.stat()
        path.write_bytes(bytes(before.st_size))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (receipt,) = drain(daemon.endpoint, 1, [])
    assert (receipt.ok, receipt.bad) == (True, 0)


def count_kept_samples(cache: Path) -> int:
    """Returns how many samples a cache has: their records, with mtime and checksum, follow its first page."""
    records = np.fromfile(cache, np.int64, 2 * 80, offset=PAGE_BYTES).reshape(80, 2)
    return int(np.count_nonzero(records[:, 1]))


def test_a_node_whose_processors_are_taken_says_what_it_waits_for(
    cluster: RayCluster, start_daemon: Start, folder: Path
) -> None:
    program = (
        "import ray, sys, time\n"
        f"ray.init(address={cluster.address!r}, log_to_driver=False)\n"
        "@ray.remote(num_cpus=1)\ndef hold():\n    time.sleep(600)\n"
        "held = hold.remote()\n"
        "while ray.available_resources().get('CPU'):\n    time.sleep(0.1)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        daemon = start_daemon(config_of(cluster, folder))
        with streamd.connect(daemon.endpoint) as client:
            waits = ["waits for 1 CPU, of which 0 are free"]
            wait_until(lambda: [node.waits_for for node in list_nodes(client)] == waits, "it says so", 60)
        holder.kill()
        wait_for_nodes(daemon.log, 1)
        (receipt,) = drain(daemon.endpoint, 1, [])
        assert receipt.ok


def test_a_cluster_with_tokens_decodes_for_a_daemon_that_has_the_token_and_for_no_other(
    start_daemon: Start, folder: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    secured = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    with cluster_of(1, secured) as (cluster, _):
        daemon = start_daemon(config_of(cluster, folder), environment=secured)
        wait_for_nodes(daemon.log, 1)
        (receipt,) = drain(daemon.endpoint, 1, [])
        assert receipt.ok
        assert daemon.terminate() == 0
        stranger = start_daemon(config_of(cluster, folder))
        wait_until(lambda: "cluster.away" in stranger.log.read_text(), "it is not let in", 90)
