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
from streamd.daemon.monitor.metrics import build_daemon_metrics, build_stream_metrics, build_trainer_metrics
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
    "streamd_build_info": "One line. Two versions on one host: finish the upgrade.",
    "streamd_draining": "0. It is 1 for a few seconds at an end.",
    "streamd_troubles": "0. Else run `streamd status`, which names each with its remedy.",
    "streamd_reload_failed": "0. Else mend the lines that the log names, and reload again.",
    "streamd_rule_checks_total": "Grows with the work. One that does not hold ends the daemon: see `BrokenRuleError`.",
    "streamd_memory_limit_bytes": "What you wrote as `memory`.",
    "streamd_memory_used_bytes": "Often near the limit. Look at `slot_wait_seconds` to see whether it is short.",
    "streamd_slots": "Grows at the start, then stays.",
    "streamd_slot_wait_seconds_total": "Flat. Above 0.1 a second: more `memory`, or smaller batches.",
    "streamd_workers": "What you wrote as `workers`, or the cores.",
    "streamd_workers_busy_ratio": "Any. Near 1 while trainers wait: more workers, a `cache` or a pack.",
    "streamd_worker_deaths_total": "Flat. One or two a bad sample is as it should be; more: look for `worker.died`.",
    "streamd_worker_idle_seconds_total": "Any: the rest of the workers' time.",
    "streamd_tasks_total": "Grows with the work.",
    "streamd_task_wait_seconds_total": "Grows slowly. Fast, with busy workers: decoding is the limit.",
    "streamd_productions": "Small. Above 0 and nothing sent: look for `worker.waiting`.",
    "streamd_frames_dropped_total": "`stale` grows a little when trainers are killed. `malformed` does not: see "
    "`wire.malformed`.",
    "streamd_stream_samples": "What the list of samples has; changes with a new list.",
    "streamd_stream_batches": "Changes with the configuration.",
    "streamd_stream_stopped": "0. Else see `streamd status`: mount or mend data, list anew or raise `max_fraction`.",
    "streamd_stream_failed": "0. Else read `streamd status`, mend it, start the trainers again.",
    "streamd_decodes_per_batch": "1 where trainers are together. Above 1.5 for long: start them together or `live`.",
    "streamd_shuffle_score": "0.9 to 1. Below: a larger `shuffle.buffer`, or a shuffled pack.",
    "streamd_batches_decoded_total": "Grows with the work; over `batches_sent` it is what each batch cost.",
    "streamd_batches_sent_total": "Grows while trainers read. Flat while some wait: see the runbook.",
    "streamd_samples_sent_total": "Its rate is what is worth plotting first.",
    "streamd_send_seconds_total": "Far below a second a second. Near it: batches are too small for so many trainers.",
    "streamd_trainer_wait_seconds_total": "Any. Above a fifth of the trainers' time: see `trainers_limited`.",
    "streamd_cache_hits_total": "After the first epoch, all samples that the cache has room for.",
    "streamd_cache_misses_total": "Flat after the first epoch, where `cache.max` holds all.",
    "streamd_receipts_total": "`ok` grows by one a trainer and epoch. `bad` never: keep both logs and report it.",
    "streamd_bad_samples": "Few and constant. Where it grows: see the kinds of bad samples.",
    "streamd_read_seconds": "Well below a millisecond from memory. Its upper buckets show a disk that hangs.",
    "streamd_decode_seconds": "A millisecond or so an ImageNet JPEG. Its upper buckets are huge pictures.",
    "streamd_trainers": "As many as you started. `waiting` for long: see `trainers_limited`.",
    "streamd_trainers_limited": "`none` is best: data are no limit. See the verdicts.",
    "streamd_cohorts": "As many as there are ranks; more: trainers are apart.",
    "streamd_trainer_info": "One a trainer, to join with the others.",
    "streamd_trainer_epoch": "Goes up.",
    "streamd_trainer_step": "Goes up to `trainer_steps`, then begins anew.",
    "streamd_trainer_steps": "Batches of an epoch over `world`.",
    "streamd_trainer_samples_per_second": "What the model can take.",
    "streamd_trainer_credit": "16, unless asked otherwise; less where memory is short.",
    "streamd_trainer_leases": "2 or more, up to the credit. At the credit for long: the trainer holds its batches.",
    "streamd_trainer_epoch_seconds": "Alike from epoch to epoch.",
    "streamd_trainer_epoch_wait_seconds": "Below a twentieth of the epoch, where data are no limit.",
    "streamd_trainer_lag_steps": "0, or within the credit. Larger: it decodes for itself until it has drawn level.",
    "process_cpu_seconds_total": "The daemon's own, without workers: far below one core.",
    "process_resident_memory_bytes": "Some tens of MB and flat, whatever the number of samples.",
    "process_virtual_memory_bytes": "Any: mapped lists count.",
    "process_start_time_seconds": "Changes at a restart. Often: read the log.",
    "process_open_fds": "See Sizing. Flat for the same trainers.",
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
    for family in (
        *build_daemon_metrics(NOBODY),
        *build_stream_metrics(NOBODY),
        *build_trainer_metrics(NOBODY),
        *registry.collect(),
    ):
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
