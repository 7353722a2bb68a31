"""Whether the daemon gets anywhere, and how it is, in a line: what the service manager is told now and then."""

from __future__ import annotations

from streamd.limits import STALLED_S
from streamd.printable import counted
from streamd.status import DaemonStatus


class Pulse:
    """Tells a daemon that decodes, or has nothing to decode, from one whose work is stuck.

    The engine replaces a worker that is stuck long before `stalled_s`; what stands still for longer is the engine.
    """

    def __init__(self, now_s: float, stalled_s: float = STALLED_S) -> None:
        self._stalled_s = stalled_s
        self._moved_s = now_s
        self._moves = 0

    def beats(self, *, asked: bool, moves: int, now_s: float) -> bool:
        """Whether all is well: nothing is `asked`, or the count of `moves` has changed within the time allowed."""
        if not asked or moves != self._moves:
            self._moved_s, self._moves = now_s, moves
        return now_s - self._moved_s < self._stalled_s


def headline(status: DaemonStatus) -> str:
    """`serves train, validation to 3 trainers: 812 images/s`, and what is wrong, if anything is."""
    names = ", ".join(stream.name for stream in status.streams)
    rate = sum(stream.samples_per_s for stream in status.streams)
    flows = f": {rate:,.0f} images/s" if status.sessions else ""
    troubles = "".join(f"; {trouble}" for trouble in status.troubles)
    return f"serves {names} to {counted(len(status.sessions), 'trainer')}{flows}{troubles}"
