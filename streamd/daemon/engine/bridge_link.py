"""The bridge to a cluster as the engine sees it: one worker whose capacity grows and shrinks with the nodes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from typing import Self

from streamd.config.schema import Config
from streamd.core.cluster_settings import ClusterSettings, encode_settings
from streamd.core.status import ClusterStatus
from streamd.core.stderr_guard import child_stderr
from streamd.daemon.engine.batch_job import Task
from streamd.daemon.engine.worker_pool import HiredWorkers, PoolWorker, hire_local_workers
from streamd.errors import MissingExtraError
from streamd.ipc.worker_messages import ClusterChanged, WorkerDied, WorkerReport
from streamd.limits import BRIDGE_LEAVE_S, NODE_TASKS_AHEAD, WORKER_ENVIRONMENT
from streamd.supervisor.worker_link import WorkerLink, WorkerListener


class BridgeLink(WorkerLink[Task]):
    """A running bridge. It judges the deaths of its nodes' processes itself, and tries suspects in fresh ones."""

    cluster: ClusterStatus | None = None

    @classmethod
    async def start(cls, listener: WorkerListener, settings: ClusterSettings) -> Self:
        """Starts `python -m streamd.ray` with a new socket pair. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "streamd.ray", str(theirs.fileno()), encode_settings(settings),
                stdin=asyncio.subprocess.DEVNULL, stderr=child_stderr(), pass_fds=[theirs.fileno()],
                env={**os.environ, **WORKER_ENVIRONMENT},
                process_group=0,  # out of reach of the terminal's Ctrl-C, also before it can ignore it
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(process, ours, listener)

    @property
    def can_take_suspect(self) -> bool:
        """See WorkerLink."""
        return len(self.tasks) < self.compute_capacity(0)

    def compute_capacity(self, tasks_ahead: int) -> int:
        """See WorkerLink. What has to travel is given earlier, whatever a task costs."""
        del tasks_ahead
        return NODE_TASKS_AHEAD * (self.cluster.workers if self.cluster is not None else 0)

    @property
    def leave_s(self) -> float:
        """See WorkerLink."""
        return BRIDGE_LEAVE_S

    async def wait_for_exit(self) -> WorkerDied:
        """See WorkerLink. Ray ends its process a minute after it has lost the cluster's head."""
        death = await super().wait_for_exit()
        return WorkerDied(f"the bridge to the cluster, {death.description}", death.tasks)

    def _handle_own_reports(self, reports: Sequence[WorkerReport]) -> None:
        for report in reports:
            if isinstance(report, ClusterChanged):
                self.cluster = report.cluster


def hire_workers(config: Config) -> HiredWorkers:
    """Returns the workers that a configuration names. Raises MissingExtraError where ray is not installed."""
    if config.engine.kind == "local":
        return hire_local_workers(config.worker_count)
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray", "engine: ray")
    return hire_cluster(config.engine.cluster_settings)


def hire_cluster(settings: ClusterSettings) -> HiredWorkers:
    """Returns the nodes of a cluster, as one worker."""

    async def start_bridge(_place: int, listener: WorkerListener) -> PoolWorker:
        return await BridgeLink.start(listener, settings)

    return HiredWorkers(1, start_bridge, lock_caches=False)
