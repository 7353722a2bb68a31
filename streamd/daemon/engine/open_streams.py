"""The streams that workers have open, under which numbers, and when workers may close one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.core.spec import PixelId
from streamd.daemon.engine.batch_job import RowCost
from streamd.daemon.streams.served_stream import ServedStream, explain_other_pixels
from streamd.dataset.cache import WriterLocks, lock_file_name
from streamd.errors import ConfigError, OtherPixelsError, format_open_failure
from streamd.ipc.worker_messages import CloseStream, OpenStream, TransformFault, TransformPlace

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
