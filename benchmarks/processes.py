"""What the kernel says about a daemon and its workers, from /proc, and what a batch costs them in processor time.

    python benchmarks/processes.py ENDPOINT DAEMON_PID EPOCHS

is a trainer that drains a stream and reads the clocks of all processes: one epoch of `train` that does not count, then
EPOCHS epochs that do, in a subscription of their own, so that each batch that is made is counted. It prints one JSON
object, and uses the public client alone, so any checkout can run it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import streamd

_PROC: Final = Path("/proc")
_KIB: Final = 1024
_CPU_CLOCK: Final = 2  # of clock_getcpuclockid(3): all threads of a process, user and system
_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system's own blocks are


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command, which may hold spaces and brackets: state, ppid, ..."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int | None:
    try:
        return int(_stat_fields(pid)[1])
    except (FileNotFoundError, ProcessLookupError):  # it ended while the list was read
        return None


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that still run."""
    everybody = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return sorted(other for other in everybody if _parent(other) == pid)


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds used so far, user and system, all together."""
    ticks = sum(int(field) for pid in pids for field in _stat_fields(pid)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_ns(pids: Iterable[int]) -> int:
    """The same in nanoseconds, which the kernel keeps for each process. Raises OSError when one has ended."""
    return sum(time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK) for pid in pids)


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return {
        os.fsdecode(name): os.fsdecode(value)
        for name, mark, value in (each.partition(b"=") for each in entries)
        if mark
    }


def anonymous_bytes(pid: int) -> int:
    """Memory that is the process's own and backed by no file: heap, stacks, private copies."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * _KIB
    raise ValueError(f"/proc/{pid}/status has no RssAnon")


def mapped_bytes(pid: int, suffix: str) -> int:
    """Memory of the process's mappings of files whose names end so; the page cache holds it once for all."""
    total, counts = 0, False
    for line in (_PROC / str(pid) / "smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if " " in key:  # a mapping begins: its addresses, its rights and the name of its file
            counts = line.endswith(suffix)
        elif counts and key == "Rss":
            total += int(value.split()[0]) * _KIB
    return total


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())


def threads(pid: int) -> int:
    return sum(1 for _ in (_PROC / str(pid) / "task").iterdir())


def memfd_bytes(pids: Iterable[int]) -> int:
    """Memory of all memfds that the processes hold a descriptor of, each counted once however many hold it."""
    allocated: dict[int, int] = {}
    for pid in pids:
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            try:
                if str(descriptor.readlink()).startswith("/memfd:"):
                    facts = descriptor.stat()
                    allocated[facts.st_ino] = facts.st_blocks * _BLOCK_BYTES
            except FileNotFoundError:  # closed while the list was read
                continue
    return sum(allocated.values())


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
        sys.exit(f"processes: the trainer ended with {done.returncode}:\n{done.stderr}")
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
        pids = [daemon_pid, *children(daemon_pid)]
        daemon_ns, trainer_ns = cpu_ns(pids), time.process_time_ns()
        batches = drain_stream(client, epochs)
        spent = (cpu_ns(pids) - daemon_ns, time.process_time_ns() - trainer_ns)
    return Drained(str(Path(streamd.__file__).parent), batches, *spent)


def main() -> None:
    endpoint, daemon_pid, epochs = sys.argv[1:]
    print(json.dumps(asdict(drain_and_measure(endpoint, int(daemon_pid), int(epochs)))))


if __name__ == "__main__":
    main()
