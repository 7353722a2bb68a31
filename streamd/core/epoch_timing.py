"""Where time goes: how long trainers waited, and for which stage, in an epoch and now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final, Literal

import msgspec

from streamd.limits import ALL_AT_WORK, LAY_READY, MAX_COUNT, MAX_REPORTED_S, READS, WAIT_NOTICED

# --- The stage that limits trainers, in words: what the limit is, whether that is bad, and what helps.
#
# Terminal, dashboard, receipts and log take their sentences from here.

# The limit of a trainer's epoch. `disk`: workers waited for reads. `decode`: all workers were busy. `transport`:
# batches lay ready, or none of the others was the reason. `none`: the trainer itself.
EpochBottleneck = Literal["disk", "decode", "transport", "none"]
# The limit now, one of those of an epoch or these. `memory`: no slot was free for the next batch. `pending`: batches
# are in production, and workers have reported none yet. `nobody`: no trainer requests batches.
Bottleneck = Literal["disk", "decode", "memory", "transport", "none", "pending", "nobody"]


@dataclass(frozen=True, slots=True)
class BottleneckAdvice:
    """One limit: its `short` name for a column, the `limit` as a clause, what it means, and the remedy, if any.

    `is_bad` is None where no verdict is possible yet.
    """

    short: str
    limit: str
    is_bad: bool | None
    meaning: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """The whole advice: `decoding is the limit: bad, trainers wait for it; more workers … would help`."""
        judged = {True: "bad, ", False: "good, ", None: ""}[self.is_bad]
        helps = f"; {self.remedy}" if self.remedy else ""
        return f"{self.limit}: {judged}{self.meaning}{helps}"


BOTTLENECK_ADVICE: Final[dict[Bottleneck, BottleneckAdvice]] = {
    "disk": BottleneckAdvice(
        "disk",
        "disk is the limit",
        is_bad=True,
        meaning="trainers wait while workers read",
        remedy="a faster disk, a `cache` or `streamd pack` would help",
    ),
    "decode": BottleneckAdvice(
        "decode",
        "decoding is the limit",
        is_bad=True,
        meaning="trainers wait while all workers decode",
        remedy="more `workers` (up to the processor's cores) would help; where files are decoded again in each "
        "epoch, so would `streamd pack --format npy` or a `cache` with room for them",
    ),
    "memory": BottleneckAdvice(
        "memory",
        "memory is the limit",
        is_bad=True,
        meaning="trainers wait while workers have no free slot",
        remedy="more `memory` would help",
    ),
    "transport": BottleneckAdvice(
        "transport",
        "transport is the limit",
        is_bad=True,
        meaning="trainers wait though disk and workers could do more",
        remedy="a larger `prefetch` or `batch_size` would help, unless the loop only drains, as `streamd probe` does",
    ),
    "none": BottleneckAdvice(
        "trainer",
        "the trainer is the limit",
        is_bad=False,
        meaning="data come faster than the trainer takes them",
        remedy="only a faster model or device would save time",
    ),
    "pending": BottleneckAdvice(
        "pending", "no limit is known yet", is_bad=None, meaning="workers have begun, but no batch is done yet"
    ),
    "nobody": BottleneckAdvice("nobody", "nothing is the limit", is_bad=False, meaning="no trainer asks for batches"),
}


# --- Where an epoch's time went.

_STARVED: Final = 0.5  # of the time without a slot for the next batch: what trainers wait for is memory then
_EXACT_BELOW_S: Final = 10  # shorter times show hundredths

# Trainers report these to the daemon, which shows them: neither NaN nor infinity is a time.
ReportedCount = Annotated[int, msgspec.Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
ReportedAmount = Annotated[float, msgspec.Meta(ge=-MAX_REPORTED_S, le=MAX_REPORTED_S)]


class BatchEffort(msgspec.Struct, frozen=True, gc=False):
    """The cost of one batch: workers' seconds spent waiting for reads and on all else, and the part of them at work."""

    reading_s: float
    working_s: float
    at_work: float


@dataclass(frozen=True, slots=True)
class BatchSupply:
    """How batches came to a trainer: `ready` of them lay in memory when it had room for them, `awaited` did not.

    The other fields are of those awaited: the seconds that workers, together, waited for reads and spent on all else.
    `at_work` is the part of the workers, 0 to 1, that had a task when such a batch became whole.
    """

    ready: ReportedCount = 0
    awaited: ReportedCount = 0
    reading_s: ReportedAmount = 0.0
    working_s: ReportedAmount = 0.0
    at_work: ReportedAmount = 0.0

    @property
    def fraction_of_batches_ready(self) -> float:
        """The part of the batches that lay ready, 0 to 1."""
        batches = self.ready + self.awaited
        return self.ready / batches if batches else 0.0

    @property
    def fraction_of_time_reading(self) -> float:
        """The part of the workers' time that they waited for reads, 0 to 1."""
        seconds = self.reading_s + self.working_s
        return self.reading_s / seconds if seconds else 0.0


@dataclass(slots=True)
class SupplyCounter:
    """Counts how batches come to one trainer, from one epoch's end to the next."""

    _batches: int = 0
    _awaited: int = 0
    _reading_s: float = 0.0
    _working_s: float = 0.0
    _at_work: float = 0.0  # added up over those awaited

    def add_batches(self, batches: int, awaited: Sequence[BatchEffort]) -> None:
        """Adds `batches` that are sent together; `awaited` has the cost of those for which the trainer waited."""
        self._batches += batches
        self._awaited += len(awaited)
        for each in awaited:
            self._reading_s += each.reading_s
            self._working_s += each.working_s
            self._at_work += each.at_work

    def take_and_reset_supply(self) -> BatchSupply:
        """Returns what was counted, and starts from zero."""
        awaited, at_work = self._awaited, self._at_work / max(1, self._awaited)
        done = BatchSupply(self._batches - awaited, awaited, self._reading_s, self._working_s, at_work)
        self._batches, self._awaited = 0, 0
        self._reading_s, self._working_s, self._at_work = 0.0, 0.0, 0.0
        return done


