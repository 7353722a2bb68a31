"""The settings of a cluster on a bridge's command line."""

from __future__ import annotations

import msgspec
import pytest

from streamd.core.cluster_settings import ClusterSettings


@pytest.mark.parametrize(
    "settings",
    [ClusterSettings(), ClusterSettings("head:6379", 3, 2.0, {"decode": 1.0}, "PACK", {"env_vars": {"A": "b"}})],
)
def test_settings_arrive_as_they_were_sent(settings: ClusterSettings) -> None:
    assert msgspec.json.decode(msgspec.json.encode(settings).decode(), type=ClusterSettings) == settings


@pytest.mark.parametrize(("processors", "workers"), [(1.0, 1), (0.5, 1), (4.0, 4), (2.5, 2)])
def test_a_node_has_as_many_decode_processes_as_processors(processors: float, workers: int) -> None:
    assert ClusterSettings(num_cpus=processors).workers_per_node == workers
