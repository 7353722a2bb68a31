"""Computes how many trainers fit into memory, by the scheduler's own code: one after another subscribes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.core.spec import Cursor, StreamShape
from streamd.limits import DEFAULT_CREDIT, MAX_SESSIONS
from streamd.scheduler.admission import AdmissionDenial, SchedulerLimits, admit_session
from streamd.scheduler.events import Subscribed
from streamd.scheduler.session import ScheduledSession


@dataclass(frozen=True, slots=True)
class TrainerCapacity:
    """The number of trainers that fit: `at_ease` with the credit that they request by default, `at_most` with less.

    `refusal` is the error of the first trainer if not even one fits.
    """

    at_ease: int
    at_most: int
    refusal: str | None = None


def compute_trainer_capacity(shapes: Sequence[StreamShape], limits: SchedulerLimits) -> TrainerCapacity:
    """Computes how many trainers fit that each read all of `shapes`, up to the most that a daemon accepts."""
    sessions: list[ScheduledSession] = []
    at_ease = 0
    while len(sessions) + len(shapes) <= MAX_SESSIONS:
        denial = next((each for shape in shapes if (each := _try_admit_session(sessions, shape, limits))), None)
        if denial is not None:
            trainers = len(sessions) // len(shapes)
            return TrainerCapacity(at_ease, trainers, None if trainers else denial.text)
        if all(session.credit == DEFAULT_CREDIT for session in sessions):
            at_ease = len(sessions) // len(shapes)
    return TrainerCapacity(at_ease, len(sessions) // len(shapes))


def _try_admit_session(
    sessions: list[ScheduledSession], shape: StreamShape, limits: SchedulerLimits
) -> AdmissionDenial | None:
    """Adds one more session of `shape`; returns the denial if it does not fit."""
    subscribed = Subscribed(len(sessions), shape.name, 0, 1, "drop", None, Cursor(), DEFAULT_CREDIT, resuming=False)
    verdict = admit_session(subscribed, shape, sessions, limits)
    if isinstance(verdict, AdmissionDenial):
        return verdict
    for number, credit in verdict.shrunk_credits.items():
        sessions[number].credit = credit
    sessions.append(ScheduledSession.from_subscription(subscribed, shape, verdict.credit))
    return None
