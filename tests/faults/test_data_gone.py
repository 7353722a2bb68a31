"""The data of a stream disappear and return repeatedly within one epoch of two trainer processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest
from killers import go_on, stop
from logged import advance, finish_all, problems, running
from scene import Scene, dice, scene, times
from support.daemon_process import wait_until

Record = Callable[[str, object], None]
STRIDE: Final = 24  # batches: more than are decoded ahead, so that they are missed
CREDIT: Final = 2


class Mount:
    """The folder of a stream, as a disk that is mounted there; its files, until they are there again."""

    def __init__(self, stage: Scene) -> None:
        self._stage = stage
        self._folder, self._aside = stage.place / "data", stage.place / "aside"
        self._ways = cycle([self.empty, self.remove, self.restart])

    def go(self) -> None:
        next(self._ways)()

    def empty(self) -> None:
        workers = self._stage.daemon.workers()
        for worker in workers:
            stop(worker)  # or it may look at a folder with half of its files, which has lost samples
        self._aside.mkdir()
        for each in self._folder.iterdir():
            each.rename(self._aside / each.name)
        for worker in workers:
            go_on(worker)

    def remove(self) -> None:
        self.empty()
        self._folder.rmdir()

    def restart(self) -> None:
        """The daemon is killed, and the next one starts without the data."""
        self.empty()
        self._stage.daemon.restart_after_kill()

    def come_back(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._aside.rename(self._folder)


@pytest.mark.long
@pytest.mark.timeout(450)
@pytest.mark.fault("49", "the folder emptied, removed, or away when the daemon starts, at random batch counts")
def test_data_that_disappear_often_only_delay_the_trainers(tmp_path: Path, record_property: Record) -> None:
    strikes = times(30, 3)
    with (
        scene(tmp_path, 4 * STRIDE * (strikes + 1)) as stage,
        running(*stage.trainers(2, gated=True, prefetch=CREDIT)) as trainers,
    ):
        mount, throws = Mount(stage), dice()
        for strike in range(strikes):
            steps = STRIDE * 2 * strike + throws.randrange(2, STRIDE)
            advance(trainers, steps)
            before = said(stage, "data.away")
            mount.go()
            for each in trainers:
                each.allow(STRIDE * 2 * (strike + 1))
            wait_until(lambda n=before: said(stage, "data.away") > n, "the data are said to be away")  # type: ignore[misc]  # bound early
            mount.come_back()
        finish_all(trainers)
        assert problems(stage.truth, *trainers) == []
        assert said(stage, "sample.bad") == 0
        assert list(stage.daemon.state.glob("*.bad.jsonl")) == []
        record_property("saw", f"{strikes} times away, no sample condemned")


def said(stage: Scene, event: str) -> int:
    return stage.daemon.log.read_text().count(f" {event}: ")
