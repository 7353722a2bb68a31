"""Turns on the event loop: each user other than the daemon's own takes at most a share of the loop's time. Pure.

A frame cannot be refused before it was read, so the pause comes after it: while a user is over its share, its frames
stay unread in the kernel, and its own trainers wait.
"""

from __future__ import annotations

from typing import Final

from streamd.limits import LOOP_BURST_S, LOOP_SHARE, MAX_FRAME_CHARGE_S

_LEAST_LEVELS: Final = 64  # buckets, before it is worth looking for empty ones


class LoopShares:
    """Time of the event loop by user, as leaky buckets: a burst of LOOP_BURST_S, then LOOP_SHARE of the time.

    `own_user` is the daemon's own user, which is trusted and never paused. Times are of a monotonic clock, in seconds.

    Over any time T between two charges, a user that is paused as `get_pause_s` says is charged at most LOOP_BURST_S +
    LOOP_SHARE * T + MAX_FRAME_CHARGE_S.
    """

    def __init__(self, own_user: int) -> None:
        self._own_user = own_user
        self._levels: dict[int, tuple[float, float]] = {}  # by user: seconds in its bucket, and when that was so
        self._most_levels = _LEAST_LEVELS  # with more of them, those that are empty are dropped

    def charge(self, user: int, cost_s: float, now_s: float) -> None:
        """Charges a user for a frame that was handled in `cost_s` seconds of processor time.

        A frame costs at most MAX_FRAME_CHARGE_S: if the host stops the daemon while it handles a frame, that is not the
        user's fault.
        """
        if user == self._own_user:
            return
        charge_s = min(max(0.0, cost_s), MAX_FRAME_CHARGE_S)
        self._levels[user] = self._compute_level(user, now_s) + charge_s, now_s
        # Looking for empty buckets at every frame would cost every user by the number of users.
        if len(self._levels) > self._most_levels:
            self._levels = {each: was for each, was in self._levels.items() if self._compute_level(each, now_s) > 0}
            self._most_levels = max(_LEAST_LEVELS, 2 * len(self._levels))

    def charge_and_get_pause_s(self, user: int, cost_s: float, now_s: float) -> float:
        """Charges a user, and returns for how many seconds its next frames have to stay unread."""
        self.charge(user, cost_s, now_s)
        return self.get_pause_s(user, now_s)

    def get_pause_s(self, user: int, now_s: float) -> float:
        """Returns for how many seconds the user's frames have to stay unread; 0 if it is within its share."""
        return max(0.0, self._compute_level(user, now_s) - LOOP_BURST_S) / LOOP_SHARE

    def _compute_level(self, user: int, now_s: float) -> float:
        level, then_s = self._levels.get(user, (0.0, now_s))
        return max(0.0, level - LOOP_SHARE * max(0.0, now_s - then_s))
