"""The engine: batches, cut into tasks for workers, and what their reports and deaths say about samples."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from streamd.core import log
from streamd.core.counters import ProcessStats
from streamd.core.sampler import BadSample
from streamd.core.spec import BatchKey, PixelId
from streamd.core.status import ClusterStatus
from streamd.core.text import format_count
from streamd.daemon.data_watch import MissingData
from streamd.daemon.engine.batch_job import BatchJob, RowCost, Task
from streamd.daemon.engine.worker_pool import HiredWorkers, PoolWorker, WorkerPool
from streamd.daemon.streams.served_stream import ServedStream, explain_other_pixels
from streamd.dataset.cache import WriterLocks, lock_file_name
from streamd.errors import ConfigError, OtherPixelsError, format_open_failure
from streamd.ipc.slots import RowProgress, SlotStore
from streamd.ipc.worker_messages import (
    CloseStream,
    ClusterChanged,
    OpenStream,
    StreamOpenFailed,
    StreamReady,
    StreamRemark,
    TaskDone,
    TransformFault,
    TransformPlace,
    WorkerDied,
    WorkerReport,
)
from streamd.limits import NEW_WORKERS_S
from streamd.supervisor.worker_process import WorkerProcess

_READ_RETRIES: Final = 5  # of a read whose error may pass, before the batch fails
_READ_RETRY_S: Final = 0.1  # doubled each time


class EngineListener(Protocol):
    """Receives the engine's events about batches and data. All calls come on the event loop's thread."""

    @property
    def waits_for_data(self) -> bool:
        """Whether the listener requests batches again when missing data return; if not, the batches fail."""

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        """All rows of these batches are in their slots, and no worker writes to the slots any more."""

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        """A batch cannot be filled, now or later."""

    def on_worker_lost(self) -> None:
        """A worker has died. Another starts in its place."""

    def on_cluster_changed(self, cluster: ClusterStatus) -> None:
        """The cluster that decodes has changed. Called only where there is one."""

    def on_data_missing(self, stream: str, reason: str, jobs: Sequence[BatchJob]) -> None:
        """The data of a stream are missing, and these batches end unfilled. Called only if `waits_for_data`."""

    def on_data_returned(self, stream: str) -> None:
        """The data of a stream are there again."""


class BatchEngine:
    """Produces batches with the workers that it is given. All methods belong to the event loop's thread."""

    def __init__(
        self, streams: Sequence[ServedStream], slots: SlotStore, stats: ProcessStats, hired: HiredWorkers
    ) -> None:
        self._streams = OpenStreams(streams, lock_caches=hired.lock_caches)
        self._stats = stats
        self._pool = WorkerPool(hired, slots, stats, self)
        self._pool.imported_transforms = self._streams.current_transforms()
        self._missing_data = MissingData(
            on_missing=self._pause_stream_and_kill_waiting_workers, on_returned=self._report_data_returned
        )
        self._filled: list[BatchJob] = []  # not yet reported to the listener
        self._idle_times = stats.find_stage_times("engine", "idle")
        self._task_numbers = itertools.count(1)
        self._listener: EngineListener | None = None
        self._cluster: ClusterStatus | None = None

    @property
    def worker_death_count(self) -> int:
        return self._pool.death_count

    @property
    def streams_without_data(self) -> Collection[str]:
        """The names of the streams whose data are missing."""
        return self._missing_data.messages_by_stream.keys()

    def set_listener(self, listener: EngineListener) -> None:
        """Sets the listener, and calls it at once for the cluster and each stream whose data are missing."""
        self._listener = listener
        if self._cluster is not None:
            listener.on_cluster_changed(self._cluster)
        if listener.waits_for_data:
            for name, why in self._missing_data.messages_by_stream.items():
                listener.on_data_missing(name, why, ())

    # --- the streams

    async def wait_for_pixel_ids(self) -> dict[str, PixelId]:
        """Waits until a worker has opened each stream; returns the identity of its pixels, by stream name."""
        return await self._streams.wait_for_pixel_ids(dict(self._streams.current_numbers))

    async def find_missing_data(self) -> None:
        """Finds the streams whose data are missing, before the workers start, so that they hold up no other stream."""
        await self._missing_data.add_streams_without_data(self._streams.served_streams())

    async def open_stream(self, stream: ServedStream) -> PixelId:
        """Opens a new stream, or a new version of one, in all workers; returns the identity of its pixels.

        Its data must be present. Batches that begin after the return are of the new version; those under way keep
        theirs. A caller that awaits this directly, not through a task, resumes before any other callback runs.
        """
        number = self._streams.add_stream(stream)
        try:
            self._pool.send_to_newest_workers(self._streams.make_open_command(number))
            pixel_id = await self._streams.wait_for_pixel_id(number)
        except BaseException:
            # Also on cancellation: workers that have opened this version close it again.
            self._pool.send_to_all_workers(*self._streams.retire_stream_version(number))
            raise
        self._make_stream_version_current(number)
        return pixel_id

    def needs_new_workers(self, streams: Iterable[ServedStream]) -> bool:
        """Whether these streams have transforms that the workers have not imported, or not in this version.

        A program that was never tried may hang or crash the worker that imports it; no batch should wait for that.
        """
        wanted = {stream.transform for stream in streams if stream.transform is not None}
        return not wanted <= self._pool.imported_transforms

    async def open_streams_in_new_workers(self, streams: Sequence[ServedStream]) -> dict[str, PixelId]:
        """Opens several streams in new workers, which replace all others when every stream is open.

        Batches under way are finished by the workers that began them. Raises ConfigError when a stream cannot be
        opened, or not within NEW_WORKERS_S; the present workers then stay.
        """
        # A worker opens all known streams when it starts, so the streams are added before the workers.
        numbers = {stream.spec.name: self._streams.add_stream(stream) for stream in streams}
        self._pool.start_next_generation()
        try:
            async with asyncio.timeout(NEW_WORKERS_S):
                pixel_ids = await self._streams.wait_for_pixel_ids(numbers)
        except BaseException as error:
            self._pool.discard_next_generation()
            for number in numbers.values():
                self._pool.send_to_all_workers(*self._streams.retire_stream_version(number))
            if isinstance(error, TimeoutError):
                raise ConfigError(
                    f"no new worker has opened {', '.join(numbers)} within {NEW_WORKERS_S:g} s: does a transform wait "
                    "for something, or end the process that imports it?"
                ) from error
            raise
        # Nothing is awaited from here to the return, so no batch begins between the switch of workers and that of
        # the versions: each begins in a worker that has its version open.
        self._pool.switch_to_next_generation()
        for number in numbers.values():
            self._make_stream_version_current(number)
        self._pool.imported_transforms = self._streams.current_transforms()
        return pixel_ids

    def close_stream(self, name: str) -> None:
        """Begins no more batches of a stream; workers close it after its last batch. Raises KeyError if unknown."""
        self._missing_data.remove_stream(self._streams.current_numbers[name])
        self._pool.send_to_all_workers(*self._streams.close_stream(name))

    def _make_stream_version_current(self, number: int) -> None:
        """Makes `number` the current version of its stream. The data of this version must be present."""
        name = self._streams.versions[number].stream.spec.name
        earlier = self._streams.current_numbers.get(name)
        if earlier is not None and earlier in self._missing_data:
            self._missing_data.remove_stream(earlier)
            # The listener still knows the old version, which waits for its data. The caller replaces it before the
            # next turn of the event loop, so the stream resumes with the new version.
            asyncio.get_running_loop().call_soon(self._report_data_returned, name)
        self._pool.send_to_all_workers(*self._streams.make_version_current(number))

    # --- the path of a batch

    def produce_batch(self, key: BatchKey, slot: int, slot_bytes: int) -> None:
        """Begins a batch. The listener receives its outcome, always after this returns."""
        version = self._streams.add_batch_under_way(key.stream)
        job = BatchJob(key, version.stream, version.number, slot, slot_bytes, version.row_cost)
        self._pool.add_job(job)
        reason = version.failure_reason or version.stream.explain_too_many_bad_samples()
        if reason is not None:
            # The caller is in the middle of the scheduler's actions and cannot take an event now.
            asyncio.get_running_loop().call_soon(self._fail_batch, job, reason)
            return
        tasks = job.make_first_tasks(self._task_numbers)
        job.pending_tasks += len(tasks)
        self._pool.queue_tasks(tasks)
        self._pool.assign_queued_tasks()

    def unmap_slots_in_workers(self, slots: tuple[int, ...]) -> None:
        """Has every worker unmap these slots."""
        self._pool.unmap_slots_in_workers(slots)

    def on_worker_reports(self, worker: PoolWorker, reports: Sequence[WorkerReport]) -> None:
        """Acts on the reports of one datagram, then reports the batches they have completed and sends new tasks."""
        for report in reports:
            match report:
                case TaskDone():
                    self._finish_task(worker.remove_finished_task(report.number), report)
                case StreamReady(stream, pixel_id):
                    self._streams.on_stream_opened(stream, PixelId(pixel_id))
                case StreamOpenFailed(stream, reason):
                    self._streams.on_stream_open_failed(stream, reason)
                case StreamRemark(stream, text):
                    self._streams.log_worker_remark(stream, text)
                case WorkerDied():
                    if report.blamed_task or report.transform_fault is not None:
                        self._pool.count_remote_death()
                        if self._listener is not None:
                            self._listener.on_worker_lost()
                    self._take_back_tasks(worker, report)
                case ClusterChanged(cluster):
                    self._cluster = cluster
                    if self._listener is not None:
                        self._listener.on_cluster_changed(cluster)
        self._report_filled_batches(worker)
        self._pool.assign_queued_tasks()

    def _finish_task(self, task: Task, report: TaskDone) -> None:
        job = task.job
        task.record_report(report, self._stats)
        self._idle_times.add_runs(report.idle_ns / 1e9)
        job.busy_s += (report.read_ns + report.decode_ns) / 1e9
        job.waited_s += report.waited_ns / 1e9
        self._subtract_pending_tasks(job, 1)
        if job.is_given_up:
            return
        if report.unfit:
            self._fail_batch(job, report.unfit)
            return
        # Missing data say nothing about single samples, so this comes before any verdict is recorded.
        if missing := next((each.reason for each in report.bad if each.away), ""):
            self._pause_stream_without_data(job.stream_number, missing)
            return
        # Samples that are bad for good are recorded, and the others are read again later.
        if report.bad:
            bad = job.stream.judge_unfilled_rows(report.bad)
            lasting = [sample for sample in bad if sample.lasting]
            reason = record_bad_samples(job.stream, lasting, self._stats)
            passing = [sample for sample in bad if not sample.lasting]
            if reason is None and passing and task.failures >= _READ_RETRIES:
                reason = job.stream.format_unreadable_reason(passing[0].sample_id, passing[0].reason)
            if reason is not None:
                self._fail_batch(job, reason)
                return
            if passing:
                # Counted before the pause: otherwise another task's report could complete the batch without these rows.
                job.pending_tasks += 1
                again = job.make_retry_task(task, bad, self._task_numbers)
                asyncio.get_running_loop().call_later(
                    _READ_RETRY_S * 2**task.failures, self._requeue_task_unless_given_up, again
                )
        if job.pending_tasks == 0:
            self._finish_job(job)

    def _requeue_task_unless_given_up(self, task: Task) -> None:
        # The batch may have been given up during the pause.
        if task.job.is_given_up:
            self._subtract_pending_tasks(task.job, 1)
            return
        self._pool.requeue_task(task)
        self._pool.assign_queued_tasks()

    def _finish_job(self, job: BatchJob) -> None:
        """Completes a batch whose rows are all filled; first refills rows whose samples have turned bad meanwhile."""
        # Another batch may have found a sample of this one bad after this one was resolved. A batch must show all
        # verdicts of its stream, so that it is the same when it is made again.
        tasks = job.make_refill_tasks(self._task_numbers)
        if tasks:
            job.pending_tasks += len(tasks)
            self._pool.queue_tasks(tasks)
            return
        self._stats.add_count(f"stream.{job.key.stream}", "produced")
        self._remove_ended_job(job)
        self._filled.append(job)

    def _report_filled_batches(self, reporting_worker: PoolWorker | None = None) -> None:
        """Reports all batches that one datagram has completed in one call, so that the scheduler decides once."""
        if self._filled:
            assert self._listener is not None  # noqa: S101 - the daemon sets it before it accepts trainers
            filled, self._filled = self._filled, []
            at_work = self._pool.busy_fraction(reporting_worker)
            for job in filled:
                job.busy_fraction = at_work
            self._listener.on_batches_filled(filled)

    # --- batches that end unfilled

    def _fail_batch(self, job: BatchJob, reason: str) -> None:
        """Fails a batch. Results of its tasks that still run are ignored."""
        if job.is_given_up:
            return
        self._mark_job_given_up(job)
        assert self._listener is not None  # noqa: S101 - as above
        self._listener.on_batch_failed(job, reason)

    def _mark_job_given_up(self, job: BatchJob) -> None:
        # Tasks that a worker has, or that wait to be tried again, still count as pending: the batch is removed with the
        # last of them. A worker may still write to the slot, so the scheduler never uses the slot again.
        job.is_given_up = True
        self._subtract_pending_tasks(job, self._pool.remove_queued_tasks(job))

    def _pause_stream_without_data(self, number: int, reason: str) -> None:
        """Gives up the batches of a stream version whose data are missing. The listener requests them again later."""
        jobs = [job for job in self._pool.find_stream_jobs(number) if not job.is_given_up]
        if not jobs:
            return
        stream = jobs[0].stream
        name, current = stream.spec.name, self._streams.current_numbers
        if self._listener is None or not self._listener.waits_for_data or name not in current:
            for job in jobs:
                self._fail_batch(job, reason)
            return
        # All batches are given up before the listener is called, since it may begin new ones at once.
        for job in jobs:
            self._mark_job_given_up(job)
        if number == current[name]:
            reason = self._missing_data.add_stream(number, stream, reason)
        self._listener.on_data_missing(name, reason, jobs)
        # If only an earlier version has lost its data, the current version makes the batches again at once.
        if current[name] not in self._missing_data:
            self._listener.on_data_returned(name)

    def _pause_stream_and_kill_waiting_workers(self, number: int, reason: str) -> None:
        """Pauses a stream, and replaces the workers that wait for its files: other streams need them."""
        self._pause_stream_without_data(number, reason)
        self._pool.kill_workers_waiting_for_files(number)

    def _report_data_returned(self, name: str) -> None:
        if self._listener is not None and name in self._streams.current_numbers:
            self._listener.on_data_returned(name)

    def _subtract_pending_tasks(self, job: BatchJob, count: int) -> None:
        """Subtracts tasks of a batch that are over. The last one removes a batch that was given up."""
        job.pending_tasks -= count
        if job.is_given_up and job.pending_tasks == 0:
            self._remove_ended_job(job)

    def _remove_ended_job(self, job: BatchJob) -> None:
        """Removes a batch that has no task left. The workers close its stream version if that is no longer needed."""
        self._pool.send_to_all_workers(*self._streams.remove_batch_under_way(job.stream_number))
        self._pool.remove_job(job)

    # --- workers

    async def run(self) -> None:
        """Keeps all workers alive until cancelled; none is left when it returns."""
        async with asyncio.TaskGroup() as group:
            seeking = group.create_task(self._missing_data.watch_for_returned_data(), name="absences")
            await self._pool.run()
            seeking.cancel()

    def on_worker_started(self, worker: PoolWorker) -> None:
        """Opens all streams in a new worker, and sends it queued tasks."""
        for command in self._streams.make_open_commands():
            # A worker leaves missing data alone until a task needs them; opening them could block it.
            worker.send_command(replace(command, away=command.number in self._missing_data))
        self._pool.assign_queued_tasks()

    def on_worker_waiting(self, worker: WorkerProcess[Task], progress: RowProgress) -> None:
        """Logs that a worker waits for files, and starts a check whether its stream's data are there."""
        task = worker.tasks.get(progress.task)
        log.warning(
            "worker.waiting",
            f"a worker has waited for more than {worker.row_deadline_s:g} s: is the disk slow, or is a mount missing?",
            pid=worker.pid,
            files="none yet" if task is None else task.first_file_names,
        )
        if task is None:
            return
        # No batch needs these files any more, so the worker is replaced without a check.
        if task.job.is_given_up:
            worker.kill_waiting_process()
        else:
            self._missing_data.start_data_check(task.job.stream_number, task.job.stream)

    def on_worker_died(self, worker: PoolWorker, death: WorkerDied) -> None:
        """Queues a dead worker's tasks again, and blames the row or transform it was at, if its end shows a fault."""
        if self._listener is not None:
            self._listener.on_worker_lost()
        self._take_back_tasks(worker, death)
        self._report_filled_batches()
        self._pool.assign_queued_tasks()

    def _take_back_tasks(self, worker: PoolWorker, death: WorkerDied) -> None:
        # The transform comes first: tasks of batches that fail because of it are then dropped, not queued again.
        if death.transform_fault is not None:
            reason = self._streams.count_transform_fault(death.transform_fault)
            for job in self._pool.find_stream_jobs(death.transform_fault.stream_number) if reason else ():
                self._fail_batch(job, reason)
        tasks = worker.take_back_tasks(death.tasks)
        # Each task goes to the head of the queue, so they go in reverse order.
        for task in reversed(tasks):
            is_blamed = task.number == death.blamed_task
            if task.job.is_given_up:  # its slot was dropped
                self._subtract_pending_tasks(task.job, 1)
            elif is_blamed and death.sample_fault is not None and death.place < task.ids.size:
                self._on_row_crash(task, int(task.ids[death.place]), death.sample_fault)
            elif is_blamed:
                # No sample explains the death: the task is tried again after a growing pause, up to a limit.
                now_s = time.monotonic()
                again = task.with_one_more_death(now_s)
                if again.has_killed_too_many_workers(now_s):
                    words = (
                        f"{format_count(again.deaths, 'worker')} died, the last {death.description}, on a group of "
                        f"files that starts with {again.first_file_names}"
                    )
                    self._fail_batch(task.job, words)
                    self._subtract_pending_tasks(task.job, 1)
                elif task.is_suspect:  # it needs a fresh worker, which starts after a pause anyway
                    self._pool.requeue_task(again)
                else:
                    loop = asyncio.get_running_loop()
                    loop.call_later(again.retry_delay_s, self._requeue_task_unless_given_up, again)
            else:
                self._pool.requeue_task(task)

    def _on_row_crash(self, task: Task, sample_id: int, blame: str) -> None:
        """Suspects the sample at which a worker crashed, and tries it alone; marks it bad at the second crash."""
        if task.is_suspect:
            # The rows of a bad sample are filled again by the stream's policy for bad samples.
            job = task.job
            self._subtract_pending_tasks(job, 1)
            reason = record_bad_samples(job.stream, [BadSample(sample_id, blame)], self._stats)
            if reason is not None:
                self._fail_batch(job, reason)
            elif job.pending_tasks == 0:
                self._finish_job(job)
            return
        file = task.job.stream.format_file_name(sample_id)
        log.warning("sample.suspect", blame, stream=task.job.key.stream, sample=sample_id, file=file)
        # The suspect takes the place of this task among the pending ones, so only the others are added.
        suspect, others = task.split_off_suspect(sample_id, self._task_numbers)
        task.job.pending_tasks += len(others)
        self._pool.queue_tasks([suspect])
        for other in others:
            self._pool.requeue_task(other)


