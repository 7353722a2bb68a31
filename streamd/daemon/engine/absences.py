"""Streams whose data are away: each is looked for until they are there, and the engine hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from streamd.core import log
from streamd.daemon.engine.mount_events import MountEvents
from streamd.daemon.slow_lookup import NO_ANSWER, SlowLookup
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.root_proof import choose_expected_files, find_absence_reason
from streamd.errors import DataAwayError
from streamd.limits import RETURN_MAX_S, RETURN_MIN_S

_ADVICE: Final = (
    "mount or bring them back, and the stream goes on by itself; if they were changed on purpose, restart with --rescan"
)


def format_missing_data(reason: str) -> str:
    """What is said of a stream whose data are away."""
    return f"it waits for its data: {reason}; {_ADVICE}"


def build_absence_lookup(stream: ServedStream) -> SlowLookup[str]:
    """Looks for the data of a stream; its answer is why they are not there, nothing if they are."""
    expected = choose_expected_files(stream.manifest)
    return SlowLookup(partial(find_absence_reason, expected), f"{str(expected.root)!r} {NO_ANSWER}")


async def check_data_present(stream: ServedStream) -> None:
    """Raises DataAwayError unless the data of a stream are there."""
    if why := await build_absence_lookup(stream).wait_for_answer():
        raise DataAwayError(f"streams.{stream.spec.name}.source: {why}")


@dataclass(slots=True)
class _MissingStream:
    stream: str
    lookup: SlowLookup[str]
    message: str
    pause_s: float  # before the next look
    wait_task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class MissingData:
    """The streams whose data are missing, by number.

    `on_missing` is called with a number and a reason when a check finds that data are missing, `on_returned` with a
    stream's name when they are there again.
    """

    on_missing: Callable[[int, str], None]
    on_returned: Callable[[str], None]
    _missing: dict[int, _MissingStream] = field(default_factory=dict)
    _checks_under_way: set[int] = field(default_factory=set)  # whether their data are there
    _last_returns: dict[int, tuple[float, float]] = field(default_factory=dict)  # when, and the pause before
    _group: asyncio.TaskGroup | None = None
    _mounts: MountEvents | None = None

    def __contains__(self, number: object) -> bool:
        return number in self._missing

    @property
    def messages_by_stream(self) -> dict[str, str]:
        """What is said of each stream whose data are away."""
        return {each.stream: each.message for each in self._missing.values()}

    async def watch_for_returned_data(self) -> None:
        """Looks for what is away, until cancelled."""
        self._mounts = MountEvents()
        try:
            async with asyncio.TaskGroup() as self._group:
                for number in self._missing:
                    self._start_waiting_for_return(number)
                await asyncio.get_running_loop().create_future()  # for ever
        finally:
            self._mounts.close()

    def add_stream(self, number: int, stream: ServedStream, reason: str) -> str:
        """The data of a stream are away from now on; what is said of it."""
        name = stream.spec.name
        returned_s, paused_s = self._last_returns.get(number, (0.0, 0.0))
        # Where looks and reads disagree, as they should not, this keeps them from doing so all the time.
        relapsed = time.monotonic() < returned_s + 2 * RETURN_MAX_S
        pause_s = min(max(2 * paused_s, RETURN_MIN_S), RETURN_MAX_S) if relapsed else RETURN_MIN_S
        lookup = build_absence_lookup(stream)
        self._missing[number] = _MissingStream(name, lookup, format_missing_data(reason), pause_s)
        log.error("data.away", self._missing[number].message, stream=name)
        if self._group is not None:
            self._start_waiting_for_return(number)
        return self._missing[number].message

    async def add_streams_without_data(self, streams: Mapping[int, ServedStream]) -> None:
        """Begins with those streams whose data are not there. What a cache has of them may do without."""
        lookups = [build_absence_lookup(stream) for stream in streams.values()]
        answers = await asyncio.gather(*(lookup.wait_for_answer() for lookup in lookups))
        for (number, stream), lookup, why in zip(streams.items(), lookups, answers, strict=True):
            # Without an answer a worker would wait for the file system too, whatever the cache has.
            if why and (stream.cache is None or lookup.is_unanswered):
                self.add_stream(number, stream, why)

    def remove_stream(self, number: int) -> None:
        """Nobody asks for a stream any more."""
        absence = self._missing.pop(number, None)
        self._last_returns.pop(number, None)
        if absence is not None and absence.wait_task is not None:
            absence.wait_task.cancel()

    def start_data_check(self, number: int, stream: ServedStream) -> None:
        """Whether the data of a stream are there at all, which keep a worker waiting."""
        if self._group is not None and number not in self._missing and number not in self._checks_under_way:
            self._checks_under_way.add(number)
            self._group.create_task(self._report_if_data_missing(number, build_absence_lookup(stream)), name="asking")

    async def _report_if_data_missing(self, number: int, lookup: SlowLookup[str]) -> None:
        why = await lookup.wait_for_answer()
        self._checks_under_way.discard(number)
        if why and number not in self._missing:
            self.on_missing(number, why)

    def _start_waiting_for_return(self, number: int) -> None:
        assert self._group is not None  # noqa: S101 - it runs
        absence = self._missing[number]
        absence.wait_task = self._group.create_task(
            self._wait_for_return(number, absence), name=f"data of {absence.stream}"
        )

    async def _wait_for_return(self, number: int, absence: _MissingStream) -> None:
        """Ends when the data are there: it looks when mounts have changed, and else after ever longer pauses."""
        assert self._mounts is not None  # noqa: S101 - as above
        while True:
            await self._mounts.wait_for_change(absence.pause_s)
            if not await absence.lookup.wait_for_answer():
                break
            absence.pause_s = min(2 * absence.pause_s, RETURN_MAX_S)
        del self._missing[number]
        self._last_returns[number] = time.monotonic(), absence.pause_s
        log.notice("data.back", "its data are there again: it goes on", stream=absence.stream)
        self.on_returned(absence.stream)
