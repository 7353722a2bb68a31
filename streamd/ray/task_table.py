"""Which node has which tasks, and until when they may be silent. Pure: time is an argument, in seconds.

A task waits in the queue, or nodes hold it. When the call of a node is overdue, its tasks go to another node as well;
the first answer counts, since both give the same bytes. A task is known until it is taken out with its answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from streamd.core.cluster_settings import ClusterSettings
from streamd.limits import CALL_TASKS, NODE_TASKS_AHEAD, SILENT_S, SILENT_TIMES, TASKS_AHEAD_PER_WORKER

_SMOOTHING: Final = 0.2


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One call of a node: it fills these tasks."""

    number: int
    node: str
    tasks: tuple[int, ...]


@dataclass(slots=True)
class _OpenCall:
    call: NodeCall
    sent_s: float
    due_s: float


@dataclass(slots=True)
class _Node:
    workers: int
    streams: set[int] = field(default_factory=set)  # that it has proven
    calls: dict[int, _OpenCall] = field(default_factory=dict)
    is_silent: bool = False

    @property
    def task_count(self) -> int:
        return sum(len(each.call.tasks) for each in self.calls.values())


@dataclass(slots=True)
class _Task:
    stream: int
    is_alone: bool  # a suspect, which gets a call of its own
    holders: set[str] = field(default_factory=set)
    avoided: set[str] = field(default_factory=set)  # nodes that have it, or could not fill it
    is_queued: bool = True


