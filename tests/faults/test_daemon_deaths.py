"""The daemon dies repeatedly within one epoch of three trainer processes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from killers import go_on, kill_together, left_behind, slots_of, stop, uses_shm
from logged import LoggedTrainer, running
from scene import FULL, Scene, dice, scene
from strikes import agree, images_for, strike_often
from support.daemon_process import wait_until

from streamd.core.slot_layout import compute_layout

pytestmark = pytest.mark.long

Record = Callable[[str, object], None]
BY_HAND: Final = "started again by the test; by systemd in a line of its own"
CREDIT: Final = 2  # so few that the daemon's workers are ahead of what it may send


def written(stage: Scene) -> set[int]:
    """The batches of epoch 0 that lie in the memory of a daemon that stands still, sent or not."""
    spec, found = stage.truth.spec, set[int]()
    by_ids = {stage.truth.planned((0, index)).tobytes(): index for index in range(spec.batches)}
    layout = compute_layout(spec, spec.batch_size)
    for slot in slots_of(stage.daemon.pid):
        held = slot.read_bytes()
        if len(held) < layout.size_bytes:
            continue  # The daemon was stopped after it created this slot and before it gave it a size.
        ids = layout.sample_ids.build_array_in_memory(memoryview(held))
        found.add(by_ids.get(np.asarray(ids, dtype=np.int64).tobytes(), -1))
    return found - {-1}


def describe_sessions(stage: Scene) -> str:
    """What the log says of sessions, and of nothing that each batch brings."""
    lines = stage.daemon.log.read_text().splitlines()
    return "\n".join(line for line in lines if "session" in line or "daemon." in line)


class Striker:
    """Ends a daemon, in each of these ways in turn. `unsent`: batches that lay written and unsent when killed so."""

    def __init__(self, stage: Scene, trainers: tuple[LoggedTrainer, ...], ways: tuple[str, ...]) -> None:
        self._stage = stage
        self._trainers = trainers
        self._ways = cycle(ways)
        self.unsent: list[int] = []
        self.statuses: list[int] = []

    def strike(self) -> None:
        getattr(self, next(self._ways))()

    def kill(self) -> None:
        self._stage.daemon.process.kill()
        self._stage.daemon.process.wait()

    def kill_with_workers(self) -> None:
        kill_together([self._stage.daemon.pid, *self._stage.daemon.workers()])
        self._stage.daemon.process.wait()

    def kill_between_write_and_send(self) -> None:
        wait_until(self._caught_with_unsent, "batches lie written and unsent in a daemon that stands still")
        self.kill()

    def _caught_with_unsent(self) -> bool:
        stop(self._stage.daemon.pid)
        sent = max(each.look() for each in self._trainers) + CREDIT
        unsent = sum(index >= sent for index in written(self._stage))
        if unsent:
            self.unsent.append(unsent)
        else:
            go_on(self._stage.daemon.pid)
        return unsent > 0

    def terminate(self) -> None:
        self.statuses.append(self._stage.daemon.terminate())


ROWS: Final = {
    "kill": pytest.mark.fault("4", "daemon killed with -9 at random batch counts of an epoch, three trainers"),
    "kill_with_workers": pytest.mark.fault("5", "daemon and all its workers killed together", departs=BY_HAND),
    "kill_between_write_and_send": pytest.mark.fault(
        "6",
        "daemon killed with -9 while batches lie written and unsent",
        departs="no failpoint: the kill comes when the memory holds batches beyond what any trainer may have been sent",
    ),
    "terminate": pytest.mark.fault("43", "SIGTERM under load, and started again", departs=BY_HAND),
}
COURSES: Final = [
    pytest.param((way,), strikes, marks=ROWS[way])
    for way, strikes in zip(ROWS, (50, 20, 20, 20), strict=True)
] if FULL else [pytest.param(tuple(ROWS), len(ROWS), marks=list(ROWS.values()))]  # fmt: skip


@pytest.mark.timeout(450)
@pytest.mark.parametrize(("ways", "strikes"), COURSES)
def test_a_daemon_that_dies_often_only_delays_three_trainers(
    tmp_path: Path, record_property: Record, ways: tuple[str, ...], strikes: int
) -> None:
    with (
        scene(tmp_path, images_for(strikes)) as stage,
        running(*stage.trainers(3, gated=True, prefetch=CREDIT)) as trainers,
    ):
        striker = Striker(stage, trainers, ways)
        course = strike_often(stage.daemon, trainers, strikes, dice(), striker.strike)
        agree(stage.truth, trainers, course)
        # Nobody was put off. The first, which `agree` has looked at, met every strike.
        assert max(each.steps[-1].connection for each in trainers) == strikes, describe_sessions(stage)
        record_property("saw", course.told(trainers[0]))
        if striker.unsent:
            record_property("saw", f"{min(striker.unsent)} to {max(striker.unsent)} batches written and unsent")
        assert all(striker.unsent)
        assert not any(striker.statuses)
        assert "daemon.drain_timeout" not in stage.daemon.log.read_text()
        assert not any(uses_shm(pid) for pid in [stage.daemon.pid, *stage.daemon.workers()])
        assert left_behind(stage.daemon) == ["s", "s.d"]
        assert stage.daemon.terminate() == 0
        assert left_behind(stage.daemon) == []
