"""Which streams the workers know, under which numbers, and when they may forget one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.core.spec import PixelId, StreamSpec
from streamd.daemon.engine.crashes import TransformFault
from streamd.daemon.engine.row_cost import RowCost
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.cache.file import WriterLocks, lock_file_name
from streamd.errors import ConfigError, OtherPixelsError, format_open_failure
from streamd.ipc.worker_messages import CloseStream, OpenStream, TransformPlace

_MAX_TRANSFORM_FAULTS: Final = 2  # one may be somebody else's fault


@dataclass(slots=True, eq=False)
class _StreamEntry:
    stream: ServedStream
    batches_under_way: int = 0  # batches
    is_retired: bool = False
    cache_lock: Path | None = None  # that lets its workers write its cache
    transform_faults: int = 0  # workers that ended over its transform, or so it seems
    failure_reason: str = ""  # why no worker shall open it any more
    remarks: set[str] = field(default_factory=set)
    pixel_id: asyncio.Future[PixelId] | None = None
    row_cost: RowCost = field(default_factory=RowCost)


@dataclass(slots=True)
class OpenStreams:
    """Streams by number, and the number that each name stands for now.

    A number is never used twice: a worker's late word about one that is closed must not be taken for another's. What
    has to be said to the workers is returned.
    """

    streams: InitVar[Iterable[ServedStream]]  # to begin with; kept no longer than they are served
    _entries: dict[int, _StreamEntry] = field(init=False, default_factory=dict)
    _current: dict[str, int] = field(init=False, default_factory=dict)
    _numbers: itertools.count[int] = field(init=False, default_factory=itertools.count)
    _locks: WriterLocks = field(init=False, default_factory=WriterLocks)

    def __post_init__(self, streams: Iterable[ServedStream]) -> None:
        for stream in streams:
            self.make_version_current(self.add_stream(stream))

    def current_numbers_by_name(self) -> dict[str, int]:
        """The number that each name stands for."""
        return dict(self._current)

    def served_streams(self) -> dict[int, ServedStream]:
        """Those that names stand for, by number."""
        return {number: self._entries[number].stream for number in self._current.values()}

    def get_stream(self, number: int) -> ServedStream:
        """KeyError for a number that is over."""
        return self._entries[number].stream

    def add_stream(self, stream: ServedStream) -> int:
        """A number for a stream that is to be opened. Its name does not stand for it yet."""
        number = next(self._numbers)
        self._entries[number] = _StreamEntry(stream, cache_lock=self._acquire_cache_lock(stream))
        return number

    def _acquire_cache_lock(self, stream: ServedStream) -> Path | None:
        """The lock of a stream's cache, if it has one and it is to be had."""
        if stream.cache is None:
            return None
        path = Path(stream.cache.folder) / lock_file_name(stream.spec)
        return path if self._locks.acquire_lock(path) else None

    def make_version_current(self, number: int) -> list[CloseStream]:
        """From now on the stream's name stands for this number, and for no earlier one."""
        name = self._entries[number].stream.spec.name
        earlier = self._current.get(name)
        self._current[name] = number
        return [] if earlier is None else self.retire_stream_version(earlier)

    def close_stream(self, name: str) -> list[CloseStream]:
        """No batch of this name is begun any more. KeyError for one that nobody knows."""
        return self.retire_stream_version(self._current.pop(name))

    def add_batch_under_way(self, name: str) -> tuple[int, ServedStream]:
        """A batch is begun: of which stream, and its number. KeyError for a name that nobody knows."""
        number = self._current[name]
        entry = self._entries[number]
        entry.batches_under_way += 1
        return number, entry.stream

    def get_row_cost(self, number: int) -> RowCost:
        """What a row of this stream takes, as far as is known."""
        return self._entries[number].row_cost

    def remove_batch_under_way(self, number: int) -> list[CloseStream]:
        """A batch has no task left in any worker."""
        self._entries[number].batches_under_way -= 1
        return self._remove_version_if_unused(number)

    def retire_stream_version(self, number: int) -> list[CloseStream]:
        """This number is over as soon as none of its batches is under way."""
        self._entries[number].is_retired = True
        return self._remove_version_if_unused(number)

    def _remove_version_if_unused(self, number: int) -> list[CloseStream]:
        entry = self._entries[number]
        if not entry.is_retired or entry.batches_under_way:
            return []
        del self._entries[number]
        if entry.cache_lock is not None:
            self._locks.release_lock(entry.cache_lock)
        return [CloseStream(number)]

    def make_open_commands(self) -> list[OpenStream]:
        """What a new worker has to be told first."""
        return [self.make_open_command(number) for number, entry in self._entries.items() if not entry.failure_reason]

    def make_open_command(self, number: int) -> OpenStream:
        """What workers are told of one stream."""
        entry = self._entries[number]
        stream, cache = entry.stream, entry.stream.cache
        place = None if cache is None else replace(cache, writable=entry.cache_lock is not None)
        return OpenStream(number, str(stream.manifest_path), _strip_label_classes(stream.spec), place, stream.transform)

    async def wait_for_pixel_id(self, number: int) -> PixelId:
        """What the pipeline makes of a stream, once a worker has said it."""
        return await asyncio.shield(self._get_pixel_id_future(self._entries[number]))

    async def wait_for_pixel_ids(self, numbers: Mapping[str, int]) -> dict[str, PixelId]:
        """The same for several streams, by name. Raises ConfigError, once each of them has an answer."""
        answers = await asyncio.gather(*map(self.wait_for_pixel_id, numbers.values()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        # All there: it waits for none.
        return {name: await self.wait_for_pixel_id(number) for name, number in numbers.items()}

    def current_transforms(self) -> set[TransformPlace]:
        """The transforms of the streams that names stand for."""
        current = (self._entries[number].stream.transform for number in self._current.values())
        return {place for place in current if place is not None}

    def on_stream_opened(self, number: int, pixel_id: PixelId) -> None:
        """A worker has said what its pipeline makes. Raises OtherPixelsError when another makes something else."""
        if number not in self._entries:  # closed meanwhile
            return
        answer = self._get_pixel_id_future(self._entries[number])
        if not answer.done():
            answer.set_result(pixel_id)
        elif answer.exception() is None and answer.result() != pixel_id:
            raise OtherPixelsError(
                "a worker makes other pixels than the first: the installation changed, or a transform goes by more "
                "than image, labels and rng; restart streamd"
            )

    def on_stream_open_failed(self, number: int, reason: str) -> None:
        """A worker cannot open a stream: who waits for its first word hears why; later, only its tasks fail."""
        if number not in self._entries:
            return
        entry = self._entries[number]
        answer = self._get_pixel_id_future(entry)
        if not answer.done():
            answer.set_exception(ConfigError(format_open_failure(entry.stream.spec.name, reason)))

    def count_transform_fault(self, fault: TransformFault) -> str:
        """A worker ended over the transform of a stream. Why the stream is given up, if it is: for good, by all."""
        entry = self._entries.get(fault.stream_number)
        if entry is None:  # closed meanwhile
            return ""
        entry.transform_faults += 1
        if fault.is_certain or entry.transform_faults >= _MAX_TRANSFORM_FAULTS:
            entry.failure_reason = f"streams.{entry.stream.spec.name}.transform: {fault.reason}"
            self.on_stream_open_failed(fault.stream_number, entry.failure_reason)
        return entry.failure_reason

    def get_failure_reason(self, number: int) -> str:
        """Why no worker has this stream any more, if so."""
        return self._entries[number].failure_reason

    def log_worker_remark(self, number: int, text: str) -> None:
        """Logs what a worker has to say about a stream. Others may say the same."""
        entry = self._entries.get(number)
        if entry is not None and text not in entry.remarks:
            entry.remarks.add(text)
            log.warning("stream.remark", text, stream=entry.stream.spec.name)

    @staticmethod
    def _get_pixel_id_future(entry: _StreamEntry) -> asyncio.Future[PixelId]:
        if entry.pixel_id is None:
            entry.pixel_id = asyncio.get_running_loop().create_future()
        return entry.pixel_id


def _strip_label_classes(spec: StreamSpec) -> StreamSpec:
    """What a worker needs of a spec: class lists have no bound, its records have."""
    labels = {name: replace(label, classes=(), counts=()) for name, label in spec.labels.items()}
    return replace(spec, labels=labels)
