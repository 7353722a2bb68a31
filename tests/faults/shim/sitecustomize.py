"""Faults from within, in every Python process whose PYTHONPATH names this folder; the product has no hook for them.

FAULT_CLOCK: each look at the wall clock finds it set a day and some hours on, or back. FAULT_BLOCK_S: SIGUSR1 holds the
main thread, and with it an event loop, for so many seconds. FAULT_LIMITS: other values for names of streamd.limits, as
JSON, where waiting for the real ones would take a test too long.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from typing import Final

_DAY_S: Final = 86400
_JUMPS_S: Final = itertools.cycle([_DAY_S + 5 * 3600, -_DAY_S, -_DAY_S - 7 * 3600, _DAY_S])


def _unsettle_the_clock() -> None:
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + next(_JUMPS_S)
    time.time_ns = lambda: now_ns() + next(_JUMPS_S) * 1_000_000_000


if os.environ.get("FAULT_CLOCK"):
    _unsettle_the_clock()
if os.environ.get("FAULT_LIMITS"):
    from streamd import limits

    vars(limits).update(json.loads(os.environ["FAULT_LIMITS"]))
if os.environ.get("FAULT_BLOCK_S"):
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(float(os.environ["FAULT_BLOCK_S"])))
