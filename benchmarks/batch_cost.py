"""What a batch costs in processor time: a trainer that drains a stream and looks at the clocks of all processes.

    python benchmarks/batch_cost.py ENDPOINT DAEMON_PID EPOCHS

drains one epoch of `train` that does not count, then EPOCHS epochs that do, in a subscription of their own, so that
each batch that is made is counted. Prints one JSON object. Uses the public client alone, so any checkout can run it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import processes

import streamd

READY_S: Final = 30.0
DRAIN_S: Final = 300.0
PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Processor time a batch, in milliseconds: of the daemon together with its workers, and of the trainer."""

    daemon_ms: float
    trainer_ms: float

    @property
    def total_ms(self) -> float:
        return self.daemon_ms + self.trainer_ms


@dataclass(frozen=True, slots=True)
class Drained:
    """What the trainer prints. `package` is where its streamd lies."""

    package: str
    batches: int
    daemon_ns: int
    trainer_ns: int

    @property
    def cost(self) -> BatchCost:
        return BatchCost(self.daemon_ns / self.batches / 1e6, self.trainer_ns / self.batches / 1e6)


def run_trainer(endpoint: str, daemon_pid: int, epochs: int, environment: Mapping[str, str] | None = None) -> Drained:
    """Drains `train` in a process of its own. Exits with what that said when it fails."""
    command = [sys.executable, __file__, endpoint, str(daemon_pid), str(epochs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DRAIN_S, check=False)
    if done.returncode:
        sys.exit(f"batch_cost: the trainer ended with {done.returncode}:\n{done.stderr}")
    return Drained(**json.loads(done.stdout))


def drain_stream(client: streamd.client.Client, epochs: int) -> int:
    """Takes all batches of so many epochs and reads a byte of each page; how many they were."""
    batches = 0
    with client.subscribe("train", epochs=epochs) as stream:
        for batch in stream:
            batch.images.reshape(-1)[::PAGE_BYTES].sum()
            batches += 1
    return batches


def drain_and_measure(endpoint: str, daemon_pid: int, epochs: int) -> Drained:
    """Drains the stream in this process. Raises OSError when one of the daemon's workers ends meanwhile."""
    with streamd.connect(endpoint, timeout=READY_S) as client:
        drain_stream(client, 1)
        pids = [daemon_pid, *processes.children(daemon_pid)]
        daemon_ns, trainer_ns = processes.cpu_ns(pids), time.process_time_ns()
        batches = drain_stream(client, epochs)
        spent = (processes.cpu_ns(pids) - daemon_ns, time.process_time_ns() - trainer_ns)
    return Drained(str(Path(streamd.__file__).parent), batches, *spent)


def main() -> None:
    endpoint, daemon_pid, epochs = sys.argv[1:]
    print(json.dumps(asdict(drain_and_measure(endpoint, int(daemon_pid), int(epochs)))))


if __name__ == "__main__":
    main()
