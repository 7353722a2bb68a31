"""The wall clock jumps and the event loop blocks: no trainer loses anything."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from killers import wait_for_outstanding
from logged import advance, finish_all, problems, running
from scene import scene, shimmed, times

pytestmark = pytest.mark.timeout(300)
Record = Callable[[str, object], None]
BLOCK_S: Final = str(times(50, 5) / 10)
BLOCKS: Final = times(5, 2)


@pytest.mark.long
@pytest.mark.fault(
    "41",
    "each look at the wall clock, in daemon, workers and trainers, finds it set a day on or back",
    departs="inside the processes, by a shim: the machine's own clock is left alone",
)
@pytest.mark.fault("42", "the daemon's event loop blocked for 5 s under load, 5 times, and no watchdog to end it")
def test_clock_jumps_and_a_blocked_event_loop_lose_no_batch(tmp_path: Path, record_property: Record) -> None:
    environment = shimmed(FAULT_CLOCK="1", FAULT_BLOCK_S=BLOCK_S)
    with (
        scene(tmp_path, 2 * 30 * (BLOCKS + 1), environment=environment) as stage,
        running(*stage.trainers(times(3, 1), gated=True, environment=environment)) as trainers,
    ):
        for turn in range(1, BLOCKS + 1):
            advance(trainers, 10 * turn)
            for each in trainers:
                wait_for_outstanding(each)
            stage.daemon.process.send_signal(signal.SIGUSR1)
        finish_all(trainers)
        assert problems(stage.truth, *trainers) == []
        assert stage.daemon.terminate() == 0
        hours = set(re.findall(r"^(\d\d):\d\d:\d\d ", stage.daemon.log.read_text(), re.MULTILINE))
        assert len(hours) > 1, "the clock did not jump"
        record_property("saw", f"connections lost: {sum(each.steps[-1].connection for each in trainers)}")
