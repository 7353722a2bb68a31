"""Sorts bad samples into kinds, and lists them for the dashboard, the newest first. Pure.

Kinds are few enough for the labels of a metric; there may be as many reasons as files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, get_args

from streamd.ipc.worker_messages import TRANSFORM_RAISED

# `stale`: changed since it was listed. `gone`: cannot be opened. `damaged`: cut off or broken. `large`: beyond a bound.
# `crash`: ended a worker. `transform`: the user's function raised. `unfit`: no decoder reads it, since it is a video, a
# page of HTML, or an unsupported kind of image.
FaultKind = Literal["stale", "gone", "damaged", "large", "crash", "transform", "unfit"]

FAULT_KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)

_FAULT_PATTERNS: Final[tuple[tuple[FaultKind, re.Pattern[str]], ...]] = (
    ("transform", re.compile(re.escape(TRANSFORM_RAISED))),
    ("stale", re.compile(r"stale\b|removed, or replaced")),
    ("gone", re.compile(r"No such file|Permission denied|(Is|Not) a directory|not a regular|it lies outside")),
    ("crash", re.compile(r"crashes |takes more than |needs more memory ")),
    ("large", re.compile(r"(\d+x\d+ pixels are |\d+ bytes are )?more than |the file has \d+ bytes")),
    ("damaged", re.compile(
        r"(a damaged|an empty|its chunk|a file that begins with) |\d+ zero bytes|unreadable EXIF|a size |its size is "
        r"|a TIFF (cut|truncated|whose)|a pixel"
    )),
)  # fmt: skip
_SAMPLES_PER_PAGE: Final = 24


def classify_fault_reason(reason: str) -> FaultKind:
    """Returns the kind of fault that a verdict's reason describes; `unfit` where no pattern matches."""
    return next((kind for kind, sign in _FAULT_PATTERNS if sign.match(reason)), "unfit")


@dataclass(frozen=True, slots=True)
class BadSampleView:
    """A sample that is not sent, and why."""

    sample_id: int
    file: str
    reason: str
    kind: FaultKind


@dataclass(frozen=True, slots=True)
class BadSamplePage:
    """Some of the `bad` samples of a stream. If there are older ones, `before` requests the next page; else None."""

    bad: int
    samples: list[BadSampleView]
    before: int | None


def build_bad_sample_page(
    reasons: Mapping[int, str], lookup_file: Callable[[int], str], before: int | None
) -> BadSamplePage:
    """Returns the newest of the first `before` bad samples, or of all. `reasons` are in the order they were recorded.

    A page is named by a count from the oldest, so it stays the same while new verdicts arrive.
    """
    total = len(reasons)
    stop = total if before is None else max(0, min(before, total))
    start = max(0, stop - _SAMPLES_PER_PAGE)
    some = [
        BadSampleView(each, lookup_file(each), why, classify_fault_reason(why))
        for each, why in islice(reasons.items(), start, stop)
    ]
    return BadSamplePage(total, some[::-1], start or None)
