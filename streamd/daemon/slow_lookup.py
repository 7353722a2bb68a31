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

Answer = TypeVar("Answer")

NO_ANSWER: Final = f"does not answer within {PROOF_S:g} s"


class SlowLookup(Generic[Answer]):
    """Asks `question` of a file system; while one look is unanswered, there is no second.

    `no_answer` stands for the answer of a file system that gives none in time.
    """

    def __init__(self, question: Callable[[], Answer], no_answer: Answer) -> None:
        self._question = question
        self._no_answer = no_answer
        self._asked: asyncio.Future[Answer] | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether the file system did not answer in time."""
        return self._asked is not None

    async def get_answer(self) -> Answer:
        """What the file system says, or `no_answer` when it does not in time."""
        if self._asked is None:
            self._asked = ask_in_thread(self._question)
        await asyncio.wait({self._asked}, timeout=PROOF_S)
        if not self._asked.done():
            return self._no_answer
        asked, self._asked = self._asked, None
        return asked.result()


def ask_in_thread(question: Callable[[], Answer]) -> asyncio.Future[Answer]:
    """Asks in a thread that the process may end without; the answer comes to the running loop."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(set_answer: Callable[[], None]) -> None:
        if not answer.cancelled():
            set_answer()

    def look() -> None:
        set_answer: Callable[[], None]
        try:
            found = question()
        except Exception as error:  # noqa: BLE001 - raised again by whoever asked
            set_answer = partial(answer.set_exception, error)
        else:
            set_answer = partial(answer.set_result, found)
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(settle, set_answer)

    threading.Thread(target=look, name="looking for data", daemon=True).start()
    return answer
