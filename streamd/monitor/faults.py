"""Kinds of bad samples: few enough for labels, where the reasons are as many as there are files. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

from streamd.tasks import TRANSFORM_RAISED

# `stale` files changed since they were listed, `gone` ones cannot be opened, `damaged` ones are cut off or broken,
# `large` ones are beyond every bound, `crash` brought a worker down, `transform` is the user's function; `unfit` is
# whatever no decoder takes: a video, a page of HTML, a kind of image that is not supported.
Fault = Literal["stale", "gone", "damaged", "large", "crash", "transform", "unfit"]

FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

_SIGNS: Final[tuple[tuple[Fault, re.Pattern[str]], ...]] = (
    ("transform", re.compile(re.escape(TRANSFORM_RAISED))),
    ("stale", re.compile(r"stale\b|removed, or replaced")),
    ("gone", re.compile(r"No such file|Permission denied|(Is|Not) a directory|not a regular|it lies outside")),
    ("crash", re.compile(r"crashes |takes more than |needs more memory ")),
    ("large", re.compile(r"(\d+x\d+ pixels are |\d+ bytes are )?more than ")),
    ("damaged", re.compile(
        r"(a damaged|an empty|its chunk) |\d+ zero bytes|unreadable EXIF|a size |a TIFF (cut|whose)|a pixel"
    )),
)  # fmt: skip


def fault(reason: str) -> Fault:
    """What kind of fault a verdict's reason tells of."""
    return next((kind for kind, sign in _SIGNS if sign.match(reason)), "unfit")
