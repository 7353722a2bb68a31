"""Decoding on a Ray cluster beside decoding on this host: rate, processor time, and what each node would add.

    python benchmarks/cluster.py [--rounds 5] [--epochs 4] [--data FOLDER] [--results FILE.json]

Two simulated nodes of one processor each against two local workers, on photographs of 500 x 375, in turns within one
run. Needs the extra `ray`. Exit status 1 when what was promised is missed, or when the two give other bytes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import make_data
import processes
import run
from report import Bound, Report, Section, Table, finish, tabulate_rounds

from streamd.limits import NODE_TASKS_AHEAD
from streamd.ray.task_table import NodeCall, TaskTable

HERE: Final = Path(__file__).resolve().parent
NODES: Final = 2
IMAGES: Final = 1_600
OBJECT_STORE_BYTES: Final = 300 << 20
START_S: Final = 60.0
SETTLE_S: Final = 8.0  # Ray starts processes ahead, which take processor time that no batch causes
BY_PROCESSOR: Final = 0.75
BY_CLOCK: Final = 0.6
MOST_NODES: Final = 4
GROWTH_TEXT: Final = (
    "Each node has one processor of its own; all hosts are alike, and the network is not the limit. A node spends what "
    "a batch costs beyond local decoding, less what it costs the daemon's host, where a batch is copied into its slot."
)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one engine took in one round: batches a second, processor milliseconds a batch, in all and on the host."""

    rate: float
    batch_ms: float
    host_ms: float
    digests: tuple[str, ...]


def descendants(pid: int) -> list[int]:
    """A process and all that it and its children have started."""
    found = [pid]
    for each in found:
        found += processes.children(each)
    return found


@contextmanager
def simulated_cluster() -> Iterator[str]:
    """Starts a head without processors and NODES nodes of one; yields the head's address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - it takes a second, and an extra

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
        yield cluster.address
    finally:
        cluster.shutdown()


@contextmanager
def daemon(folder: Path, name: str, settings: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Serves `settings`; yields the daemon's pid and its endpoint."""
    endpoint, log = f"ipc://{folder}/{name}.sock", folder / f"{name}.log"
    config = folder / f"{name}.yaml"
    config.write_text(json.dumps(settings | {"listen": endpoint, "memory": "256MiB"}))
    command = [sys.executable, "-P", "-m", "streamd.cli.main", "serve", "--config", str(config)]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / name)}
    with log.open("w") as output, subprocess.Popen(command, stderr=output, env=environment) as process:
        try:
            wanted, until_s = ("daemon.ready", time.monotonic() + START_S)
            ready = NODES if "engine" in settings else 0
            while wanted not in log.read_text() or log.read_text().count("node.serving") < ready:
                if time.monotonic() > until_s or process.poll() is not None:
                    raise SystemExit(f"{name} did not start:\n{log.read_text()}")
                time.sleep(0.1)
            yield process.pid, endpoint
        finally:
            process.terminate()


