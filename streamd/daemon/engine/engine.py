"""The local engine: decode processes on this host, each on a socket pair, watched and replaced when they die."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from streamd.core import log
from streamd.core.bad_samples import Verdict
from streamd.core.counters import Stats
from streamd.core.spec import BatchKey, PixelId
from streamd.daemon.engine.absences import Absences
from streamd.daemon.engine.batch_job import Job, Production, Reporter
from streamd.daemon.engine.crashes import Charge, Death, is_waiting
from streamd.daemon.engine.open_streams import Register
from streamd.daemon.engine.record_results import count_task, note_row_cost, record_verdicts
from streamd.daemon.engine.worker_handle import Listener, WorkerProcess
from streamd.daemon.engine.worker_pool import Crew, Employer, Shifts
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError
from streamd.ipc.progress_page import Whereabouts
from streamd.ipc.slots import SlotStore
from streamd.ipc.worker_messages import Done, Ready, Remark, Report, Task, Unopened
from streamd.limits import NEW_WORKERS_S, ROW_DEADLINE_S

_READ_RETRIES: Final = 5  # of a read that may pass, before the stream is given up
_READ_RETRY_S: Final = 0.1  # doubled each time


class LocalEngine:
    """Produces batches in `workers` processes. All methods belong to the event loop's thread."""

    def __init__(
        self,
        streams: Sequence[ServedStream],
        slots: SlotStore,
        stats: Stats,
        workers: int,
        row_deadline_s: float = ROW_DEADLINE_S,
    ) -> None:
        self._register = Register(streams)
        self._slots = slots
        self._stats = stats
        self._workers = workers
        self._row_deadline_s = row_deadline_s
        self._shifts = Shifts(self._hire)
        self._absences = Absences(left=self._abandon, came=self._back)
        self._shifts.now.imported.update(each.transform for each in streams if each.transform is not None)
        self._jobs: dict[int, Job] = {}
        self._whole: list[Production] = []  # that the reporter has yet to hear of
        self._waits_in_queue, self._idles = stats.stage("engine", "queue"), stats.stage("engine", "idle")
        self._task_numbers = itertools.count(1)
        self._reporter: Reporter | None = None

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._shifts.workers]

    @property
    def restarts(self) -> int:
        return self._shifts.deaths

    @property
    def away(self) -> Collection[str]:
        """The streams whose data are away."""
        return self._absences.sentences.keys()

    def report_to(self, reporter: Reporter) -> None:
        self._reporter = reporter
        if reporter.away is not None:
            for name, why in self._absences.sentences.items():
                reporter.away(name, why, ())

    # --- the streams

    async def pixel_ids(self) -> dict[str, PixelId]:
        """What the workers' pipeline makes of each stream, once the first worker is up."""
        return await self._register.pixel_ids(self._register.current())

    async def find_absences(self) -> None:
        """Before the workers start: streams whose data are away wait for them, and hold up no other."""
        await self._absences.find_among(self._register.served())

    async def open(self, stream: ServedStream) -> PixelId:
        """Serves a new stream, or a new version of one, in all workers; what their pipeline makes of it.

        Its data are there. Batches that are begun after the return are the new version's; those under way keep their
        own. Who awaits this itself, not in a task, goes on before any other callback runs.
        """
        number = self._register.add(stream)
        try:
            self._shifts.now.crew.tell(self._register.opening(number))
            pixel_id = await self._register.pixel_id(number)
        except BaseException:
            self._shifts.tell(*self._register.retire(number))
            raise
        self._use(number)
        return pixel_id

    def needs_new_workers(self, streams: Iterable[ServedStream]) -> bool:
        """Whether these streams have transforms that the workers have not imported, or not in this version.

        A program that was never tried may hang or crash who imports it, which nobody's batches shall wait for.
        """
        return not {stream.transform for stream in streams if stream.transform is not None} <= self._shifts.now.imported

    async def open_in_new_workers(self, streams: Sequence[ServedStream]) -> dict[str, PixelId]:
        """As `open`, for several streams, in new workers that take the places of all others when every one is open.

        Batches under way are finished by who began them. Raises ConfigError when a stream cannot be opened, or is not
        in time; the workers are as they were then.
        """
        numbers = {stream.spec.name: self._register.add(stream) for stream in streams}
        relief = self._shifts.relief()
        try:
            async with asyncio.timeout(NEW_WORKERS_S):
                pixel_ids = await self._register.pixel_ids(numbers)
        except BaseException as error:
            self._shifts.send_away(relief)
            for number in numbers.values():
                self._shifts.tell(*self._register.retire(number))
            if isinstance(error, TimeoutError):
                raise ConfigError(
                    f"no new worker has opened {', '.join(numbers)} within {NEW_WORKERS_S:g} s: does a transform wait "
                    "for something, or end who imports it?"
                ) from error
            raise
        self._shifts.take_over(relief)
        for number in numbers.values():
            self._use(number)
        relief.imported = self._register.transforms()
        return pixel_ids

    def close(self, name: str) -> None:
        """Serves a stream no longer; workers forget it when its last batch under way is done. KeyError if unknown."""
        self._absences.end(self._register.current()[name])
        self._shifts.tell(*self._register.close(name))

    def _use(self, number: int) -> None:
        """A stream's name stands for this number from now on, whose data are there."""
        name = self._register.stream(number).spec.name
        earlier = self._register.current().get(name)
        if earlier is not None and earlier in self._absences:
            self._absences.end(earlier)
            asyncio.get_running_loop().call_soon(self._back, name)  # after its place is taken
        self._shifts.tell(*self._register.use(number))

    # --- the way of a batch

    def produce(self, key: BatchKey, slot: int, slot_bytes: int) -> None:
        """Begins a batch; the reporter hears of its end."""
        number, stream = self._register.begin(key.stream)
        production = Production(key, stream, number, slot, slot_bytes, self._register.row_cost(number))
        self._shifts.now.productions.add(production)
        reason = self._register.given_up(number) or production.stream.too_many_bad()
        if reason is not None:  # by the verdicts of an earlier run, perhaps
            asyncio.get_running_loop().call_soon(self._fail, production, reason)
            return
        self._enqueue(production, production.first_tasks(self._task_numbers))
        self._dispatch()

    def drop(self, slots: tuple[int, ...]) -> None:
        """Has every worker unmap slots that are over."""
        self._shifts.drop(slots)

    def _enqueue(self, production: Production, tasks: Sequence[Task]) -> None:
        now_s = time.monotonic()
        production.pending += len(tasks)
        self._shifts.of(production).queue.extend(Job(task, production, now_s) for task in tasks)

    def _dispatch(self) -> None:
        self._shifts.dispatch(self._give)

    def _give(self, worker: WorkerProcess, job: Job) -> None:
        self._waits_in_queue.add(time.monotonic() - job.queued_s)
        self._jobs[job.task.number] = job
        worker.give(job.task, self._slots, alone=job.suspect)

    def _heard(self, worker: WorkerProcess, reports: Sequence[Report]) -> None:
        for report in reports:
            match report:
                case Done():
                    worker.finish(report.number)
                    self._done(self._jobs.pop(report.number), report)
                case Ready(stream, pixel_id):
                    self._register.agree(stream, PixelId(pixel_id))
                case Unopened(stream, reason):
                    self._register.refuse(stream, reason)
                case Remark(stream, text):
                    self._register.remark(stream, text)
        self._report_whole(worker)
        self._dispatch()

    def _done(self, job: Job, report: Done) -> None:
        production = job.production
        count_task(job, report, self._stats)
        note_row_cost(job, report)
        self._idles.add(report.idle_ns / 1e9)
        production.busy_s += (report.read_ns + report.decode_ns) / 1e9
        production.waited_s += report.waited_ns / 1e9
        self._end_tasks(production, 1)
        if production.given_up:
            return
        if report.unfit:
            self._fail(production, report.unfit)
            return
        if away := next((each.reason for each in report.bad if each.away), ""):
            self._leave(production.number, away)
            return
        if report.bad and not self._judge(job, report):
            return
        if production.pending == 0:
            self._complete(production)

    def _judge(self, job: Job, report: Done) -> bool:
        """Records lasting verdicts, tries passing errors again; False when the stream is given up."""
        production, stream = job.production, job.production.stream
        reason = record_verdicts(
            stream, [Verdict(each.sample_id, each.reason) for each in report.bad if each.lasting], self._stats
        )
        passing = [sample for sample in report.bad if not sample.lasting]
        if reason is None and passing and job.failures >= _READ_RETRIES:
            reason = stream.unread(passing[0].sample_id, passing[0].reason)
        if reason is not None:
            self._fail(production, reason)
            return False
        if passing:
            self._try_again(job, production.again(job.task, report.bad, self._task_numbers))
        return True

    def _try_again(self, job: Job, task: Task) -> None:
        later = Job(task, job.production, time.monotonic(), failures=job.failures + 1)
        job.production.pending += 1
        asyncio.get_running_loop().call_later(_READ_RETRY_S * 2**job.failures, self._requeue, later)

    def _requeue(self, job: Job) -> None:
        if job.production.given_up:
            self._end_tasks(job.production, 1)
            return
        self._shifts.of(job.production).queue.appendleft(job)
        self._dispatch()

    def _complete(self, production: Production) -> None:
        tasks = production.renew(self._task_numbers)
        if tasks:
            self._enqueue(production, tasks)
            return
        self._stats.count(f"stream.{production.key.stream}", "produced")
        self._let_go(production)
        self._whole.append(production)

    def _report_whole(self, speaker: WorkerProcess | None = None) -> None:
        """Tells of all batches that one word of a worker has made whole at a time: what follows is decided once."""
        if self._whole:
            assert self._reporter is not None  # noqa: S101 - the daemon names the reporter before it lets anyone in
            whole, self._whole = self._whole, []
            at_work = self._shifts.now.crew.at_work(speaker)
            for production in whole:
                production.at_work = at_work
            self._reporter.produced(whole)

    def _fail(self, production: Production, reason: str) -> None:
        """Gives a batch up; its tasks that still run end unheard."""
        if production.given_up:
            return
        self._give_up(production)
        assert self._reporter is not None  # noqa: S101 - as above
        self._reporter.failed(production, reason)

    def _give_up(self, production: Production) -> None:
        production.given_up = True
        self._end_tasks(production, self._shifts.of(production).withdraw(production))

    def _leave(self, number: int, why: str) -> None:
        """The data of a stream are away: its batches come to nothing, and are begun again when the data are there."""
        productions = [each for each in self._shifts.under_way(number) if not each.given_up]
        if not productions:
            return
        stream = productions[0].stream
        name, current = stream.spec.name, self._register.current()
        if self._reporter is None or self._reporter.away is None or name not in current:
            for production in productions:
                self._fail(production, why)
            return
        for production in productions:
            self._give_up(production)
        if number == current[name]:
            why = self._absences.begin(number, stream, why)
        self._reporter.away(name, why, productions)
        if current[name] not in self._absences:  # of another version: this one may have its data elsewhere
            self._reporter.back(name)

    def _abandon(self, number: int, why: str) -> None:
        """As `_leave`, of data that workers wait for in vain: these are replaced now, for other streams need them."""
        self._leave(number, why)
        for worker in self._shifts.workers:
            job = self._jobs.get(worker.at.task)
            if job is not None and job.production.number == number and is_waiting(worker.at):
                worker.stop_waiting()

    def _back(self, name: str) -> None:
        if self._reporter is not None and name in self._register.current():
            self._reporter.back(name)

    def _end_tasks(self, production: Production, count: int) -> None:
        """So many tasks of a batch are over. The last one of a batch that was given up lets go of its stream."""
        production.pending -= count
        if production.given_up and production.pending == 0:
            self._let_go(production)

    def _let_go(self, production: Production) -> None:
        """A batch has no task left in any worker."""
        self._shifts.tell(*self._register.end(production.number))
        self._shifts.over(production)

    # --- the life of the workers

    async def run(self) -> None:
        """Keeps `workers` processes alive until cancelled; none is left when it returns."""
        async with asyncio.TaskGroup() as group:
            seeking = group.create_task(self._absences.run(), name="absences")
            await self._shifts.run()
            seeking.cancel()

    def _hire(self) -> Crew:
        employer = Employer(self._came, Listener(self._heard, self._waits), self._inherit)
        return Crew(self._workers, self._row_deadline_s, self._stats, employer)

    def _came(self, worker: WorkerProcess) -> None:
        for command in self._register.openings():
            worker.send(replace(command, away=command.number in self._absences))
        self._dispatch()

    def _waits(self, worker: WorkerProcess, at: Whereabouts) -> None:
        """A worker waits for files: the disk's affair, or the network's. It is replaced when it goes on like this."""
        job = self._jobs.get(at.task)
        log.warning(
            "worker.waiting",
            f"a worker has waited for more than {self._row_deadline_s:g} s: is the disk slow, or a mount away?",
            pid=worker.pid,
            files="none yet" if job is None else job.files(),
        )
        if job is None:
            return
        if job.production.given_up:
            worker.stop_waiting()
        else:
            self._absences.ask(job.production.number, job.production.stream)

    def _inherit(self, worker: WorkerProcess, death: Death) -> None:
        """Queues a dead worker's tasks again, ahead of all others. The one that it was at counts the death."""
        if self._reporter is not None:
            self._reporter.died()
        if death.charge is not None:
            self._accuse(death.charge)
        jobs = [self._jobs.pop(number) for number in worker.tasks]
        at = next((job for job in jobs if job.task.number == death.at.task), None)
        first = at or next(iter(jobs), None)
        for job in reversed(jobs):
            if job.production.given_up:  # its slot is gone
                self._end_tasks(job.production, 1)
            elif job is at and death.blame is not None and death.at.place < job.task.ids.size:
                self._strike(job, int(job.task.ids[death.at.place]), death.blame)
            elif job is first:
                self._survive(job, death)
            else:
                self._shifts.of(job.production).queue.appendleft(job)
        self._report_whole()
        self._dispatch()

    def _accuse(self, charge: Charge) -> None:
        """A worker died of a transform that it tried: a stream that goes on like this is given up."""
        reason = self._register.charge(charge)
        for production in self._shifts.under_way(charge.stream) if reason else ():
            self._fail(production, reason)

    def _strike(self, job: Job, sample_id: int, blame: str) -> None:
        """A worker died of what a sample may do to it: the sample is tried alone in a fresh worker, then condemned."""
        production = job.production
        if job.suspect:
            self._condemn(production, Verdict(sample_id, blame))
            return
        file = production.stream.file(sample_id)
        log.warning("sample.suspect", blame, stream=production.key.stream, sample=sample_id, file=file)
        alone, others = production.parted(job.task, sample_id, self._task_numbers)
        production.pending += len(others)
        shift = self._shifts.of(production)
        shift.suspects.append(replace(job, task=alone, suspect=True))
        shift.queue.extendleft(replace(job, task=task) for task in others)

    def _condemn(self, production: Production, verdict: Verdict) -> None:
        """The last task of a suspect is over: its row is filled again with what the verdict makes of it."""
        self._end_tasks(production, 1)
        reason = record_verdicts(production.stream, [verdict], self._stats)
        if reason is not None:
            self._fail(production, reason)
        elif production.pending == 0:
            self._complete(production)

    def _survive(self, job: Job, death: Death) -> None:
        """A task outlives a worker that died of something else, up to a limit, each time after a longer pause."""
        if job.count_death(time.monotonic()):
            words = f"{job.deaths} workers died, the last {death.words}, at files beginning with {job.files()}"
            self._fail(job.production, words)
            self._end_tasks(job.production, 1)
        elif job.suspect:  # it waits for the worker that starts in the dead one's place
            self._shifts.of(job.production).suspects.appendleft(job)
        else:
            asyncio.get_running_loop().call_later(job.pause_s, self._requeue, job)
