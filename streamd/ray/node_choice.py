"""Which nodes of a cluster decode for a daemon. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from streamd.core.cluster_settings import ClusterSettings


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node that is alive: what it has in all, and what of it is free. `name` is its host's, or its address."""

    node_id: str
    name: str
    resources: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)

    @property
    def free_fraction(self) -> float:
        """The fraction of its processors that is free, 0 to 1."""
        return self.free.get("CPU", 0.0) / max(self.resources.get("CPU", 0.0), 1.0)

    def describe_shortage(self, needed: Mapping[str, float]) -> str:
        """Returns what of the `needed` resources is not free now, as a reason to wait; "" if all of it is."""
        free = {name: self.free.get(name, 0.0) for name in needed}
        short = [
            f"{amount:g} {name}, of which {free[name]:g} {'is' if free[name] == 1 else 'are'} free"
            for name, amount in needed.items()
            if free[name] < amount
        ]
        return f"waits for {' and '.join(short)}" if short else ""


def choose_nodes(
    nodes: Iterable[ClusterNode],
    settings: ClusterSettings,
    chosen: Collection[str],
    most: int,
    refused: Collection[str] = (),
) -> list[ClusterNode]:
    """Returns the nodes that decode, those of `chosen` first, which decode already.

    A node that does not have what an actor needs is left out. One that has it, but not free now, is taken when no other
    node will do, and one that is `refused` last of all.
    """
    needed = settings.needed_resources
    fit = [node for node in nodes if _has_amounts(node.resources, needed)]
    idlest_first = settings.placement == "SPREAD"

    def rank_node(node: ClusterNode) -> tuple[bool, bool, bool, float, str]:
        return (
            node.node_id in refused,
            node.node_id not in chosen,
            not _has_amounts(node.free, needed),
            -node.free_fraction if idlest_first else node.free_fraction,
            node.node_id,
        )

    return sorted(fit, key=rank_node)[: most if settings.nodes is None else min(settings.nodes, most)]


def _has_amounts(amounts: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    return all(amounts.get(name, 0.0) >= amount for name, amount in needed.items())
