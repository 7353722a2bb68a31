"""Whether the data are there: at start, when a worker fails to read them, and until they return.

File systems may be mounted late, or never answer. So each lookup runs in a thread, its answer is awaited for a bounded
time, and a change of the mounts leads to the next look.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import glob
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from streamd.config.schema import Config, StreamConfig
from streamd.core import log
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.confined import format_path
from streamd.dataset.paths.open_beneath import choose_expected_files, find_absence_reason
from streamd.errors import DataAwayError
from streamd.limits import LOOK_FOR_DATA_S, PROOF_S, RETURN_MAX_S, RETURN_MIN_S, THREAD_RETRY_S

# --- Wakes tasks when a file system is mounted or unmounted on this host, or files of watched folders are removed.
#
# Python has no wrapper for inotify, hence ctypes.

_MOUNTS: Final = "/proc/self/mountinfo"
_EVENT_BYTES: Final = 1 << 16  # of inotify, read at a time and not looked at: tasks look at the files themselves
# From <sys/inotify.h>. What happens in a folder, ...
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_IN_FOLDER: Final = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
# ... and to a folder itself: a path ends to lead to a file also where one of its parents is renamed.
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OF_FOLDER: Final = _DELETE_SELF | _MOVE_SELF
_libc = ctypes.CDLL(None, use_errno=True)


def _open_mounts() -> int:
    return os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)


class FileSystemEvents:
    """Watches this host's mount table, and wakes all waiting tasks when it changes. Belongs to the event loop.

    With `watch_folders` it watches folders too. `sees_folders`: whether the kernel lets it.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._mounts = _open_mounts()
        self._inotify = -1
        self.sees_folders = False
        # The kernel reports a change of this file as EPOLLPRI, and the file is always readable. The event loop watches
        # for readability alone, so it watches an epoll object instead, which is readable while EPOLLPRI is pending.
        self._changes = select.epoll()
        self._changes.register(self._mounts, select.EPOLLPRI)
        asyncio.get_running_loop().add_reader(self._changes.fileno(), self._on_change)

    def watch_folders(self, folders: Iterable[Path]) -> None:
        """Watches these folders and their parents from now on, as they are now. Those watched already stay so."""
        if self._inotify < 0:
            self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._inotify < 0:  # this user has no instance left: see fs.inotify.max_user_instances
                return
            self._changes.register(self._inotify, select.EPOLLIN)
        wanted = dict.fromkeys(folders, _IN_FOLDER | _OF_FOLDER)
        for parent in [parent for folder in wanted for parent in folder.parents]:
            wanted.setdefault(parent, _OF_FOLDER)
        # A parent that this user may not read cannot be watched, and a folder that is gone wakes by its parent.
        added = {path: _libc.inotify_add_watch(self._inotify, os.fsencode(path), mask) for path, mask in wanted.items()}
        self.sees_folders = all(watch >= 0 for path, watch in added.items() if wanted[path] & _IN_FOLDER)

    def _on_change(self) -> None:
        self._changes.poll(0)  # consumes the event; the loop would call this again and again otherwise
        if self._inotify >= 0:
            with suppress(BlockingIOError):
                os.read(self._inotify, _EVENT_BYTES)
        # Waiting tasks hold the event that is set here; later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, max_s: float | None) -> None:
        """Returns at the next change, or after `max_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max_s):
                await self._changed.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._changes.fileno())
        self._changes.close()
        os.close(self._mounts)
        if self._inotify >= 0:
            os.close(self._inotify)


# --- Lookups on file systems that may never answer.
#
# Each runs in a thread of its own. Its answer is awaited for a bounded time, and the process may end without it.

AnswerType = TypeVar("AnswerType")

NO_ANSWER: Final = f"does not answer within {PROOF_S:g} s"


class SlowLookup(Generic[AnswerType]):
    """Runs `question`, which looks at a file system; while one lookup is unanswered, no second one starts.

    `no_answer` is returned in place of an answer that does not come in time. Lives on the event loop.
    """

    def __init__(self, question: Callable[[], AnswerType], no_answer: AnswerType) -> None:
        self._question = question
        self._no_answer = no_answer
        self._pending_answer: asyncio.Future[AnswerType] | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether the file system has not answered the last lookup in time."""
        return self._pending_answer is not None

    async def wait_for_answer(self) -> AnswerType:
        """Returns the answer of the file system, or `no_answer` after PROOF_S."""
        # A file system that hangs blocks one thread, not one for each call: later calls wait for the same answer.
        if self._pending_answer is None:
            self._pending_answer = ask_in_thread(self._question)
        # Unlike wait_for, this does not cancel the future when the time is over.
        await asyncio.wait({self._pending_answer}, timeout=PROOF_S)
        if not self._pending_answer.done():
            return self._no_answer
        asked, self._pending_answer = self._pending_answer, None
        return asked.result()


