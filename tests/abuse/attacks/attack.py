"""One attacker: `python attack.py NAME ENDPOINT [SHARE]`, which makes round after round until it is killed.

After each round it prints a line of JSON: how many rounds there were, how many the daemon cut short, and what the
attack counts by itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections import Counter
from typing import Final

import connections
import door
import frames
import network
import questions
import readers
import sessions
import zmq
from target import Attack, Target

ATTACKS: Final[dict[str, Attack]] = {
    each.__name__: each
    for module in (connections, door, frames, network, questions, readers, sessions)
    for each in module.ATTACKS
}
_PAUSE_S: Final = 0.02  # after a round that was cut short: an attacker that only fails would burn a core of its own


_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans, so that the time that they take counts as its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def bury_orphans() -> None:
    """Has the time of children that have ended counted."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there is none
        return


def main(name: str, endpoint: str, share: str = "0") -> None:
    """Attacks. `share` is of a processor, for the one that only computes."""
    adopt_orphans()
    target, counts = Target(endpoint, float(share)), Counter[str]()
    while True:
        try:
            counts.update(ATTACKS[name](target) or {})
            counts["rounds"] += 1
        except (OSError, zmq.ZMQError) as error:
            counts["cut short"] += 1
            counts[f"{type(error).__name__}"] += 1
            time.sleep(_PAUSE_S)
        bury_orphans()
        sys.stdout.write(json.dumps(counts) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
