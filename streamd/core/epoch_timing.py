"""Where an epoch's time went: how long a trainer waited, and for which stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from streamd.limits import ALL_AT_WORK, LAY_READY, READS, WAIT_NOTICED

# What a trainer's epoch was limited by: `disk`, workers waited for reads; `decode`, all of them were busy; `transport`,
# batches lay ready, or neither of the two was the reason; `none`, the trainer itself.
Stage = Literal["disk", "decode", "transport", "none"]

_EXACT_BELOW_S: Final = 10  # shorter times show hundredths


class Effort(msgspec.Struct, frozen=True, gc=False):
    """What one batch took: workers' seconds spent waiting for reads and on all else, and the part of them at work."""

    reading_s: float
    working_s: float
    at_work: float


@dataclass(frozen=True, slots=True)
class Supply:
    """How batches came to a trainer: `ready` ones lay there when it had room for them, `awaited` ones did not.

    The rest is of those awaited: seconds that workers, together, waited for reads, and spent on all else; `at_work` is
    the part of the workers, 0 to 1, that had something to do when such a batch was whole.
    """

    ready: int = 0
    awaited: int = 0
    reading_s: float = 0.0
    working_s: float = 0.0
    at_work: float = 0.0

    @property
    def lay_ready(self) -> float:
        """The part of the batches that lay ready, 0 to 1."""
        return _part(self.ready, self.awaited)

    @property
    def reads(self) -> float:
        """The part of the workers' time that went by waiting for reads, 0 to 1."""
        return _part(self.reading_s, self.working_s)


@dataclass(slots=True)
class Supplying:
    """Counts how batches go to one trainer, from one epoch's end to the next."""

    _batches: int = 0
    _awaited: int = 0
    _reading_s: float = 0.0
    _working_s: float = 0.0
    _at_work: float = 0.0  # added up over those awaited

    def add(self, batches: int, awaited: Sequence[Effort]) -> None:
        """So many batches leave together; `awaited` is what those among them took that were waited for."""
        self._batches += batches
        self._awaited += len(awaited)
        for each in awaited:
            self._reading_s += each.reading_s
            self._working_s += each.working_s
            self._at_work += each.at_work

    def take(self) -> Supply:
        """What was counted, which is counted anew from here."""
        awaited, at_work = self._awaited, self._at_work / max(1, self._awaited)
        done = Supply(self._batches - awaited, awaited, self._reading_s, self._working_s, at_work)
        self._batches, self._awaited = 0, 0
        self._reading_s, self._working_s, self._at_work = 0.0, 0.0, 0.0
        return done


@dataclass(frozen=True, slots=True)
class Timing:
    """One epoch of one trainer, from its first wish for a batch to the last batch: seconds, and those spent waiting.

    A trainer that leaves its work to a device and goes on meanwhile waits while the device works: it is limited less
    than this says.
    """

    epoch: int
    seconds: float
    waited_s: float
    verdict: Stage
    supply: Supply

    @property
    def free_s(self) -> float:
        """What the epoch would take if data were free."""
        return max(0.0, self.seconds - self.waited_s)

    @property
    def line(self) -> str:
        """All of it in words: `epoch 3 if data were free: 41 s; with data: 43 s; the trainer itself is the limit`."""
        times = f"epoch {self.epoch} if data were free: {_seconds(self.free_s)}; with data: {_seconds(self.seconds)}"
        return f"{times}; {self._reason}"

    @property
    def _reason(self) -> str:
        supply = self.supply
        match self.verdict:
            case "none":
                return "the trainer itself is the limit"
            case "disk":
                return f"disk is the limit: workers waited for reads {supply.reads:.0%} of their time"
            case "decode":
                return f"decode is the limit: {supply.at_work:.0%} of the workers were busy"
            case "transport" if supply.lay_ready > LAY_READY:
                return f"transport is the limit: {supply.lay_ready:.0%} of the batches lay ready"
            case "transport":
                return f"transport is the limit: {supply.at_work:.0%} of the workers were busy, and not with reading"


@dataclass(slots=True)
class EpochClock:
    """When an epoch began for a trainer, None before it has, and how long the trainer had waited for others before."""

    began_ns: int | None = None
    ended_ns: int = 0  # when it got its last batch so far
    waited_before_s: float = 0.0

    def begin(self, now_ns: int, waited_s: float) -> None:
        """The first batch is wished for."""
        self.began_ns, self.ended_ns, self.waited_before_s = now_ns, now_ns, waited_s

    def timing(self, epoch: int, waited_s: float, supply: Supply) -> Timing:
        """The account of the epoch; `waited_s` is all that the trainer has waited by now."""
        began_ns = self.ended_ns if self.began_ns is None else self.began_ns
        seconds, waited_s = (self.ended_ns - began_ns) / 1e9, waited_s - self.waited_before_s
        return Timing(epoch, seconds, waited_s, limit(seconds, waited_s, supply), supply)


def limit(seconds: float, waited_s: float, supply: Supply) -> Stage:
    """The stage that an epoch of `seconds` was limited by, of which a trainer has spent `waited_s` waiting."""
    if waited_s <= WAIT_NOTICED * seconds:
        return "none"
    if supply.lay_ready > LAY_READY:
        return "transport"
    if supply.reads > READS:
        return "disk"
    return "decode" if supply.at_work >= ALL_AT_WORK else "transport"


def _part(of: float, rest: float) -> float:
    return of / (of + rest) if of + rest else 0.0


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= _EXACT_BELOW_S else f"{seconds:.2f} s"
