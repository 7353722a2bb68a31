"""Which nodes of a cluster decode."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamd.core.cluster_settings import ClusterSettings, Placement
from streamd.ray.task_table import ClusterNode, choose_nodes


def node(name: str, free: float = 4.0, **resources: float) -> ClusterNode:
    return ClusterNode(name, f"host-{name}", {"CPU": 4.0, **resources}, {"CPU": free, **resources})


NODES = [node("a", 1.0), node("b", 4.0), node("c", 2.0)]


def names(
    nodes: list[ClusterNode], settings: ClusterSettings, chosen: Sequence[str] = "", most: int = 9, refused: str = ""
) -> str:
    return "".join(each.node_id for each in choose_nodes(nodes, settings, set(chosen), most, set(refused)))


@pytest.mark.parametrize(("placement", "taken"), [("SPREAD", "bc"), ("PACK", "ac")])
def test_some_nodes_are_the_idlest_or_the_busiest(placement: Placement, taken: str) -> None:
    assert names(NODES, ClusterSettings(nodes=2, placement=placement)) == taken


def test_all_nodes_are_taken_up_to_the_bound_of_a_daemon() -> None:
    assert names(NODES, ClusterSettings()) == "bca"
    assert names(NODES, ClusterSettings(), most=1) == "b"


def test_a_node_that_decodes_already_stays_though_it_is_busy_now() -> None:
    assert names(NODES, ClusterSettings(nodes=1), chosen="a") == "a"


def test_a_node_without_the_resources_or_processors_is_left_out() -> None:
    nodes = [*NODES, node("d", decode=1.0), ClusterNode("head", "head", {})]
    assert names(nodes, ClusterSettings(resources={"decode": 1.0})) == "d"
    assert names(nodes, ClusterSettings(num_cpus=8.0)) == ""
    assert "head" not in names(nodes, ClusterSettings())


def test_a_node_whose_processors_are_taken_is_chosen_only_when_no_other_will_do() -> None:
    nodes = [*NODES, node("full", 0.0)]
    assert names(nodes, ClusterSettings(nodes=1, placement="PACK")) == "a"
    assert names(nodes[2:], ClusterSettings(nodes=2, placement="PACK")) == "cfull"
    assert names(nodes, ClusterSettings(nodes=1, placement="PACK"), chosen=["full"]) == "full"


def test_a_refused_node_gives_its_place_to_another_one() -> None:
    assert names(NODES, ClusterSettings(nodes=2), chosen="bc", refused="b") == "ca"
    assert names(NODES, ClusterSettings(nodes=3), chosen="bc", refused="b") == "cab"
