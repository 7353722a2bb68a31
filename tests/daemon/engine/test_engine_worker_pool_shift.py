"""Shifts: who begins a batch finishes it, and who is relieved ends with its last one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from streamd.daemon.engine.batch_job import Job, Production
from streamd.daemon.engine.row_cost import RowCost
from streamd.daemon.engine.worker_pool import Crew, Shifts
from streamd.ipc.worker_messages import CloseStream, DropSlots


class Hands:
    """A crew of one worker that is none."""

    def __init__(self) -> None:
        self.workers = [SimpleNamespace(tasks=list[Job](), fresh=True)]
        self.deaths = 0
        self.told: list[object] = []
        self.running = False
        self.idle = True

    def free(self, _most: int) -> Any:
        return self.workers[0] if self.idle else None

    def fresh(self) -> Any:
        return self.workers[0] if self.workers[0].fresh else None

    def tell(self, *commands: object) -> None:
        self.told += commands

    def drop(self, slots: tuple[int, ...]) -> None:
        self.told.append(DropSlots(slots))

    async def run(self) -> None:
        self.running = True
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.running = False


def production() -> Production:
    made = object.__new__(Production)
    made.row_cost = RowCost()
    return made


def job(of: Production) -> Job:
    return Job(cast("Any", None), of, 0.0)


def give(worker: Any, given: Job) -> None:
    worker.tasks.append(given)
    worker.fresh = False


def play(scene: Callable[[Shifts, list[Hands]], Any]) -> None:
    """A scene of shifts that run, and of the crews that were hired."""
    hired: list[Hands] = []

    def hire() -> Crew:
        hired.append(Hands())
        return cast("Crew", hired[-1])

    async def run() -> None:
        shifts = Shifts(hire)
        running = asyncio.ensure_future(shifts.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert hired[0].running
        await scene(shifts, hired)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert not any(crew.running for crew in hired)

    asyncio.run(run())


async def turn() -> None:
    """What was asked for in this turn of the loop happens."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_jobs_go_to_the_shift_that_began_their_batch() -> None:
    async def scene(shifts: Shifts, hired: list[Hands]) -> None:
        early, late = production(), production()
        shifts.now.productions.add(early)
        shifts.take_over(shifts.relief())
        shifts.now.productions.add(late)
        for each in (early, late):
            shifts.of(each).queue.append(job(each))
        shifts.dispatch(give)
        assert [[given.production for given in crew.workers[0].tasks] for crew in hired] == [[early], [late]]

    play(scene)


def test_who_is_relieved_ends_with_its_last_batch_and_its_deaths_are_counted_on() -> None:
    async def scene(shifts: Shifts, hired: list[Hands]) -> None:
        batches = production(), production()
        shifts.now.productions.update(batches)
        shifts.take_over(shifts.relief())
        hired[0].deaths = 2
        for batch, works_on in zip(batches, (True, False), strict=True):
            shifts.over(batch)
            await turn()
            assert (hired[0].running, hired[1].running) == (works_on, True)
        assert shifts.deaths == 2
        assert list(shifts.workers) == hired[1].workers

    play(scene)


def test_who_has_nothing_to_finish_ends_when_it_is_relieved() -> None:
    async def scene(shifts: Shifts, hired: list[Hands]) -> None:
        shifts.take_over(shifts.relief())
        await turn()
        assert (hired[0].running, hired[1].running) == (False, True)

    play(scene)


def test_a_relief_that_is_sent_away_changes_nothing() -> None:
    async def scene(shifts: Shifts, hired: list[Hands]) -> None:
        relief = shifts.relief()
        await turn()
        assert hired[1].running
        shifts.send_away(relief)
        await turn()
        shifts.tell(CloseStream(3))
        assert [crew.told for crew in hired] == [[CloseStream(3)], []]
        assert (hired[0].running, hired[1].running) == (True, False)
        assert shifts.now.crew is cast("Any", hired[0])

    play(scene)


def test_everybody_hears_what_is_over() -> None:
    async def scene(shifts: Shifts, hired: list[Hands]) -> None:
        shifts.now.productions.add(production())
        relief = shifts.relief()
        shifts.tell(CloseStream(2))
        shifts.take_over(relief)
        shifts.tell(CloseStream(3))
        shifts.drop((1, 2))
        assert [crew.told for crew in hired] == [[CloseStream(2), CloseStream(3), DropSlots((1, 2))]] * 2

    play(scene)


def test_a_batch_that_is_withdrawn_leaves_the_jobs_of_others() -> None:
    async def scene(shifts: Shifts, hired: list[Hands]) -> None:
        stays, goes = production(), production()
        hired[0].idle = False
        hired[0].workers[0].fresh = False
        shift = shifts.now
        shift.queue.extend(map(job, (goes, stays, goes)))
        shift.suspects.append(job(goes))
        shifts.dispatch(give)
        assert shift.withdraw(goes) == 3
        assert ([each.production for each in shift.queue], len(shift.suspects)) == ([stays], 0)

    play(scene)
