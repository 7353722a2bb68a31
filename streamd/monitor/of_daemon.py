"""The metrics of the daemon as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from streamd.monitor.families import counter, gauge, info
from streamd.monitor.figures import Figures


def of_daemon(figures: Figures) -> Iterator[Metric]:
    """One family after the other."""
    yield from _state(figures)
    yield from _memory(figures)
    yield from _work(figures)
    yield from _wire(figures)


def _state(figures: Figures) -> Iterator[Metric]:
    status = figures.status
    yield info("build", "The version that runs.", ["version"], [[status.version]])
    yield gauge("draining", "1 while trainers are sent away, since the daemon is about to end.", [],
                [([], status.draining)])  # fmt: skip
    yield gauge("troubles", "How many things streamd status finds wrong; it says which, and what to do.", [],
                [([], len(status.troubles))])  # fmt: skip
    yield gauge("reload_failed", "1 if the configuration as it is written now is not, or not all, what is served.", [],
                [([], status.reload_failed)])  # fmt: skip
    rules = figures.numbers.get("rules", {})
    yield counter("rule_checks", "How often the daemon's second set of books found a rule to hold. One that does not "
                  "hold ends the daemon.", ["rule"], [([rule], checks) for rule, checks in rules.items()])  # fmt: skip


def _memory(figures: Figures) -> Iterator[Metric]:
    status = figures.status
    yield gauge("memory_limit_bytes", "What batches may take: `memory` of the configuration.", [],
                [([], status.memory_bytes)])  # fmt: skip
    yield gauge("memory_used_bytes", "What slots take, those included that are empty and kept for the next batch. It "
                "reaches the limit where trainers are slow, and that is no trouble.", [],
                [([], status.memory_used_bytes)])  # fmt: skip
    yield gauge("slots", "Pieces of shared memory, each with room for one batch.", [],
                [([], figures.number("daemon", "slots"))])  # fmt: skip
    yield counter("slot_wait_seconds", "Time in which a trainer wanted a batch and no slot was free. Where it grows "
                  "fast, give the daemon more `memory`.", [],
                  [([], figures.number("daemon", "slot_wait_s"))])  # fmt: skip


def _work(figures: Figures) -> Iterator[Metric]:
    status = figures.status
    yield gauge("workers", "Decode processes: `workers` of the configuration.", [], [([], status.workers)])
    yield gauge("workers_busy_ratio", "The part of the workers' time that went into reading and decoding, over the "
                "last half minute. Near 1 with waiting trainers: decoding is the limit.", [],
                [([], status.busy_fraction)])  # fmt: skip
    yield counter("worker_deaths", "Workers that died and were replaced. A sample that kills them is set aside.", [],
                  [([], figures.number("engine", "worker_deaths"))])  # fmt: skip
    yield counter("worker_idle_seconds", "Time, of all workers together, without a task.", [],
                  [([], figures.number("engine", "idle_s"))])  # fmt: skip
    yield counter("tasks", "Parts of batches that were given to workers, up to 32 samples each.", [],
                  [([], figures.number("engine", "queue_count"))])  # fmt: skip
    yield counter("task_wait_seconds", "Time, of all tasks together, between being made and being given to a worker.",
                  [], [([], figures.number("engine", "queue_s"))])  # fmt: skip
    yield gauge("productions", "Batches that are being read and decoded.", [],
                [([], figures.number("daemon", "producing"))])  # fmt: skip


def _wire(figures: Figures) -> Iterator[Metric]:
    rows = [([kind], figures.number("wire", kind)) for kind in ("malformed", "stale")]
    yield counter("frames_dropped", "What clients said that counts for nothing: malformed frames, of a broken or "
                  "hostile client, and stale ones, of a session that has ended.", ["reason"], rows)  # fmt: skip
