"""The figures as Prometheus reads them, from a registry of our own: whatever else a process may count is not ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from streamd.daemon.monitor.metrics import build_daemon_metrics, build_stream_metrics, build_trainer_metrics
from streamd.daemon.monitor.snapshot import MonitorSnapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # which every Prometheus reads
_LINES_PER_TURN: Final = 100
_NAME_SUFFIXES: Final = {"counter": "_total", "info": "_info"}  # which the text has from the first line on


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotCollector(Collector):
    """All families of one look, which is taken when the first of them is asked for."""

    take_snapshot: Callable[[], MonitorSnapshot]

    def collect(self) -> Iterator[Metric]:
        figures = self.take_snapshot()
        yield from build_daemon_metrics(figures)
        yield from build_stream_metrics(figures)
        yield from build_trainer_metrics(figures)


class MetricsExposition:
    """Writes what `look` sees, and the process's own CPU time, memory and descriptors."""

    def __init__(self, take_snapshot: Callable[[], MonitorSnapshot]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)  # to describe itself, it would look
        self._registry.register(SnapshotCollector(take_snapshot))
        ProcessCollector(registry=self._registry)

    async def encode_metrics(self) -> bytes:
        """All metrics of one moment. Batches have their turn after every half a millisecond or so."""
        lines = []
        for number, line in enumerate(chain.from_iterable(map(_format_family, self._registry.collect())), 1):
            lines.append(line)
            if number % _LINES_PER_TURN == 0:
                await asyncio.sleep(0)
        return "".join(lines).encode()


def _format_family(family: Metric) -> Iterator[str]:
    """A family as text. The library's own writer takes several times as long, and all of it in one turn."""
    name = family.name + _NAME_SUFFIXES.get(family.type, "")
    yield f"# HELP {name} {_escape_text(family.documentation)}\n"
    yield f"# TYPE {name} {'gauge' if family.type == 'info' else family.type}\n"
    for sample in family.samples:
        labels = ",".join([f'{label}="{_escape_label_value(value)}"' for label, value in sorted(sample.labels.items())])
        yield f"{sample.name}{f'{{{labels}}}' if labels else ''} {float(sample.value)!r}\n"


def _escape_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label_value(value: str) -> str:
    return _escape_text(value).replace('"', '\\"')
