"""Finds streams whose data are missing, checks until the data return, and reports both to the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from streamd.core import log
from streamd.daemon.file_system_events import FileSystemEvents
from streamd.daemon.slow_lookup import NO_ANSWER, SlowLookup
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.root_proof import choose_expected_files, find_absence_reason
from streamd.errors import DataAwayError
from streamd.limits import RETURN_MAX_S, RETURN_MIN_S

_ADVICE: Final = (
    "mount the data or bring them back, and the stream continues by itself; if they were changed on purpose, restart "
    "with --rescan"
)


def build_absence_lookup(stream: ServedStream) -> SlowLookup[str]:
    """Returns a lookup of a stream's data; its answer is why they are missing, or "" if they are there."""
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
    pause_s: float  # before the next check
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
    _checks_under_way: set[int] = field(default_factory=set)  # numbers of streams whose data a check looks for
    _last_returns: dict[int, tuple[float, float]] = field(default_factory=dict)  # by number: when, and the last pause
    _group: asyncio.TaskGroup | None = None
    _mounts: FileSystemEvents | None = None

    def __contains__(self, number: object) -> bool:
        return number in self._missing

    @property
    def messages_by_stream(self) -> dict[str, str]:
        """The message about each stream whose data are missing, by its name."""
        return {each.stream: each.message for each in self._missing.values()}

    async def watch_for_returned_data(self) -> None:
        """Waits for missing data to return, until cancelled. `on_returned` is called from its tasks."""
        self._mounts = FileSystemEvents()
        try:
            async with asyncio.TaskGroup() as self._group:
                # These were added before the task group existed, so nothing waits for them yet.
                for number in self._missing:
                    self._start_waiting_for_return(number)
                await asyncio.get_running_loop().create_future()  # for ever
        finally:
            # The group has ended every task that waits for a mount event, so nothing uses the descriptors any more.
            self._mounts.close()

    def add_stream(self, number: int, stream: ServedStream, reason: str) -> str:
        """Records that a stream's data are missing, and starts to wait for them; returns the message about it."""
        name = stream.spec.name
        returned_s, paused_s = self._last_returns.get(number, (0.0, 0.0))
        # If checks find the data and reads still fail, which should not happen, the stream would pause and resume in
        # a tight loop. So a stream whose data were missing a short time ago starts with twice its last pause.
        relapsed = time.monotonic() < returned_s + 2 * RETURN_MAX_S
        pause_s = min(max(2 * paused_s, RETURN_MIN_S), RETURN_MAX_S) if relapsed else RETURN_MIN_S
        message = f"it waits for its data: {reason}; {_ADVICE}"
        self._missing[number] = _MissingStream(name, build_absence_lookup(stream), message, pause_s)
        log.error("data.away", message, stream=name)
        if self._group is not None:
            self._start_waiting_for_return(number)
        return message

    async def add_streams_without_data(self, streams: Mapping[int, ServedStream]) -> None:
        """Adds the streams whose data are missing. One with a cache is left out, since the cache may hold all rows."""
        lookups = [build_absence_lookup(stream) for stream in streams.values()]
        answers = await asyncio.gather(*(lookup.wait_for_answer() for lookup in lookups))
        for (number, stream), lookup, why in zip(streams.items(), lookups, answers, strict=True):
            # A file system that does not answer would block the worker that opens the stream, whatever the cache holds.
            if why and (stream.cache is None or lookup.is_unanswered):
                self.add_stream(number, stream, why)

    def remove_stream(self, number: int) -> None:
        """Removes a stream version that is no longer served, and stops waiting for its data."""
        absence = self._missing.pop(number, None)
        self._last_returns.pop(number, None)
        if absence is not None and absence.wait_task is not None:
            absence.wait_task.cancel()

    def start_data_check(self, number: int, stream: ServedStream) -> None:
        """Starts a check of a stream's data, for which a worker waits; it calls `on_missing` if they are not there."""
        # Several workers may wait for one stream: one check at a time is enough, and each may block a thread.
        if self._group is not None and number not in self._missing and number not in self._checks_under_way:
            self._checks_under_way.add(number)
            self._group.create_task(self._report_if_data_missing(number, build_absence_lookup(stream)), name="asking")

    async def _report_if_data_missing(self, number: int, lookup: SlowLookup[str]) -> None:
        why = await lookup.wait_for_answer()
        self._checks_under_way.discard(number)
        # A worker may have reported the missing data while this waited.
        if why and number not in self._missing:
            self.on_missing(number, why)

    def _start_waiting_for_return(self, number: int) -> None:
        assert self._group is not None  # noqa: S101 - it runs
        absence = self._missing[number]
        absence.wait_task = self._group.create_task(
            self._wait_for_return(number, absence), name=f"data of {absence.stream}"
        )

    async def _wait_for_return(self, number: int, absence: _MissingStream) -> None:
        """Checks when mounts change, else after pauses that double up to RETURN_MAX_S, until the data are there."""
        assert self._mounts is not None  # noqa: S101 - as above
        while True:
            await self._mounts.wait_for_change(absence.pause_s)
            if not await absence.lookup.wait_for_answer():
                break
            absence.pause_s = min(2 * absence.pause_s, RETURN_MAX_S)
        # `remove_stream` removes the entry and cancels this task in one step, so the entry is still there.
        del self._missing[number]
        self._last_returns[number] = time.monotonic(), absence.pause_s
        log.notice("data.back", "the data are there again: the stream continues", stream=absence.stream)
        self.on_returned(absence.stream)
