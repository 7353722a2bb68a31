"""Looks at file systems that may never answer.

Each runs in a thread of its own. Its answer is awaited for a bounded time, and the process may end without it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

from streamd.limits import PROOF_S

AnswerType = TypeVar("AnswerType")

NO_ANSWER: Final = f"does not answer within {PROOF_S:g} s"


class SlowLookup(Generic[AnswerType]):
    """Asks `question` of a file system; while one look is unanswered, there is no second.

    `no_answer` stands for the answer of a file system that gives none in time.
    """

    def __init__(self, question: Callable[[], AnswerType], no_answer: AnswerType) -> None:
        self._question = question
        self._no_answer = no_answer
        self._pending_answer: asyncio.Future[AnswerType] | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether the file system did not answer in time."""
        return self._pending_answer is not None

    async def wait_for_answer(self) -> AnswerType:
        """What the file system says, or `no_answer` when it does not in time."""
        if self._pending_answer is None:
            self._pending_answer = ask_in_thread(self._question)
        await asyncio.wait({self._pending_answer}, timeout=PROOF_S)
        if not self._pending_answer.done():
            return self._no_answer
        asked, self._pending_answer = self._pending_answer, None
        return asked.result()


def ask_in_thread(question: Callable[[], AnswerType]) -> asyncio.Future[AnswerType]:
    """Asks in a thread that the process may end without; the answer comes to the running loop."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[AnswerType] = loop.create_future()

    def settle_answer(set_answer: Callable[[], None]) -> None:
        if not answer.cancelled():
            set_answer()

    def answer_question() -> None:
        set_answer: Callable[[], None]
        try:
            found = question()
        except Exception as error:  # noqa: BLE001 - raised again by whoever asked
            set_answer = partial(answer.set_exception, error)
        else:
            set_answer = partial(answer.set_result, found)
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(settle_answer, set_answer)

    threading.Thread(target=answer_question, name="looking for data", daemon=True).start()
    return answer
