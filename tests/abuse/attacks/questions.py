"""Attacks by questions: answers that nobody reads, and floods."""

from __future__ import annotations

import time
from typing import Final

from target import Attack, Target

from streamd.ipc.messages import AskNames, AskStats, AskStatus, AskStreams, Names, StatusNow
from streamd.limits import MAX_NAMES

_QUESTIONS: Final = 100
_PERIOD_S: Final = 0.01


def ignore_answers(target: Target) -> dict[str, int]:
    """Asks for 4,096 names and for the status, and reads no answer."""
    intruder = target.kept[0] if target.kept else target.intrude()
    for _ in range(_QUESTIONS):
        intruder.send(AskNames("train", (0,) * MAX_NAMES))
        intruder.send(AskStatus())
    return {"answers not read": 2 * _QUESTIONS}


def flood_questions(target: Target) -> dict[str, int]:
    """Asks all kinds of questions as fast as it can, and reads the answers."""
    intruder = target.kept[0] if target.kept else target.intrude()
    for _ in range(_QUESTIONS):
        for message in (AskStreams(), AskStats(), AskNames("train", (0, 1)), AskStatus()):
            intruder.send(message)
    for _ in range(_QUESTIONS):
        intruder.wait_for(StatusNow)
    return {"questions": 4 * _QUESTIONS}


def ask_once_wrongly(target: Target) -> dict[str, int]:
    """Asks for names that do not exist."""
    intruder = target.kept[0] if target.kept else target.intrude()
    for ids in ((-1,), (1 << 62,), (0,) * (MAX_NAMES + 1), ()):
        intruder.send(AskNames("train", ids))
        intruder.send(AskNames("no such stream", ids))
    intruder.send(AskNames("train", (0,)))
    intruder.wait_for(Names)
    return {"wrong questions": 8}


def burn(target: Target) -> dict[str, int]:
    """Attacks nothing: computes for a share of the time, to compare with."""
    end_s = time.monotonic() + target.share * _PERIOD_S
    while time.monotonic() < end_s:
        pass
    time.sleep(max(0.0, (1 - target.share) * _PERIOD_S))
    return {}


ATTACKS: Final[tuple[Attack, ...]] = (ask_once_wrongly, burn, flood_questions, ignore_answers)