def record_bad_samples(stream: ServedStream, bad_samples: Sequence[BadSample], stats: ProcessStats) -> str | None:
    """Writes new bad samples to the quarantine and syncs it; returns why the stream must stop, or None."""
    try:
        new = stream.quarantine.append_new_bad_samples(bad_samples)
    except OSError as error:
        file = stream.format_file_name(bad_samples[0].sample_id)
        return (
            f"the verdict on {file} ({bad_samples[0].reason}) cannot be recorded: {error.strerror or error}; make "
            "room in the state directory, then restart streamd"
        )
    for verdict in new:
        stats.add_count(f"stream.{stream.spec.name}", "bad_samples")
        log.warning(
            "sample.bad",
            verdict.reason,
            stream=stream.spec.name,
            sample=verdict.sample_id,
            file=stream.format_file_name(verdict.sample_id),
        )
    return stream.explain_too_many_bad_samples()


# --- The streams that workers have open, under which numbers, and when workers may close one.


_MAX_TRANSFORM_FAULTS: Final = 2  # the first may have another cause


@dataclass(slots=True, eq=False)
class StreamVersion:
    """One version of a stream, as workers know it by its number. `row_cost` is the cost of a row, as far as known."""

    number: int
    stream: ServedStream
    batches_under_way: int = 0  # begun, and with tasks that are not over
    is_retired: bool = False
    cache_lock: Path | None = None  # held while its workers may write its cache; None: they only read it
    transform_faults: int = 0  # workers that ended while they tried its transform
    failure_reason: str = ""  # why no worker opens it any more, or ""
    remarks: set[str] = field(default_factory=set)  # logged already
    pixel_id: asyncio.Future[PixelId] | None = None  # the first worker's answer
    row_cost: RowCost = field(default_factory=RowCost)


