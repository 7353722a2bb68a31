"""The bad samples of a stream for a page, the newest first, some at a time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from streamd.monitor.faults import Fault, fault

_AT_A_TIME: Final = 24


@dataclass(frozen=True, slots=True)
class BadSampleView:
    """A sample that will not be sent, and why."""

    sample_id: int
    file: str
    reason: str
    kind: Fault


@dataclass(frozen=True, slots=True)
class BadList:
    """Some of `bad` samples; where `before` is no None, there are older ones."""

    bad: int
    samples: list[BadSampleView]
    before: int | None


def bad_list(reasons: Mapping[int, str], file: Callable[[int], str], before: int | None) -> BadList:
    """Those that came last, of the first `before` ones, or of all; `reasons` by sample, in the order they came."""
    total = len(reasons)
    stop = total if before is None else max(0, min(before, total))
    start = max(0, stop - _AT_A_TIME)
    some = [BadSampleView(each, file(each), why, fault(why)) for each, why in islice(reasons.items(), start, stop)]
    return BadList(total, some[::-1], start or None)
