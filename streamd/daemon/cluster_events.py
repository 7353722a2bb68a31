"""Logs what has changed in the cluster that decodes, node by node."""

from __future__ import annotations

from typing import Final

from streamd.core import log
from streamd.core.status import ClusterStatus, NodeState, NodeStatus

_TEXTS: Final[dict[NodeState, str]] = {
    "serving": "decodes from now on",
    "silent": "has not answered in time; its tasks went to other nodes",
    "refused": "may not decode",
    "lost": "is lost; other nodes do its tasks",
}


def log_cluster_changes(before: ClusterStatus | None, now: ClusterStatus) -> None:
    """Logs each node whose state has changed, and whether the cluster can be used."""
    problem = before.problem if before is not None else ""
    if now.problem and now.problem != problem:
        log.warning("cluster.away", now.problem, address=now.address)
    elif problem and not now.problem:
        log.notice("cluster.back", "the cluster can be used", address=now.address)
    states = {node.name: (node.state, node.waits_for) for node in (before.nodes if before is not None else ())}
    for node in now.nodes:
        if states.pop(node.name, None) != (node.state, node.waits_for):
            _log_node_state(node)
    for name, (state, _) in states.items():
        if state != "lost":
            _log_node_state(NodeStatus(name, "lost", waits_for="it has left the cluster"))


def _log_node_state(node: NodeStatus) -> None:
    if node.state == "starting":
        return
    write = log.info if node.state == "serving" else log.warning
    reason = f": {node.waits_for}" if node.waits_for else ""
    write(f"node.{node.state}", f"{_TEXTS[node.state]}{reason}", node=node.name)