@dataclass(slots=True)
class OpenStreams:
    """Streams by number, and the current number of each name.

    A number is one version of a stream. It is never used twice: a worker's late report about a closed version must not
    be taken for one about another. Methods return the commands that the caller has to send to the workers.
    """

    streams: InitVar[Iterable[ServedStream]]  # the first versions; not kept longer than they are served
    lock_caches: bool = True  # the workers write to the caches of this host
    versions: dict[int, StreamVersion] = field(init=False, default_factory=dict)
    current_numbers: dict[str, int] = field(init=False, default_factory=dict)
    _numbers: itertools.count[int] = field(init=False, default_factory=itertools.count)
    _locks: WriterLocks = field(init=False, default_factory=WriterLocks)

    def __post_init__(self, streams: Iterable[ServedStream]) -> None:
        for stream in streams:
            self.make_version_current(self.add_stream(stream))

    def served_streams(self) -> dict[int, ServedStream]:
        """Returns the current versions, by number."""
        return {number: self.versions[number].stream for number in self.current_numbers.values()}

    def add_stream(self, stream: ServedStream) -> int:
        """Adds a version that is about to be opened, and returns its number. It is not the current version yet."""
        number = next(self._numbers)
        version = self.versions[number] = StreamVersion(number, stream)
        # Workers of this host write to a cache only while this process holds its lock.
        if stream.cache is not None and self.lock_caches:
            path = Path(stream.cache.folder) / lock_file_name(stream.spec)
            version.cache_lock = path if self._locks.acquire_lock(path) else None
        return number

    def make_version_current(self, number: int) -> list[CloseStream]:
        """Makes a version the current one of its name, and retires the one before; returns commands for all workers."""
        name = self.versions[number].stream.spec.name
        earlier = self.current_numbers.get(name)
        self.current_numbers[name] = number
        return [] if earlier is None else self.retire_stream_version(earlier)

    def close_stream(self, name: str) -> list[CloseStream]:
        """Removes a name and retires its version; returns commands for all workers. Raises KeyError if unknown."""
        return self.retire_stream_version(self.current_numbers.pop(name))

    def add_batch_under_way(self, name: str) -> StreamVersion:
        """Counts a batch that begins, and returns its version. Raises KeyError for an unknown name."""
        version = self.versions[self.current_numbers[name]]
        version.batches_under_way += 1
        return version

    def remove_batch_under_way(self, number: int) -> list[CloseStream]:
        """Counts a batch that has no task left in any worker; returns commands for all workers."""
        self.versions[number].batches_under_way -= 1
        return self._remove_version_if_unused(number)

    def retire_stream_version(self, number: int) -> list[CloseStream]:
        """Retires a version: it is removed once none of its batches is under way. Returns commands for all workers."""
        self.versions[number].is_retired = True
        return self._remove_version_if_unused(number)

    def _remove_version_if_unused(self, number: int) -> list[CloseStream]:
        version = self.versions[number]
        if not version.is_retired or version.batches_under_way:
            return []
        del self.versions[number]
        if version.cache_lock is not None:
            self._locks.release_lock(version.cache_lock)
        return [CloseStream(number)]

    def make_open_commands(self) -> list[OpenStream]:
        """Returns the commands that open all versions in a new worker."""
        return [self.make_open_command(each.number) for each in self.versions.values() if not each.failure_reason]

    def make_open_command(self, number: int) -> OpenStream:
        """Returns the command that opens one version."""
        version = self.versions[number]
        stream, cache = version.stream, version.stream.cache
        place = None if cache is None else replace(cache, writable=version.cache_lock is not None)
        return stream.build_open_command(number, place)

    async def wait_for_pixel_id(self, number: int) -> PixelId:
        """Waits until a worker has opened a version; returns its pixel identity. Raises ConfigError if that fails."""
        # All callers and workers share this future, so a cancelled caller must not cancel it.
        return await asyncio.shield(self._get_pixel_id_future(self.versions[number]))

    async def wait_for_pixel_ids(self, numbers: Mapping[str, int]) -> dict[str, PixelId]:
        """Waits for several versions; returns pixel identities by name. Raises ConfigError once each has an answer."""
        answers = await asyncio.gather(*map(self.wait_for_pixel_id, numbers.values()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        # Every answer is there, so this does not wait.
        return {name: await self.wait_for_pixel_id(number) for name, number in numbers.items()}

    def current_transforms(self) -> set[TransformPlace]:
        """Returns the transforms of the current versions."""
        current = (self.versions[number].stream.transform for number in self.current_numbers.values())
        return {place for place in current if place is not None}

    def on_stream_opened(self, number: int, pixel_id: PixelId) -> None:
        """Records the pixel identity that a worker reports. Raises OtherPixelsError if an earlier one differs."""
        if number not in self.versions:  # closed meanwhile
            return
        stream, answer = self.versions[number].stream, self._get_pixel_id_future(self.versions[number])
        if not answer.done():
            if other := explain_other_pixels(stream.expected, stream.spec.name, pixel_id):
                answer.set_exception(ConfigError(other))
            else:
                answer.set_result(pixel_id)
        elif answer.exception() is None and answer.result() != pixel_id:
            raise OtherPixelsError(
                "a worker makes different pixels from the first worker: the installation changed, or a transform "
                "depends on more than image, labels and rng; restart streamd"
            )

    def on_stream_open_failed(self, number: int, reason: str) -> None:
        """Raises ConfigError in callers that wait for the first answer. After that, only the worker's tasks fail."""
        if number not in self.versions:
            return
        version = self.versions[number]
        answer = self._get_pixel_id_future(version)
        if not answer.done():
            answer.set_exception(ConfigError(format_open_failure(version.stream.spec.name, reason)))

    def count_transform_fault(self, fault: TransformFault) -> str:
        """Counts a worker that ended in a transform; returns why the stream version has failed for good, or ""."""
        version = self.versions.get(fault.stream_number)
        if version is None:  # closed meanwhile
            return ""
        version.transform_faults += 1
        if fault.is_certain or version.transform_faults >= _MAX_TRANSFORM_FAULTS:
            version.failure_reason = f"streams.{version.stream.spec.name}.transform: {fault.reason}"
            self.on_stream_open_failed(fault.stream_number, version.failure_reason)
        return version.failure_reason

    def log_worker_remark(self, number: int, text: str) -> None:
        """Logs a worker's remark about a stream, once if several workers send the same text."""
        version = self.versions.get(number)
        if version is not None and text not in version.remarks:
            version.remarks.add(text)
            log.warning("stream.remark", text, stream=version.stream.spec.name)

    @staticmethod
    def _get_pixel_id_future(version: StreamVersion) -> asyncio.Future[PixelId]:
        if version.pixel_id is None:
            version.pixel_id = asyncio.get_running_loop().create_future()
        return version.pixel_id
