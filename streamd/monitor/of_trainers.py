"""The metrics of each trainer, by the number of its session: nothing that a client says becomes a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from streamd.cohorts import lags
from streamd.monitor.families import gauge, info
from streamd.monitor.figures import Figures
from streamd.status import SessionStatus

_LABELS: Final = ["stream", "trainer"]


class _Gauge(NamedTuple):
    name: str
    text: str
    of: Callable[[SessionStatus], float | None]


_GAUGES: Final = (
    _Gauge("trainer_epoch", "The epoch it is in, from 0.", lambda each: each.epoch),
    _Gauge("trainer_step", "The next step of that epoch to be sent.", lambda each: each.step),
    _Gauge("trainer_steps", "Steps that an epoch has for it.", lambda each: each.steps),
    _Gauge("trainer_samples_per_second", "Samples sent to it, over the last half minute.",
           lambda each: each.samples_per_s),
    _Gauge("trainer_credit", "Batches that it may hold at a time.", lambda each: each.credit),
    _Gauge("trainer_leases", "Batches that it holds, or that are on their way to it.", lambda each: each.held),
    _Gauge("trainer_epoch_seconds", "What its last epoch took. No value before the first is over.",
           lambda each: each.last_epoch.seconds if each.last_epoch else None),
    _Gauge("trainer_epoch_wait_seconds", "Of that, how long its loop waited for batches.",
           lambda each: each.last_epoch.waited_s if each.last_epoch else None),
)  # fmt: skip


def of_trainers(figures: Figures) -> Iterator[Metric]:
    """One family after the other."""
    sessions = figures.status.sessions
    labels = [(each, [each.stream, str(each.session)]) for each in sessions]
    yield info("trainer", "Which part of the stream a trainer takes.", [*_LABELS, "rank", "world"],
               [[*names, str(each.rank), str(each.world)] for each, names in labels])  # fmt: skip
    for name, text, of in _GAUGES:
        yield gauge(name, text, _LABELS, [(names, of(each)) for each, names in labels])
    behind = lags(sessions)
    yield gauge("trainer_lag_steps", "Steps behind the furthest trainer of the same stream, rank and world; no value "
                "once it has finished.", _LABELS,
                [(names, behind.get(each.session)) for each, names in labels])  # fmt: skip
