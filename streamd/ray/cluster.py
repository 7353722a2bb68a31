"""The only module that imports ray: joins a cluster, lists its nodes, starts an actor on one, and calls it.

Ray is imported inside functions, so that a bridge can say that it is missing. Its calls to the cluster's head block,
so callers run them in threads, and bound how long they wait for them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from streamd.core.cluster_settings import LOCAL_ADDRESS, ClusterSettings
from streamd.errors import MissingExtraError, StreamdError
from streamd.ray.node_actor import NodeActor
from streamd.ray.task_table import ClusterNode

Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")

NAMESPACE: Final = "streamd"
# For a cluster that the bridge starts. Another one is its owner's, and these change nothing there.
_OWN_CLUSTER_ENVIRONMENT: Final = {"RAY_USAGE_STATS_ENABLED": "0"}
_AUTH_SETTINGS: Final = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_ACTOR_CONCURRENCY: Final = 1000  # calls at a time; the bridge bounds them, and `describe` must not wait for others


class ClusterError(StreamdError):
    """The cluster cannot be joined, or does not answer."""


class NodeLostError(StreamdError):
    """A call of a node has failed: its actor or its host is gone, or a result cannot be fetched."""


class NodeUnfitError(StreamdError):
    """A node cannot run an actor: its installation lacks something, or its environment cannot be made."""


def _import_ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - see the module
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "engine: ray") from error
    return ray


class Cluster:
    """A cluster that this process has joined, or starts for itself where the address is `local`."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self.address = settings.address
        self.needed_resources = settings.needed_resources
        self.workers_per_node = settings.workers_per_node

    def join(self) -> None:
        """Joins the cluster; blocks. Raises ClusterError if there is none, and MissingExtraError without ray."""
        is_local = self._settings.address == LOCAL_ADDRESS
        if is_local:
            os.environ.update(_OWN_CLUSTER_ENVIRONMENT)
            if not any(name in os.environ for name in _AUTH_SETTINGS):
                # A token that nobody else knows. Ray would write one into the home directory, which may be read-only.
                os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
        ray = _import_ray()
        try:
            context = ray.init(
                address=self._settings.address,
                namespace=NAMESPACE,
                configure_logging=False,
                log_to_driver=False,
                include_dashboard=False if is_local else None,
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            ray.shutdown()
            raise ClusterError(
                f"cannot join the cluster at {self._settings.address}: {_list_lines(error)[0]}"
            ) from error
        self.address = str(context.address_info.get("address") or self._settings.address)

    def list_nodes(self) -> list[ClusterNode]:
        """Returns the nodes that are alive; blocks. Raises ClusterError if the cluster's head does not say."""
        ray = _import_ray()
        from ray._private import state  # noqa: PLC0415 - Ray has no public call for it

        try:
            read_free: Callable[[], dict[str, dict[str, float]]] = state.available_resources_per_node
            free = read_free()
            return [
                ClusterNode(
                    each["NodeID"],
                    str(each.get("NodeName") or each["NodeManagerAddress"]),
                    each["Resources"],
                    free.get(each["NodeID"], {}),
                )
                for each in ray.nodes()
                if each["Alive"]
            ]
        except Exception as error:  # its errors have no common class
            raise ClusterError(
                f"the head of the cluster at {self.address} does not answer: {_list_lines(error)[0]}"
            ) from error

    def start_node(self, node: ClusterNode) -> RayNode:
        """Starts an actor on a node. Whether it can, the first call says.

        Raises NodeUnfitError for settings that Ray refuses at once.
        """
        ray, settings = _import_ray(), self._settings
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - as above

        try:
            actor = ray.remote(NodeActor).options(
                name=f"streamd-node-{node.name}-{node.node_id[:8]}-{os.getpid()}",
                num_cpus=settings.num_cpus,
                resources=dict(settings.resources) or None,
                runtime_env=dict(settings.runtime_env) or None,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False),
                max_restarts=0,  # Ray would start it behind our back, without its streams
                max_task_retries=0,
                max_concurrency=_ACTOR_CONCURRENCY,
            )
            return RayNode(actor.remote(settings.workers_per_node, settings.row_deadline_s), ray)
        except (ValueError, TypeError, OSError, RuntimeError) as error:  # what its checks of a runtime_env raise
            raise NodeUnfitError(f"its runtime_env cannot be made: {_list_lines(error)[-1]}") from error

    def put_bytes(self, data: npt.NDArray[np.uint8]) -> Any:
        """Puts bytes into the object store, and returns a reference that calls of any node take."""
        return _import_ray().put(data)

    def leave(self) -> None:
        """Ends the actors, and the cluster if this process started it."""
        _import_ray().shutdown()


@dataclass(frozen=True, slots=True, eq=False)
class RayNode:
    """An actor on a node, which runs a NodeActor."""

    actor: Any
    ray: Any

    async def call(
        self,
        method: Callable[Concatenate[NodeActor, Arguments], Coroutine[Any, Any, ResultT]],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> ResultT:
        """Calls a method such as `NodeActor.fill_rows` on the node, and returns its result.

        What `put_bytes` has put into the object store stands for its bytes. Arrays of a result are views of that
        store's memory. Raises NodeLostError; the first call also raises NodeUnfitError.
        """
        errors = self.ray.exceptions
        try:
            result: ResultT = await getattr(self.actor, method.__name__).remote(*arguments, **keywords)
        except errors.RuntimeEnvSetupError as error:
            raise NodeUnfitError(f"its runtime_env cannot be made: {_list_lines(error)[-1]}") from error
        except errors.RayActorError as error:
            if error.actor_init_failed:
                raise NodeUnfitError(f"streamd cannot start there: {_list_lines(error)[-1]}") from error
            raise NodeLostError(_list_lines(error)[0]) from error
        except errors.RayError as error:
            raise NodeLostError(_list_lines(error)[0]) from error
        return result

    def end(self) -> None:
        """Ends the actor and its decode processes."""
        self.ray.kill(self.actor)


def _list_lines(error: BaseException) -> list[str]:
    """Returns the lines of an error. In the last one Ray puts what the node's own Python has raised."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
