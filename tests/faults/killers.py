"""What a test does to processes, and what it may ask the kernel about them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from logged import LoggedTrainer
from support.daemon_process import DaemonProcess, wait_until

import streamd
from streamd.client.session import compute_leases_per_report


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    return state_of(pid) not in {"", "Z", "X"}


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does, "T" when it is stopped; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stop(pid: int) -> None:
    """SIGSTOP, and returns when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T", "it stands still")


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def kill_together(pids: Iterable[int]) -> None:
    """SIGKILL to all; they are stopped first, so that none sees another die."""
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the kernel ends workers with their daemon, and systemd may too
            os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Iterable[int], limit_s: float = 20.0) -> None:
    pids = list(pids)
    wait_until(lambda: not any(map(is_alive, pids)), f"{pids} are gone", limit_s)


def wait_for_outstanding(trainer: LoggedTrainer, least: int = 1) -> int:
    """Until batches lie at a trainer's gate that it has not taken: a kill that meets none would prove nothing."""
    wait_until(lambda: trainer.lying_ready() >= least, "batches lie ready")
    return trainer.lying_ready()


def wait_for_credit(trainer: LoggedTrainer) -> int:
    """Until the daemon has sent all that it may to a trainer at its gate.

    Leases that ended since are told when they are worth a message, or when the loop waits, which it does not here: what
    lies ready may be that much less than the credit.
    """
    credit = trainer.orders.prefetch
    assert credit is not None
    return wait_for_outstanding(trainer, credit - compute_leases_per_report(credit) + 1)


def number(endpoint: str, name: str, group: str = "daemon") -> float:
    """One of the daemon's own numbers."""
    with streamd.connect(endpoint) as client:
        return client.stats().get(group, {}).get(name, 0.0)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def slots_mapped(pid: int) -> int:
    """How many slots a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:streamd-")


def uses_shm(pid: int) -> bool:
    """Whether anything that it has mapped has a name in /dev/shm, where it would be left behind by a kill."""
    return "/dev/shm/" in Path(f"/proc/{pid}/maps").read_text()  # noqa: S108 - looked for, not used


def left_behind(daemon: DaemonProcess) -> list[str]:
    """What lies beside a daemon's endpoint, except for its lock."""
    folder = Path(daemon.endpoint.removeprefix("ipc://")).parent
    return sorted(each.name for each in folder.iterdir() if not each.name.endswith(".lock"))


def slots_of(pid: int) -> list[Path]:
    """The slots that a process has descriptors of, as files to be read; one that is closed meanwhile is left out."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "/memfd:streamd-" in str(entry.readlink()):
                found.append(entry)
    return found
