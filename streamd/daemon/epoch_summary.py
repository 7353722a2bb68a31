"""When an epoch of a stream is over for all who were in it, and how it went. Pure, time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from streamd.core.bad_samples import RowStatus
from streamd.core.epoch_timing import EpochTiming
from streamd.core.spec import BatchKey, Cursor, StreamSpec

_AHEAD: Final = 256  # epochs that batches were made of and nobody is in yet: one for each trainer

Epoch = tuple[str, int]  # of a stream


@dataclass(frozen=True, slots=True)
class Finished:
    """One epoch of a stream, told once for all its trainers.

    `samples` are those that passed by while they were there, counted once, `bad` rows among them; `seconds` is what
    the slowest trainer took, from its first wish to its last batch. `verdict` is the limit of the trainer that waited
    the greatest part of its time, if any has told.
    """

    stream: str
    epoch: int
    trainers: int
    samples: int
    seconds: float
    samples_per_s: float
    decodes_per_batch: float
    bad: int
    verdict: str | None


@dataclass(slots=True)
class _Made:
    decodes: int = 0
    bad: dict[int, int] = field(default_factory=dict)  # rows, by index, where there are any


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one trainer has had of an epoch: batches from `begin` to `end`, its other ranks' too."""

    begin: int
    end: int
    spec: StreamSpec
    seconds: float = 0.0
    waited_part: float = 0.0
    verdict: str | None = None


@dataclass(slots=True)
class _Account:
    made: _Made
    began_s: float
    begins: dict[int, int] = field(default_factory=dict)  # by session: where it came in
    ended: dict[int, _Pass] = field(default_factory=dict)  # by session: sent its last batch, not confirmed
    done: list[_Pass] = field(default_factory=list)


class Epochs:
    """Counts as things happen. Who comes to an epoch when all others are through with it begins another account."""

    def __init__(self) -> None:
        self._open: dict[Epoch, _Account] = {}
        self._ahead: dict[Epoch, _Made] = {}
        self._at: dict[int, Epoch] = {}  # by session
        self._began_s: dict[int, float] = {}  # by session

    def began(self, session: int, now_s: float) -> None:
        """A session was let in."""
        self._began_s[session] = now_s

    def produced(self, key: BatchKey, marks: RowStatus) -> None:
        """A batch was decoded, whose rows have these verdicts."""
        epoch = (key.stream, key.epoch)
        account = self._open.get(epoch)
        made = account.made if account is not None else self._ahead.setdefault(epoch, _Made())
        made.decodes += 1
        if bad := int(np.count_nonzero(marks)):
            made.bad[key.index] = bad
        while len(self._ahead) > _AHEAD:
            del self._ahead[next(iter(self._ahead))]

    def sent(self, session: int, rank: int, key: BatchKey, now_s: float) -> None:
        """A batch goes to a session of that rank; the first of an epoch takes it in."""
        at = self._at.get(session)
        if at is not None and at[1] == key.epoch:
            return
        epoch = self._at[session] = (key.stream, key.epoch)
        account = self._open.get(epoch)
        if account is None:
            account = self._open[epoch] = _Account(self._ahead.pop(epoch, _Made()), now_s)
        account.begins[session] = max(0, key.index - rank)

    def ended(self, session: int, spec: StreamSpec, cursor: Cursor) -> None:
        """A session was sent all of the epoch that it now stands at the end of."""
        account = self._open.get((spec.name, cursor.epoch))
        if account is not None and session in account.begins:
            account.ended[session] = _Pass(account.begins[session], min(cursor.next_base, spec.batches), spec)

    def confirmed(self, session: int, epoch: int, timing: EpochTiming | None, now_s: float) -> list[Finished]:
        """A session has had all of an epoch, as it says itself; what is finished by that, at most one."""
        key = (self._at.get(session, ("", 0))[0], epoch)
        account = self._open.get(key)
        passed = account.ended.pop(session, None) if account is not None else None
        if account is None or passed is None:
            return []
        del account.begins[session]
        account.done.append(_timed(passed, timing, now_s - account.began_s, now_s - self._began_s[session]))
        return self._settled(key)

    def left(self, session: int) -> list[Finished]:
        """A session is no more; what is finished by that."""
        self._began_s.pop(session, None)
        at = self._at.pop(session, None)
        if at is None:
            return []
        finished: list[Finished] = []
        for epoch in [epoch for epoch, account in self._open.items() if session in account.begins]:
            self._open[epoch].begins.pop(session)
            self._open[epoch].ended.pop(session, None)
            finished += self._settled(epoch)
        if all(other[0] != at[0] for other in self._at.values()):
            self._ahead = {epoch: made for epoch, made in self._ahead.items() if epoch[0] != at[0]}
        return finished

    def _settled(self, epoch: Epoch) -> list[Finished]:
        """Closes an account that nobody is in any more; it is told of if anybody came to its end."""
        if self._open[epoch].begins:
            return []
        account = self._open.pop(epoch)
        return [_summary(epoch, account)] if account.done else []


def _timed(passed: _Pass, timing: EpochTiming | None, span_s: float, age_s: float) -> _Pass:
    """A trainer says how long it took; for what is longer than its session stands the time since the first batch."""
    if timing is None:
        return replace(passed, seconds=span_s)
    seconds = timing.seconds if 0 < timing.seconds <= age_s else span_s
    waited_part = min(1.0, max(0.0, timing.waited_s / seconds)) if seconds else 0.0
    return replace(passed, seconds=seconds, waited_part=waited_part, verdict=timing.verdict)


def _summary(epoch: Epoch, account: _Account) -> Finished:
    done, made = account.done, account.made
    spec, seconds = done[-1].spec, max(each.seconds for each in done)
    begin, end = min(each.begin for each in done), max(each.end for each in done)
    samples = max(0, min(end * spec.batch_size, spec.samples) - begin * spec.batch_size)
    return Finished(
        *epoch,
        trainers=len(done),
        samples=samples,
        seconds=seconds,
        samples_per_s=samples / seconds if seconds else 0.0,
        decodes_per_batch=made.decodes / max(1, end - begin),
        bad=sum(made.bad.values()),
        verdict=max(done, key=lambda each: each.waited_part).verdict,
    )
