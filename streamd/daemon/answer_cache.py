"""Encoded answers to questions that anybody may ask, shared by all who ask: a flood of questions makes few answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from streamd.core.leaky_bucket import LeakyBucket
from streamd.limits import ANSWER_AGE_S, ANSWER_BURST_S, ANSWER_SHARE

ReadClock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class _KeptAnswer:
    encoded: bytes
    made_s: float


class AnswerCache:
    """Keeps the last answer of each kind. Lives on the event loop.

    While making answers takes less than ANSWER_SHARE of the time, after a burst of ANSWER_BURST_S, every answer is made
    anew. Beyond that, a kept one is given until it is ANSWER_AGE_S old. `read_clock_s` and `read_spent_s` are the
    monotonic time and the processor time of this thread.
    """

    def __init__(self, read_clock_s: ReadClock = time.monotonic, read_spent_s: ReadClock = time.thread_time) -> None:
        self._read_clock_s, self._read_spent_s = read_clock_s, read_spent_s
        self._answers: dict[type, _KeptAnswer] = {}
        self._lasting_answers: dict[type, bytes] = {}
        self._spent = LeakyBucket(ANSWER_SHARE, time_s=read_clock_s())  # seconds spent on answers

    def get_or_make_answer(self, kind: type, make_answer: Callable[[], bytes]) -> bytes:
        """Returns the answer to questions of this kind: a new one if time allows, else the one kept."""
        now_s, kept = self._read_clock_s(), self._answers.get(kind)
        is_spent = self._spent.compute_level(now_s) > ANSWER_BURST_S
        if kept is not None and is_spent and now_s < kept.made_s + ANSWER_AGE_S:
            return kept.encoded
        began_s = self._read_spent_s()
        encoded = make_answer()
        self._spent.add(self._read_spent_s() - began_s, now_s)
        self._answers[kind] = _KeptAnswer(encoded, now_s)
        return encoded

    def get_or_make_lasting_answer(self, kind: type, make_answer: Callable[[], bytes]) -> bytes:
        """Returns an answer that holds until `forget_lasting_answers` is called."""
        encoded = self._lasting_answers.get(kind)
        if encoded is None:
            encoded = self._lasting_answers[kind] = make_answer()
        return encoded

    def forget_lasting_answers(self) -> None:
        """Makes the lasting answers anew when they are next asked for."""
        self._lasting_answers.clear()
