"""Logs what has changed in the cluster that decodes, node by node."""

from __future__ import annotations

from streamd.core import log
from streamd.core.status import ClusterStatus, NodeStatus


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
    reason = f": {node.waits_for}" if node.waits_for else ""
    match node.state:
        case "serving":
            log.info("node.serving", f"decodes from now on{reason}", node=node.name)
        case "silent":
            log.warning("node.silent", f"other nodes do its tasks{reason}", node=node.name)
        case "refused":
            log.warning("node.refused", f"may not decode{reason}", node=node.name)
        case "lost":
            log.warning("node.lost", f"other nodes do its tasks{reason}", node=node.name)
        case "starting":
            pass