def measure(endpoint: str, daemon_pid: int, own: int | None, epochs: int) -> Taken:
    """Drains some epochs; `own` is the process whose children are the cluster's, None for the local engine."""
    command = [sys.executable, "-P", "-m", "streamd.cli.main", "probe", "train", "--endpoint", endpoint]
    host = descendants(daemon_pid)
    everybody = host + ([each for each in descendants(own) if each not in host and each != own] if own else [])
    began_s, host_began_s = processes.cpu_s(everybody), processes.cpu_s(host)
    found = run.run_json([*command, "--epochs", str(epochs), "--digest", "--json"])
    batches = epochs * (IMAGES // 32)
    return Taken(
        found["samples_per_s"][0] / 32,
        (processes.cpu_s(everybody) - began_s) / batches * 1e3,
        (processes.cpu_s(host) - host_began_s) / batches * 1e3,
        tuple(found["digest"]),
    )


def measure_rounds(data: Path, rounds: int, epochs: int) -> tuple[list[Taken], list[Taken]]:
    """Measures both engines in turns; returns what the cluster took, and what the local engine took."""
    stream = {"train": {"source": {"kind": "folder", "path": str(data)}, "image": {"size": [128, 128]}}}
    with (
        tempfile.TemporaryDirectory(prefix="sd") as short,
        simulated_cluster() as address,
        daemon(Path(short), "ray", {"engine": {"kind": "ray", "address": address}, "streams": stream}) as ray,
        daemon(Path(short), "local", {"workers": NODES, "streams": stream}) as local,
    ):
        time.sleep(SETTLE_S)
        measure(ray[1], ray[0], os.getpid(), 1)
        measure(local[1], local[0], None, 1)
        both = [
            (measure(ray[1], ray[0], os.getpid(), epochs), measure(local[1], local[0], None, epochs))
            for _ in range(rounds)
        ]
    return [each for each, _ in both], [each for _, each in both]


def simulate_growth(nodes: int, decode_s: float, node_s: float, host_s: float, tasks: int = 2_000) -> float:
    """Batches a second of so many nodes, by the real table of tasks.

    A node decodes a batch in `decode_s` and spends `node_s` on sending it; the daemon's host spends `host_s` on each,
    one after the other.
    """
    table, queue, now_s, host_free_s, done = TaskTable(), list[tuple[float, int, NodeCall]](), 0.0, 0.0, 0
    free_s = dict.fromkeys((f"n{each}" for each in range(nodes)), 0.0)
    for name in free_s:
        table.add_node(name, 1)
        table.add_stream(name, 0)
    numbers = itertools.count()
    for _ in range(NODE_TASKS_AHEAD * nodes):
        table.add_task(next(numbers), 0)
    while done < tasks:
        while call := table.take_next_call(now_s):
            free_s[call.node] = max(now_s, free_s[call.node]) + len(call.tasks) * (decode_s + node_s)
            heapq.heappush(queue, (free_s[call.node], call.number, call))
        ready_s, _, call = heapq.heappop(queue)
        now_s = host_free_s = max(ready_s, host_free_s) + len(call.tasks) * host_s
        for number in table.close_call(call, now_s):
            table.take_out(number)
            table.add_task(next(numbers), 0)
            done += 1
    return done / now_s


def tabulate_growth(rays: Sequence[Taken], locals_: Sequence[Taken]) -> Table:
    """What one to four nodes of one processor would give, on paper and by simulation with the measured costs."""
    decode_s = statistics.median(each.batch_ms for each in locals_) / 1e3
    cost_s = statistics.median(each.batch_ms for each in rays) / 1e3
    host_s = statistics.median(each.host_ms for each in rays) / 1e3
    node_s = max(0.0, cost_s - decode_s - host_s)
    rows = []
    for nodes in range(1, MOST_NODES + 1):
        paper = min(nodes / (decode_s + node_s), 1 / host_s)
        rows.append((str(nodes), f"{paper:,.0f}", f"{simulate_growth(nodes, decode_s, node_s, host_s):,.0f}"))
    return Table(("nodes", "batches/s on paper", "simulated"), tuple(rows))


def build_report(rays: Sequence[Taken], locals_: Sequence[Taken]) -> Report:
    """The page: both engines in each round, and what their ratios promise."""
    processor = [b.batch_ms / a.batch_ms for a, b in zip(rays, locals_, strict=True)]
    clock = [a.rate / b.rate for a, b in zip(rays, locals_, strict=True)]
    rows = [
        ("cluster, batches/s", [each.rate for each in rays], ",.1f"),
        ("local, batches/s", [each.rate for each in locals_], ",.1f"),
        ("cluster, processor ms a batch", [each.batch_ms for each in rays], ",.1f"),
        ("of it on the daemon's host", [each.host_ms for each in rays], ",.1f"),
        ("local, processor ms a batch", [each.batch_ms for each in locals_], ",.1f"),
        ("cluster / local, by processor time", processor, ".2f"),
        ("cluster / local, by the clock", clock, ".2f"),
    ]
    bounds = (
        Bound("By processor time", statistics.median(processor), "at least", BY_PROCESSOR),
        Bound("By the clock", statistics.median(clock), "at least", BY_CLOCK),
    )
    text = f"{NODES} simulated nodes of one processor against {NODES} local workers, in turns, bytes equal in each."
    return Report(
        "Decoding on a Ray cluster",
        "python benchmarks/cluster.py",
        run.machine(),
        text,
        (
            Section("", tabulate_rounds(rows), bounds=bounds),
            Section(GROWTH_TEXT, tabulate_growth(rays, locals_), "Growth with nodes"),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--data", type=Path, default=make_data.DATA / "cluster")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "cluster.json")
    options = parser.parse_args()
    if not options.data.is_dir():
        make_data.make(options.data, IMAGES, make_data.LARGE)
    rays, locals_ = measure_rounds(options.data.resolve(), options.rounds, options.epochs)
    if any(a.digests != b.digests for a, b in zip(rays, locals_, strict=True)):
        sys.exit("the cluster gave other bytes than the local engine")
    finish(build_report(rays, locals_), options.results)


if __name__ == "__main__":
    main()