class TaskTable:
    """The tasks of a bridge and the nodes that may fill them."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._tasks: dict[int, _Task] = {}
        self._queue: deque[int] = deque()
        self._usual_s: dict[int, float] = {}  # of a call, by stream
        self._call_number = 0

    def __len__(self) -> int:
        """The number of tasks that wait or are with nodes."""
        return len(self._tasks)

    # --- nodes

    def add_node(self, name: str, workers: int) -> None:
        """Adds a node with so many decode processes. It gets no task before it has proven a stream."""
        self.remove_node(name)  # an actor that took another's place has none of its tasks
        self._nodes[name] = _Node(workers)

    def remove_node(self, name: str) -> None:
        """Removes a node that is gone; its tasks go to others."""
        node = self._nodes.pop(name, None)
        if node is not None:
            for open_call in reversed(node.calls.values()):
                call = open_call.call
                for number in reversed(call.tasks):
                    if number in self._tasks:
                        self._tasks[number].holders.discard(call.node)
                        self._tasks[number].avoided.discard(call.node)
                        self.requeue(number)

    def add_stream(self, name: str, stream: int) -> None:
        """Lets a node have tasks of a stream that it has proven."""
        if name in self._nodes:
            self._nodes[name].streams.add(stream)

    def remove_stream(self, name: str, stream: int) -> None:
        """Gives a node no more tasks of a stream."""
        if name in self._nodes:
            self._nodes[name].streams.discard(stream)

    def is_silent(self, name: str) -> bool:
        """Whether a call of this node is overdue, and nothing came from it since."""
        return name in self._nodes and self._nodes[name].is_silent

    def count_node_tasks(self, name: str) -> int:
        """Returns how many tasks a node has."""
        return self._nodes[name].task_count if name in self._nodes else 0

    # --- tasks

    def add_task(self, number: int, stream: int, *, is_alone: bool = False) -> None:
        """Queues a task after all others. A suspect is alone in its call."""
        self._tasks[number] = _Task(stream, is_alone)
        self._queue.append(number)

    def take_next_call(self, now_s: float) -> NodeCall | None:
        """Assigns queued tasks to the node with the least work for its size, and returns the call; None for none now.

        A node that has work waits for a whole group of tasks, since a call costs much. One that is about to run dry
        gets what there is.
        """
        for name, node in sorted(self._nodes.items(), key=lambda each: each[1].task_count / each[1].workers):
            if node.is_silent or node.task_count >= node.workers * NODE_TASKS_AHEAD:
                continue
            tasks = self._find_tasks_for(name, node)
            is_hungry = node.task_count < node.workers * TASKS_AHEAD_PER_WORKER
            if not tasks or not (is_hungry or len(tasks) == CALL_TASKS or self._tasks[tasks[0]].is_alone):
                continue
            chosen = set(tasks)
            self._queue = deque(number for number in self._queue if number not in chosen)
            for number in tasks:
                task = self._tasks[number]
                task.is_queued = False
                task.holders.add(name)
                task.avoided.add(name)
            self._call_number += 1
            call = NodeCall(self._call_number, name, tuple(tasks))
            usual_s = self._usual_s.get(self._tasks[tasks[0]].stream, 0.0)
            node.calls[call.number] = _OpenCall(call, now_s, now_s + max(SILENT_S, SILENT_TIMES * usual_s))
            return call
        return None

    def _find_tasks_for(self, name: str, node: _Node) -> list[int]:
        """Returns the first queued tasks that a node may have, at most one call's."""
        found: list[int] = []
        for number in self._queue:
            task = self._tasks[number]
            if task.stream not in node.streams or name in task.avoided:
                continue
            if task.is_alone:
                return found or [number]
            found.append(number)
            if len(found) == CALL_TASKS:
                break
        return found

    # --- answers

    def close_call(self, call: NodeCall, now_s: float) -> list[int]:
        """Records that a node has answered a call; returns those of its tasks that nobody has filled before.

        Each of them must be taken out or queued again. The node may have tasks again if it was silent.
        """
        node = self._nodes.get(call.node)
        open_call = node.calls.pop(call.number, None) if node is not None else None
        if node is not None and open_call is not None:
            node.is_silent = False
            took_s = now_s - open_call.sent_s
            task = next((self._tasks[number] for number in call.tasks if number in self._tasks), None)
            if task is not None:
                before_s = self._usual_s.get(task.stream, took_s)
                self._usual_s[task.stream] = before_s + _SMOOTHING * (took_s - before_s)
        known = [number for number in call.tasks if number in self._tasks]
        for number in known:
            self._tasks[number].holders.discard(call.node)
        return known

    def take_out(self, number: int) -> None:
        """Removes a task that is over. Answers of other nodes that have it are ignored."""
        if self._tasks.pop(number).is_queued:
            self._queue.remove(number)

    def requeue(self, number: int, *, avoided: Collection[str] = ()) -> None:
        """Queues a task ahead of all others, unless another node still has it; `avoided` nodes do not get it."""
        task = self._tasks[number]
        task.avoided = set(avoided) | task.holders
        if not task.is_queued and not task.holders:
            task.is_queued = True
            self._queue.appendleft(number)

    def has_other_node(self, stream: int, avoided: Iterable[str]) -> bool:
        """Whether a node that is not avoided may have tasks of a stream."""
        names = self._nodes.keys() - set(avoided)
        return any(stream in self._nodes[name].streams and not self._nodes[name].is_silent for name in names)

    # --- deadlines

    @property
    def next_deadline_s(self) -> float | None:
        """When the next call is overdue; None while no node is waited for."""
        return min(
            (each.due_s for node in self._nodes.values() if not node.is_silent for each in node.calls.values()),
            default=None,
        )

    def mark_overdue_calls(self, now_s: float) -> list[str]:
        """Returns the nodes that have become silent. All their tasks also go to other nodes, ahead of the queue."""
        silent = [
            name
            for name, node in self._nodes.items()
            if not node.is_silent and any(each.due_s <= now_s for each in node.calls.values())
        ]
        for name in silent:
            self._nodes[name].is_silent = True
            numbers = [number for each in self._nodes[name].calls.values() for number in each.call.tasks]
            for number in reversed(numbers):
                task = self._tasks.get(number)
                if task is not None and not task.is_queued and task.holders == {name}:
                    task.is_queued = True
                    self._queue.appendleft(number)
        return silent

    def forget_stream(self, stream: int) -> None:
        """Forgets what is known of a stream that is closed."""
        self._usual_s.pop(stream, None)
        for node in self._nodes.values():
            node.streams.discard(stream)


# --- Which nodes of a cluster decode for a daemon. Pure.


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
