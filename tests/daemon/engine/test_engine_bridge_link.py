"""The bridge to a cluster as a worker of the engine: its capacity, and what it costs to start it without Ray."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Sequence

import pytest

from streamd.config.load import load_config
from streamd.config.schema import Config
from streamd.core.status import ClusterStatus, NodeStatus
from streamd.daemon.engine.worker_pool import BridgeLink, hire_workers
from streamd.errors import MissingExtraError
from streamd.ipc.worker_messages import ClusterChanged, WorkerDied
from streamd.limits import NODE_TASKS_AHEAD

NODES = (NodeStatus("a", "serving", 2), NodeStatus("b", "serving", 2), NodeStatus("c", "silent", 2))


class ProcessFake:
    pid = 7

    async def wait(self) -> int:
        return 1


class ListenerFake:
    def on_worker_reports(self, worker: object, reports: Sequence[object]) -> None: ...

    def on_worker_started(self, worker: object) -> None: ...

    def on_worker_waiting(self, worker: object, progress: object) -> None: ...

    def on_worker_died(self, worker: object, death: WorkerDied) -> None: ...


async def test_a_bridge_takes_tasks_for_the_nodes_that_serve() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setblocking(False)
        link = BridgeLink(ProcessFake(), ours, ListenerFake())  # type: ignore[arg-type]  # only its pid and end count
        assert (link.compute_capacity(2), link.can_take_suspect) == (0, False)
        link._handle_own_reports([ClusterChanged(ClusterStatus("head:1", "", NODES))])
        assert (link.compute_capacity(2), link.can_take_suspect) == (4 * NODE_TASKS_AHEAD, True)
        theirs.shutdown(socket.SHUT_RDWR)
        assert await link.wait_for_exit() == WorkerDied("the bridge to the cluster, with exit status 1")
        link.close()


def config(**top: object) -> Config:
    stream = {"source": {"kind": "folder", "path": "/data"}, "image": {"size": [8, 8]}}
    return load_config({**top, "streams": {"train": stream}})


def test_workers_are_of_this_host_unless_the_engine_is_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hire_workers(config(workers=3)).count == 3
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"engine: ray needs ray, which is not installed"):
        hire_workers(config(engine="ray"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert hire_workers(config(engine="ray", workers=3)).count == 1