def ask_in_thread(question: Callable[[], AnswerType], name: str = "looking for data") -> asyncio.Future[AnswerType]:
    """Runs `question` in a daemon thread; returns a future of the running loop for its answer or exception.

    Where the host lets the process start no thread, it tries again every THREAD_RETRY_S.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[AnswerType] = loop.create_future()

    def settle_answer(set_answer: Callable[[], None]) -> None:
        # This runs on the loop, since futures are not thread-safe. A cancelled task has cancelled the future too, if it
        # awaited the future directly.
        if not answer.cancelled():
            set_answer()

    def answer_question() -> None:
        set_answer: Callable[[], None]
        try:
            found = question()
        except Exception as error:  # noqa: BLE001 - raised again where the future is awaited
            set_answer = partial(answer.set_exception, error)
        else:
            set_answer = partial(answer.set_result, found)
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the answer
            loop.call_soon_threadsafe(settle_answer, set_answer)

    _start_thread(loop, threading.Thread(target=answer_question, name=name, daemon=True))
    return answer


def _start_thread(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Starts a thread, now or later: other users of the host may have used up its tasks for a time."""
    try:
        thread.start()
    except RuntimeError as error:
        log.warning(
            "daemon.no_thread",
            f"{error}: {thread.name} waits; look at TasksMax of the service and at ulimit -u",
            retry_s=THREAD_RETRY_S,
        )
        loop.call_later(THREAD_RETRY_S, _start_thread, loop, thread)


# --- Checks at start that the files of a configuration are there, and that label files are not newer than the manifest.
#
# The manifest holds the mtimes of images, and the labels of tables and lists, but not the mtimes of those files. Until
# --rescan, the labels of the manifest are served.

_LASTING_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def list_data_places(streams: Iterable[StreamConfig]) -> list[Path]:
    """Returns the files and folders that sources, labels and weights name, each once; of a pattern, its folder."""
    return list(dict.fromkeys(_strip_glob_pattern(path) for stream in streams for path in stream.data_paths))


def _strip_glob_pattern(path: Path) -> Path:
    """Returns the deepest folder above the wildcards of a path; the path itself if it has none, or exists."""
    if not glob.has_magic(str(path)) or path.exists():
        return path
    return next(parent for parent in path.parents if not glob.has_magic(str(parent)))


def build_place_lookups(streams: Iterable[StreamConfig]) -> list[SlowLookup[str]]:
    """Returns a lookup of each place that streams name.

    Its answer says that the place is missing, is an empty folder, or cannot be reached now; "" if data are there.
    """
    return [
        SlowLookup(partial(find_place_absence_reason, path), f"{str(path)!r}: {NO_ANSWER}")
        for path in dict.fromkeys(path for stream in streams for path in stream.data_paths)
    ]


def find_place_absence_reason(path: Path) -> str:
    """Returns why data at a path are absent, or "". Blocks for as long as the file system takes."""
    place = _strip_glob_pattern(path)
    try:
        with os.scandir(place) as entries:
            is_absent = next(entries, None) is None
    except NotADirectoryError:
        is_absent = False  # a file
    except OSError as error:
        is_absent = error.errno not in _LASTING_ERRNOS  # the listing reports these
    return f"{format_path(place)}: not there, or empty" if is_absent else ""


async def wait_for_mount(lookup_requested: asyncio.Event) -> None:
    """Returns after a mount or unmount, when `lookup_requested` is set, or after `LOOK_FOR_DATA_S`.

    The time limit is there because files may also appear without a mount.
    """
    mounts = FileSystemEvents()
    ways = [
        asyncio.ensure_future(mounts.wait_for_change(LOOK_FOR_DATA_S)),
        asyncio.ensure_future(lookup_requested.wait()),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Both have to end before the mount events are closed, which one of them waits for.
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        mounts.close()


def warn_of_newer_label_files(config: Config, streams: Iterable[ServedStream], away: Collection[str] = ()) -> None:
    """Warns of label files newer than the manifest, except of streams whose data are `away`.

    Returns at once: warnings follow when file systems answer.
    """
    for each in streams:
        if each.spec.name in away:
            continue
        if files := config.streams[each.spec.name].label_files:
            asked = ask_in_thread(partial(find_files_newer_than_manifest, files, each.manifest_path))
            asked.add_done_callback(partial(_log_newer_label_files, each.spec.name))


def _log_newer_label_files(stream: str, asked: asyncio.Future[list[str]]) -> None:
    for file in asked.result():
        log.warning(
            "manifest.older",
            f"{file} was written after its samples were listed: restart with --rescan to list them again; until then, "
            "the old labels and files are served",
            stream=stream,
        )


def find_files_newer_than_manifest(files: Collection[Path], manifest: Path) -> list[str]:
    """Returns the files written after the manifest, as messages name them. Blocks while file systems do not answer."""
    written: list[str] = []
    for file in files:
        with suppress(OSError):  # other checks report what is wrong with these files
            found = file.stat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime > manifest.stat().st_mtime:
                written.append(format_path(file))
    return written


# --- Finds streams whose data are missing, checks until the data return, and reports both to the engine.


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
