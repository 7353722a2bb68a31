"""The stage that limits trainers, in words: what the limit is, whether that is bad, and what helps. Pure.

Terminal, dashboard, receipts and log take their sentences from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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
        return self.format_sentence()

    def format_sentence(self, facts: str = "") -> str:
        """Returns the sentence, with the `facts` of one epoch after the limit."""
        measured = f" ({facts})" if facts else ""
        judged = {True: "bad, ", False: "good, ", None: ""}[self.is_bad]
        helps = f"; {self.remedy}" if self.remedy else ""
        return f"{self.limit}{measured}: {judged}{self.meaning}{helps}"


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
