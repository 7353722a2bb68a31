"""The rows of docs/evidence/abuse.md: what a member of the socket's group may try, and what hostile data may hold."""

from __future__ import annotations

from typing import Final

import fault_rows

_SHARED: Final = ("23", "24", "25", "28", "32", "33", "34", "35", "36", "37", "38", "39", "44", "45", "47")

# Every attack that is known, whether anything tries it or not; rows with a number alone are those of the faults.
ROWS: Final = {
    "0": "none: the yardstick",
    "1a": "a claimed routing id",
    "1b": "silent connections",
    "1c": "endless epochs",
    "1d": "descriptors in flight",
    "2a": "batches that nobody reads",
    "2b": "a message without end",
    "2c": "answers that nobody reads",
    "3a": "digests of whole epochs",
    "3b": "a flood of questions",
    "3c": "a flood of numbers",
    "3d": "idle connections to the descriptor socket",
    "3e": "all sessions taken",
    "3f": "batches held",
    "3g": "trainers stopped",
    "door": "attacks on the public path",
    **{row: fault_rows.ROWS[row] for row in _SHARED},
}
WHY_NOT: Final[dict[str, str]] = {
    "28": "a plugin is the daemon's own: faults.md has it",
}
ABOUT: Final = (
    "Written by `scripts/test --abuse --report`, never by hand. The daemon runs as a user of its own, at a socket "
    "that only its group can reach. Two honest trainers read without pause, one as the daemon's user and one as "
    "another member of the group; the attackers are a third user of the group (`tests/abuse/attacks/`), or come from "
    "another address to the one for other hosts, where a third honest trainer reads; it may lose its gate, and then "
    "goes on. A row passes if the trainers' receipts are in order, no batch was lost or repeated "
    "(`tests/faults/oracle.py`), the same daemon runs on, its own memory grew by less than 32 MiB, its batches stayed"
    " within `memory`, its log has no traceback, and a newcomer of a fourth user reads an epoch afterwards. Rates are"
    " shown and not judged: each is the trainers' rate beside the attack, divided by their rate beside a busy loop "
    "that takes as much processor time as the attackers and their gates took. The median comes first, then each round. "
    "Where the attackers read batches, as every member may, the busy loop also takes the time that workers spent on "
    "batches that no honest trainer took. Rows are those of `tests/abuse_rows.py`."
)
