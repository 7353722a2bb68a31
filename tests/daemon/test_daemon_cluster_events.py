"""What the log says of a cluster: each change once."""

from __future__ import annotations

import pytest

from streamd.core.status import ClusterStatus, NodeStatus
from streamd.daemon.status_builder import log_cluster_changes

SERVING, SILENT = NodeStatus("a", "serving", 1), NodeStatus("a", "silent", 1)
REFUSED = NodeStatus("b", "refused", 1, waits_for="its data are missing")


def logged(before: ClusterStatus | None, now: ClusterStatus, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    log_cluster_changes(before, now)
    return [f"{record.__dict__.get('event', '')} {record.getMessage()}" for record in caplog.records]


def test_each_change_of_a_node_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1, "streamd")
    first = ClusterStatus("head:1", "", (SERVING, REFUSED))
    lines = logged(None, first, caplog)
    assert len(lines) == 2
    assert "its data are missing" in lines[1]
    assert logged(first, ClusterStatus("head:1", "", (NodeStatus("a", "serving", 1, tasks=7), REFUSED)), caplog) == []
    assert len(logged(first, ClusterStatus("head:1", "", (SILENT, REFUSED)), caplog)) == 1
    assert len(logged(first, ClusterStatus("head:1", "", (SERVING,)), caplog)) == 1
    assert logged(None, ClusterStatus("head:1", "", (NodeStatus("c", "starting"),)), caplog) == []


def test_a_cluster_that_goes_and_comes_back_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1, "streamd")
    fine, away = ClusterStatus("head:1"), ClusterStatus("head:1", "the head does not answer")
    assert len(logged(fine, away, caplog)) == 1
    assert logged(away, away, caplog) == []
    assert len(logged(away, fine, caplog)) == 1