@dataclass(frozen=True, slots=True)
class EpochTiming:
    """One epoch of one trainer, from its first request for a batch to its last batch: seconds, and those spent waiting.

    A trainer that leaves its work to a device and continues meanwhile waits while the device works. Data limit it less
    than this shows.
    """

    epoch: ReportedCount
    seconds: ReportedAmount
    waited_s: ReportedAmount
    verdict: EpochBottleneck
    supply: BatchSupply

    @property
    def summary_text(self) -> str:
        """The times, the limit, whether it is bad, and what helps.

        `epoch 3 if data were free: 41 s; with data: 43 s; the trainer is the limit: good, data come faster than …`
        """
        advice = BOTTLENECK_ADVICE[self.verdict]
        return f"{self.short_text}{advice.sentence.removeprefix(advice.limit)}"

    @property
    def short_text(self) -> str:
        """The times and the limit, for a list of epochs that is followed by the remedies."""
        free_s, whole_s = (
            f"{seconds:,.0f} s" if seconds >= _EXACT_BELOW_S else f"{seconds:.2f} s"
            for seconds in (max(0.0, self.seconds - self.waited_s), self.seconds)
        )
        facts = f" ({self._facts})" if self._facts else ""
        limit = BOTTLENECK_ADVICE[self.verdict].limit
        return f"epoch {self.epoch} if data were free: {free_s}; with data: {whole_s}; {limit}{facts}"

    @property
    def _facts(self) -> str:
        """The measurement behind the verdict, "" where the times show it."""
        supply = self.supply
        match self.verdict:
            case "none":
                return ""
            case "disk":
                return f"workers waited for reads {supply.fraction_of_time_reading:.0%} of their time"
            case "decode":
                return f"{supply.at_work:.0%} of the workers were busy"
            case "transport" if supply.fraction_of_batches_ready > LAY_READY:
                return f"{supply.fraction_of_batches_ready:.0%} of the batches were ready"
            case "transport":
                return f"{supply.at_work:.0%} of the workers were busy, and not with reading"


def format_timing_lines(timings_by_trainer: Sequence[Sequence[EpochTiming]]) -> list[str]:
    """Returns a line for each epoch of each trainer, then one with the remedy for each limit among them.

    A single epoch is one sentence.
    """
    timings = list(chain.from_iterable(timings_by_trainer))
    if len(timings) == 1:
        return [timings[0].summary_text]
    lines = []
    for number, own in enumerate(timings_by_trainer, 1):
        whose = f"trainer {number}, " if len(timings_by_trainer) > 1 else ""
        lines += [f"{whose}{timing.short_text}" for timing in own]
    return lines + [BOTTLENECK_ADVICE[verdict].sentence for verdict in dict.fromkeys(each.verdict for each in timings)]


@dataclass(slots=True)
class EpochClock:
    """The time at which an epoch began for a trainer, None before it has, and its waiting time up to then.

    Times are of the monotonic clock, in nanoseconds.
    """

    began_ns: int | None = None
    ended_ns: int = 0  # when it got its last batch so far
    waited_before_s: float = 0.0

    def start_epoch(self, now_ns: int, waited_s: float) -> None:
        """Starts an epoch at the request for its first batch; `waited_s` is all that the trainer has waited so far."""
        self.began_ns, self.ended_ns, self.waited_before_s = now_ns, now_ns, waited_s

    def compute_timing(self, epoch: int, waited_s: float, supply: BatchSupply) -> EpochTiming:
        """Returns the timing of the epoch; `waited_s` is all that the trainer has waited so far."""
        began_ns = self.ended_ns if self.began_ns is None else self.began_ns
        seconds, waited_s = (self.ended_ns - began_ns) / 1e9, waited_s - self.waited_before_s
        return EpochTiming(epoch, seconds, waited_s, find_epoch_bottleneck(seconds, waited_s, supply), supply)


def find_epoch_bottleneck(seconds: float, waited_s: float, supply: BatchSupply) -> EpochBottleneck:
    """Returns the stage that limited an epoch of `seconds`, of which a trainer spent `waited_s` waiting."""
    # Each test rules out one limit. After all three, the trainer waited, batches did not lie ready, and workers did not
    # wait for reads. Then decoding is the limit if the workers were busy; otherwise only the transport is left.
    if waited_s <= WAIT_NOTICED * seconds:
        return "none"
    if supply.fraction_of_batches_ready > LAY_READY:
        return "transport"
    if supply.fraction_of_time_reading > READS:
        return "disk"
    return "decode" if supply.at_work >= ALL_AT_WORK else "transport"


def find_bottleneck(asking: int, waiting: float, reading: float, decoding: float, slot_wait: float) -> Bottleneck:
    """Returns the stage that limits trainers now.

    `asking` trainers request batches, and `waiting` of them wait, on average. `reading`, `decoding` and `slot_wait` are
    parts of time. The rule is that of an epoch's verdict; memory comes first, since without a slot workers are idle.
    """
    if not asking:
        return "nobody"
    waits = waiting / asking
    if waits > WAIT_NOTICED and slot_wait > _STARVED:
        return "memory"
    if waits > WAIT_NOTICED and not reading + decoding:
        return "pending"
    supply = BatchSupply(awaited=1, reading_s=reading, working_s=decoding, at_work=min(1.0, reading + decoding))
    return find_epoch_bottleneck(1.0, waits, supply)
