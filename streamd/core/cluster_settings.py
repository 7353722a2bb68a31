"""What a bridge to a cluster is started with: the daemon's `engine` section, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from streamd.limits import ROW_DEADLINE_S

Placement = Literal["SPREAD", "PACK"]

LOCAL_ADDRESS: Final = "local"  # of a cluster that the daemon starts and ends


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster at `address` (auto, local, or host:port), and how many of its nodes decode; None: all.

    Each node's actor reserves `num_cpus` processors and `resources`, and runs as many decode processes as processors.
    `placement` says which nodes are taken: SPREAD the idlest, PACK the busiest. `runtime_env` is handed to Ray. The
    bridge gets them as JSON, on its command line.
    """

    address: str = "auto"
    nodes: int | None = None
    num_cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    placement: Placement = "SPREAD"
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    row_deadline_s: float = ROW_DEADLINE_S

    @property
    def workers_per_node(self) -> int:
        """The decode processes of a node."""
        return max(1, int(self.num_cpus))

    @property
    def needed_resources(self) -> dict[str, float]:
        """What each node's actor reserves, by Ray's names."""
        return {"CPU": self.num_cpus, **self.resources}
