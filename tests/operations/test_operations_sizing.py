"""The sizes in docs/operations.md are those that the daemon admits trainers by."""

from __future__ import annotations

import re

from operations_sizing import DAEMON_BYTES, MEMORY, TRAINERS, WORKER_BYTES, example, need, shape, stream
from operations_table import PAGE, ROOT, prose

from streamd.cli.check.run import compute_trainer_capacity
from streamd.limits import DEFAULT_CREDIT, MIB, MIN_CREDIT
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots


def test_the_formulas_give_what_the_daemon_admits() -> None:
    found, one, text = need(), shape(stream()), prose(PAGE.read_text(encoding="utf-8"))
    ahead = compute_production_slots(one, SchedulerLimits(MEMORY, found.workers))
    by_formula = ((TRAINERS + 1) * DEFAULT_CREDIT + ahead) * one.slot_bytes
    assert 0 <= found.easy_bytes - by_formula < MIB
    assert f"(({TRAINERS} + 1) x {DEFAULT_CREDIT} + {ahead}) x a batch" in example()
    assert "((trainers + 1) x 16 + batches ahead) x a batch" in text
    least = (MIN_CREDIT * TRAINERS + ahead) * one.slot_bytes
    assert compute_trainer_capacity([one], SchedulerLimits(least, found.workers)).at_most >= TRAINERS
    assert "(2 x trainers + batches ahead) x a batch" in text


def test_the_room_for_processes_is_more_than_the_soak_saw() -> None:
    page = (ROOT / "benchmarks/results/soak.md").read_text()
    for name, allowed in (("daemon", DAEMON_BYTES), ("largest worker", WORKER_BYTES)):
        (seen,) = re.findall(rf"^\| memory of the {name}, MiB \| all \| \d+ \| ([\d.]+)", page, re.MULTILINE)
        assert float(seen) * MIB < allowed
