"""Every metric: what the daemon tells of it, and what is normal or to be done. Every alert of monitoring/alerts.yml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from operations_table import ROOT, code, table
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from ruamel.yaml import YAML

from streamd.core.status import DaemonStatus
from streamd.daemon.monitor.metrics import METRICS
from streamd.daemon.monitor.snapshot import MonitorSnapshot

ALERTS: Final = ROOT / "monitoring" / "alerts.yml"
NOBODY: Final = MonitorSnapshot(
    DaemonStatus("", 0, "", 0.0, 1, 0.0, 0, 0, draining=False),
    numbers={},
    bad_counts={},
    read_times={},
    decode_times={},
)
_SUFFIXES: Final = {"counter": "_total", "info": "_info"}

# metric: what is normal, and what to do where it is not
ADVICE: Final[dict[str, str]] = {
    "streamd_build_info": "One line. If you see two versions on one host, finish the upgrade.",
    "streamd_draining": "0. It is 1 for a few seconds while the daemon shuts down.",
    "streamd_troubles": "0. Otherwise run `streamd status`, which names each problem and its remedy.",
    "streamd_reload_failed": "0. Otherwise fix the lines that the log names, and reload again.",
    "streamd_rule_checks_total": (
        "Grows with the work. A rule that does not hold ends the daemon: see `BrokenRuleError`."
    ),
    "streamd_memory_limit_bytes": "What you wrote as `memory`.",
    "streamd_memory_used_bytes": "Often near the limit. `slot_wait_seconds` shows whether memory is short.",
    "streamd_slots": "Grows at the start, then stays.",
    "streamd_slot_wait_seconds_total": "Flat. Above 0.1 a second: more `memory`, or smaller batches.",
    "streamd_workers": "What you wrote as `workers`, or the cores.",
    "streamd_workers_busy_ratio": (
        "Any value. If it is near 1 while trainers wait, use more workers, a `cache` or a pack."
    ),
    "streamd_worker_deaths_total": (
        "Flat. One or two deaths per bad sample are normal; if there are more, look for `worker.died` in the log."
    ),
    "streamd_worker_idle_seconds_total": "Any value: the time in which workers are not busy.",
    "streamd_tasks_total": "Grows with the work.",
    "streamd_task_wait_seconds_total": (
        "Grows slowly. If it grows fast while workers are busy, decoding is the bottleneck."
    ),
    "streamd_productions": "Small. If it is above 0 and nothing is sent, look for `worker.waiting` in the log.",
    "streamd_frames_dropped_total": (
        "`stale` grows a little when trainers are killed. `malformed` should stay 0: if it grows, see `wire.malformed`."
    ),
    "streamd_stream_samples": "What the list of samples has; changes with a new list.",
    "streamd_stream_batches": "Changes with the configuration.",
    "streamd_stream_stopped": (
        "0. Otherwise see `streamd status`: mount or fix the data, list the samples again, or raise `max_fraction`."
    ),
    "streamd_stream_failed": "0. Otherwise read `streamd status`, fix what it names, and start the trainers again.",
    "streamd_decodes_per_batch": (
        '1 if trainers read together. If it stays above 1.5, start them together or with `start="live"`.'
    ),
    "streamd_shuffle_score": "0.9 to 1. If it is lower, use a larger `shuffle.buffer`, or a shuffled pack.",
    "streamd_batches_decoded_total": (
        "Grows with the work; divided by `batches_sent` it is the number of decodes per batch."
    ),
    "streamd_batches_sent_total": "Grows while trainers read. If it is flat while some wait, see the runbook.",
    "streamd_samples_sent_total": "Its rate is what is worth plotting first.",
    "streamd_send_seconds_total": (
        "Far below one second per second. If it is near that, batches are too small for so many trainers."
    ),
    "streamd_trainer_wait_seconds_total": (
        "Any value. If it is above a fifth of the trainers' time, see `trainers_limited`."
    ),
    "streamd_cache_hits_total": "After the first epoch, all samples that the cache has room for.",
    "streamd_cache_misses_total": "Flat after the first epoch, if all samples fit into `cache.max`.",
    "streamd_receipts_total": (
        "`ok` grows by one per trainer and epoch. `bad` must not grow: if it does, keep both logs and report it."
    ),
    "streamd_bad_samples": "Few and constant. If it grows, see the kinds of bad samples below.",
    "streamd_read_seconds": (
        "Well below a millisecond if files are in the page cache. Counts in the upper buckets mean that a disk hangs."
    ),
    "streamd_decode_seconds": (
        "About a millisecond for an ImageNet JPEG. Counts in the upper buckets come from huge pictures."
    ),
    "streamd_trainers": "As many as you started. If trainers are `waiting` for long, see `trainers_limited`.",
    "streamd_trainers_limited": "`none` is best: data loading is not the bottleneck. See the verdicts below.",
    "streamd_cohorts": "As many as there are ranks. If there are more, trainers are too far apart to share decodes.",
    "streamd_trainer_info": "One per trainer, to join with the other metrics.",
    "streamd_trainer_epoch": "Goes up.",
    "streamd_trainer_step": "Goes up to `trainer_steps`, then starts again at 0.",
    "streamd_trainer_steps": "The batches of an epoch divided by `world`.",
    "streamd_trainer_samples_per_second": "The rate that the model can process.",
    "streamd_trainer_credit": "16, unless the trainer asks for another number; fewer if memory is short.",
    "streamd_trainer_leases": (
        "2 or more, up to the credit. If it stays at the credit, the trainer does not release its batches."
    ),
    "streamd_trainer_epoch_seconds": "Similar from epoch to epoch.",
    "streamd_trainer_epoch_wait_seconds": "Below a twentieth of the epoch, if data loading is not the bottleneck.",
    "streamd_trainer_lag_steps": (
        "0, or at most the credit. If it is larger, batches are decoded for this trainer alone until it has caught up."
    ),
    "process_cpu_seconds_total": "The daemon's own, without workers: far below one core.",
    "process_resident_memory_bytes": "Some tens of MB and flat, whatever the number of samples.",
    "process_virtual_memory_bytes": "Any value: mapped lists of samples count.",
    "process_start_time_seconds": "Changes at a restart. If it changes often, read the log.",
    "process_open_fds": "See Sizing. Flat while the number of trainers stays the same.",
    "process_max_fds": "65,536 under systemd.",
}


@dataclass(frozen=True, slots=True)
class Told:
    """A metric as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def told() -> Iterator[Told]:
    """All metrics of /metrics, in their order."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    for family in (*(each.build_family(NOBODY) for each in METRICS), *registry.collect()):
        if family is None:  # of nodes, where no cluster decodes
            continue
        yield Told(_name(family), family.type, _labels(family), family.documentation)


def _name(family: Metric) -> str:
    return family.name + _SUFFIXES.get(family.type, "")


def _labels(family: Metric) -> tuple[str, ...]:
    return tuple(getattr(family, "_labelnames", ()))


def metric_table() -> str:
    rows = [
        (code(each.name), each.kind, ", ".join(map(code, each.labels)), each.text, ADVICE[each.name]) for each in told()
    ]
    return table(("metric", "type", "labels", "what it tells", "what is normal, what to do"), rows)


def alerts() -> list[dict[str, str]]:
    """The rules, as they are written."""
    (group,) = YAML(typ="safe").load(ALERTS)["groups"]
    return [
        {"name": rule["alert"], "severity": rule["labels"]["severity"], "do": rule["annotations"]["description"]}
        for rule in group["rules"]
    ]


def alert_table() -> str:
    rows = [(code(rule["name"]), rule["severity"], rule["do"]) for rule in alerts()]
    return table(("alert", "severity", "what to look at, what to do"), rows)
