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
from streamd.daemon.engine.crashes import Charge
from streamd.daemon.engine.row_cost import RowCost
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.cache.file import WriterLocks, lock_file_name
from streamd.errors import ConfigError, OtherPixelsError, format_open_failure
from streamd.ipc.worker_messages import CloseStream, OpenStream, TransformPlace

_MOST_CHARGES: Final = 2  # one may be somebody else's fault


@dataclass(slots=True, eq=False)
class _Entry:
    stream: ServedStream
    under_way: int = 0  # batches
    retired: bool = False
    lock: Path | None = None  # that lets its workers write its cache
    charges: int = 0  # workers that ended over its transform, or so it seems
    given_up: str = ""  # why no worker shall open it any more
    remarks: set[str] = field(default_factory=set)
    pixel_id: asyncio.Future[PixelId] | None = None
    row_cost: RowCost = field(default_factory=RowCost)


@dataclass(slots=True)
class Register:
    """Streams by number, and the number that each name stands for now.

    A number is never used twice: a worker's late word about one that is closed must not be taken for another's. What
    has to be said to the workers is returned.
    """

    streams: InitVar[Iterable[ServedStream]]  # to begin with; kept no longer than they are served
    _entries: dict[int, _Entry] = field(init=False, default_factory=dict)
    _current: dict[str, int] = field(init=False, default_factory=dict)
    _numbers: itertools.count[int] = field(init=False, default_factory=itertools.count)
    _locks: WriterLocks = field(init=False, default_factory=WriterLocks)

    def __post_init__(self, streams: Iterable[ServedStream]) -> None:
        for stream in streams:
            self.use(self.add(stream))

    def current(self) -> dict[str, int]:
        """The number that each name stands for."""
        return dict(self._current)

    def served(self) -> dict[int, ServedStream]:
        """Those that names stand for, by number."""
        return {number: self._entries[number].stream for number in self._current.values()}

    def stream(self, number: int) -> ServedStream:
        """KeyError for a number that is over."""
        return self._entries[number].stream

    def add(self, stream: ServedStream) -> int:
        """A number for a stream that is to be opened. Its name does not stand for it yet."""
        number = next(self._numbers)
        self._entries[number] = _Entry(stream, lock=self._lock(stream))
        return number

    def _lock(self, stream: ServedStream) -> Path | None:
        """The lock of a stream's cache, if it has one and it is to be had."""
        if stream.cache is None:
            return None
        path = Path(stream.cache.folder) / lock_file_name(stream.spec)
        return path if self._locks.acquire_lock(path) else None

    def use(self, number: int) -> list[CloseStream]:
        """From now on the stream's name stands for this number, and for no earlier one."""
        name = self._entries[number].stream.spec.name
        earlier = self._current.get(name)
        self._current[name] = number
        return [] if earlier is None else self.retire(earlier)

    def close(self, name: str) -> list[CloseStream]:
        """No batch of this name is begun any more. KeyError for one that nobody knows."""
        return self.retire(self._current.pop(name))

    def begin(self, name: str) -> tuple[int, ServedStream]:
        """A batch is begun: of which stream, and its number. KeyError for a name that nobody knows."""
        number = self._current[name]
        entry = self._entries[number]
        entry.under_way += 1
        return number, entry.stream

    def row_cost(self, number: int) -> RowCost:
        """What a row of this stream takes, as far as is known."""
        return self._entries[number].row_cost

    def end(self, number: int) -> list[CloseStream]:
        """A batch has no task left in any worker."""
        self._entries[number].under_way -= 1
        return self._forget(number)

    def retire(self, number: int) -> list[CloseStream]:
        """This number is over as soon as none of its batches is under way."""
        self._entries[number].retired = True
        return self._forget(number)

    def _forget(self, number: int) -> list[CloseStream]:
        entry = self._entries[number]
        if not entry.retired or entry.under_way:
            return []
        del self._entries[number]
        if entry.lock is not None:
            self._locks.release_lock(entry.lock)
        return [CloseStream(number)]

    def openings(self) -> list[OpenStream]:
        """What a new worker has to be told first."""
        return [self.opening(number) for number, entry in self._entries.items() if not entry.given_up]

    def opening(self, number: int) -> OpenStream:
        """What workers are told of one stream."""
        entry = self._entries[number]
        stream, cache = entry.stream, entry.stream.cache
        place = None if cache is None else replace(cache, writable=entry.lock is not None)
        return OpenStream(number, str(stream.manifest_path), _without_classes(stream.spec), place, stream.transform)

    async def pixel_id(self, number: int) -> PixelId:
        """What the pipeline makes of a stream, once a worker has said it."""
        return await asyncio.shield(self._answer(self._entries[number]))

    async def pixel_ids(self, numbers: Mapping[str, int]) -> dict[str, PixelId]:
        """The same for several streams, by name. Raises ConfigError, once each of them has an answer."""
        answers = await asyncio.gather(*map(self.pixel_id, numbers.values()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {name: await self.pixel_id(number) for name, number in numbers.items()}  # all there: it waits for none

    def transforms(self) -> set[TransformPlace]:
        """The transforms of the streams that names stand for."""
        current = (self._entries[number].stream.transform for number in self._current.values())
        return {place for place in current if place is not None}

    def agree(self, number: int, pixel_id: PixelId) -> None:
        """A worker has said what its pipeline makes. Raises OtherPixelsError when another makes something else."""
        if number not in self._entries:  # closed meanwhile
            return
        answer = self._answer(self._entries[number])
        if not answer.done():
            answer.set_result(pixel_id)
        elif answer.exception() is None and answer.result() != pixel_id:
            raise OtherPixelsError(
                "a worker makes other pixels than the first: the installation changed, or a transform goes by more "
                "than image, labels and rng; restart streamd"
            )

    def refuse(self, number: int, reason: str) -> None:
        """A worker cannot open a stream: who waits for its first word hears why; later, only its tasks fail."""
        if number not in self._entries:
            return
        entry = self._entries[number]
        answer = self._answer(entry)
        if not answer.done():
            answer.set_exception(ConfigError(format_open_failure(entry.stream.spec.name, reason)))

    def charge(self, charge: Charge) -> str:
        """A worker ended over the transform of a stream. Why the stream is given up, if it is: for good, by all."""
        entry = self._entries.get(charge.stream)
        if entry is None:  # closed meanwhile
            return ""
        entry.charges += 1
        if charge.certain or entry.charges >= _MOST_CHARGES:
            entry.given_up = f"streams.{entry.stream.spec.name}.transform: {charge.reason}"
            self.refuse(charge.stream, entry.given_up)
        return entry.given_up

    def given_up(self, number: int) -> str:
        """Why no worker has this stream any more, if so."""
        return self._entries[number].given_up

    def remark(self, number: int, text: str) -> None:
        """Logs what a worker has to say about a stream. Others may say the same."""
        entry = self._entries.get(number)
        if entry is not None and text not in entry.remarks:
            entry.remarks.add(text)
            log.warning("stream.remark", text, stream=entry.stream.spec.name)

    @staticmethod
    def _answer(entry: _Entry) -> asyncio.Future[PixelId]:
        if entry.pixel_id is None:
            entry.pixel_id = asyncio.get_running_loop().create_future()
        return entry.pixel_id


def _without_classes(spec: StreamSpec) -> StreamSpec:
    """What a worker needs of a spec: class lists have no bound, its records have."""
    labels = {name: replace(label, classes=(), counts=()) for name, label in spec.labels.items()}
    return replace(spec, labels=labels)
