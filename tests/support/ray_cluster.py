"""A real Ray cluster of simulated nodes on this host, in a process of its own, since Ray changes the one it runs in."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from support.daemon_process import wait_until

_PROGRAM: Final = """
    import json, sys
    from ray.cluster_utils import Cluster
    store = 160 << 20
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": store}
    head["gcs_server_port"] = int(sys.argv[1])
    cluster = Cluster(initialize_head=True, head_node_args=head)
    say = lambda value: print(json.dumps(value), file=real, flush=True)
    gcs = cluster.head_node.all_processes["gcs_server"][0].process.pid
    say({"address": cluster.address, "gcs": gcs})
    for line in sys.stdin:
        node = cluster.add_node(**{"num_cpus": 1, "object_store_memory": store, **json.loads(line)})
        say(node.all_processes["raylet"][0].process.pid)
    cluster.shutdown()
"""
START_S: Final = 120.0


class RayCluster:
    """A head without processors; `add_node` starts a node of one processor."""

    def __init__(self, environment: dict[str, str] | None = None, port: int = 0) -> None:
        program = "import os, sys\nreal = os.fdopen(os.dup(1), 'w')\nos.dup2(2, 1)\n" + "\n".join(
            line.removeprefix("    ") for line in _PROGRAM.splitlines()
        )
        self.port = port or _find_free_port()
        usage_off = {"RAY_USAGE_STATS_ENABLED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(self.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, **usage_off, **(environment or {})},
            start_new_session=True,
        )  # fmt: skip
        started = self._read_answer()
        assert isinstance(started, dict)
        self.address, self._gcs = str(started["address"]), int(started["gcs"])

    def _read_answer(self) -> object:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def add_node(self, **options: object) -> int:
        """Starts a node with the options of Ray's test cluster: `num_cpus`, `resources`, `env_vars`.

        Returns the pid of its raylet, below which all its processes are.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(options)}\n")
        self._process.stdin.flush()
        raylet = self._read_answer()
        assert isinstance(raylet, int)
        return raylet

    def kill_head(self) -> None:
        """Kills the cluster's control store, without which no node can join and no actor can start."""
        os.kill(self._gcs, signal.SIGKILL)

    def close(self) -> None:
        """Ends all processes of the cluster."""
        for pid in [*list_descendants(self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def foreign_node(cluster: RayCluster, seen: Mapping[Path, Path | None]) -> Iterator[None]:
    """A node that sees other files than this host: `seen` has what lies at a path there; None is an empty folder.

    It is in a mount namespace of its own, as root or with user namespaces.
    """
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={cluster.address}", "--num-cpus=1"]
    start += ["--block", f"--object-store-memory={160 << 20}"]
    mounts = [
        ["mount", "-t", "tmpfs", "none", str(path)] if other is None else ["mount", "--bind", str(other), str(path)]
        for path, other in seen.items()
    ]
    who = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = " && ".join(map(shlex.join, [*mounts, ["exec", *start]]))
    command = ["unshare", *who, "--mount", "sh", "-c", script]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        for pid in [*list_descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _find_free_port() -> int:
    """A port that nobody gets who asks for any, as other clusters do until this one has started: Linux begins above."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def list_descendants(pid: int) -> list[int]:
    """The processes that a process and its children have started."""
    found: list[int] = []
    for task in [pid]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = [int(each) for each in Path(f"/proc/{task}/task/{task}/children").read_text().split()]
            for child in children:
                found += [child, *list_descendants(child)]
    return found


def signal_node(raylet: int, number: signal.Signals) -> None:
    """Sends a signal to all processes of a node at once, as if its host had died or stood still."""
    for pid in [raylet, *list_descendants(raylet)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def cluster_of(nodes: int, environment: dict[str, str] | None = None) -> Iterator[tuple[RayCluster, list[int]]]:
    """A cluster with so many nodes, and the pids of their raylets."""
    cluster = RayCluster(environment)
    try:
        yield cluster, [cluster.add_node() for _ in range(nodes)]
    finally:
        cluster.close()


def wait_for_nodes(log: Path, count: int, event: str = "node.serving") -> None:
    """Waits until a daemon has logged an event of nodes so many times."""
    wait_until(lambda: log.read_text().count(event) >= count, f"{count} nodes are {event}", START_S)


def longest_pause(times_s: Sequence[float]) -> float:
    """The longest time between two entries, in seconds."""
    return max(after - before for before, after in itertools.pairwise(times_s))
