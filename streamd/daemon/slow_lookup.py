"""Lookups on file systems that may never answer.

Each runs in a thread of its own. Its answer is awaited for a bounded time, and the process may end without it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

from streamd.core import log
from streamd.limits import PROOF_S, THREAD_RETRY_S

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
