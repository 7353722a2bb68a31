"""Kinds of bad samples: few enough for labels, where the reasons are as many as there are files. Pure.

The bad samples of a stream for a page, the newest first, some at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, get_args

from streamd.ipc.worker_messages import TRANSFORM_RAISED

# `stale` files changed since they were listed, `gone` ones cannot be opened, `damaged` ones are cut off or broken,
# `large` ones are beyond every bound, `crash` brought a worker down, `transform` is the user's function; `unfit` is
# whatever no decoder takes: a video, a page of HTML, a kind of image that is not supported.
FaultKind = Literal["stale", "gone", "damaged", "large", "crash", "transform", "unfit"]

FAULT_KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)

_FAULT_PATTERNS: Final[tuple[tuple[FaultKind, re.Pattern[str]], ...]] = (
    ("transform", re.compile(re.escape(TRANSFORM_RAISED))),
    ("stale", re.compile(r"stale\b|removed, or replaced")),
    ("gone", re.compile(r"No such file|Permission denied|(Is|Not) a directory|not a regular|it lies outside")),
    ("crash", re.compile(r"crashes |takes more than |needs more memory ")),
    ("large", re.compile(r"(\d+x\d+ pixels are |\d+ bytes are )?more than ")),
    ("damaged", re.compile(
        r"(a damaged|an empty|its chunk) |\d+ zero bytes|unreadable EXIF|a size |a TIFF (cut|whose)|a pixel"
    )),
)  # fmt: skip
_SAMPLES_PER_PAGE: Final = 24


def classify_fault_reason(reason: str) -> FaultKind:
    """What kind of fault a verdict's reason tells of."""
    return next((kind for kind, sign in _FAULT_PATTERNS if sign.match(reason)), "unfit")


@dataclass(frozen=True, slots=True)
class BadSampleView:
    """A sample that will not be sent, and why."""

    sample_id: int
    file: str
    reason: str
    kind: FaultKind


@dataclass(frozen=True, slots=True)
class BadSamplePage:
    """Some of `bad` samples; where `before` is no None, there are older ones."""

    bad: int
    samples: list[BadSampleView]
    before: int | None


def build_bad_sample_page(
    reasons: Mapping[int, str], lookup_file: Callable[[int], str], before: int | None
) -> BadSamplePage:
    """Those that came last, of the first `before` ones, or of all; `reasons` by sample, in the order they came."""
    total = len(reasons)
    stop = total if before is None else max(0, min(before, total))
    start = max(0, stop - _SAMPLES_PER_PAGE)
    some = [
        BadSampleView(each, lookup_file(each), why, classify_fault_reason(why))
        for each, why in islice(reasons.items(), start, stop)
    ]
    return BadSamplePage(total, some[::-1], start or None)
