"""Turns on the event loop: each user other than the daemon's own takes at most a share of the loop's time. Pure.

A frame cannot be refused before it was read, so the pause comes after it: while a user is over its share, its frames
stay unread in the kernel, and its own trainers wait.
"""

from __future__ import annotations

from typing import Final

from streamd.core.leaky_bucket import LeakyBucket
from streamd.limits import LOOP_BURST_S, LOOP_SHARE, MAX_FRAME_CHARGE_S

_LEAST_BUCKETS: Final = 64  # before it is worth looking for empty ones


class LoopShares:
    """Time of the event loop by user, as leaky buckets: a burst of LOOP_BURST_S, then LOOP_SHARE of the time.

    `own_user` is the daemon's own user, which is trusted and never paused. Times are of a monotonic clock, in seconds.

    Over any time T between two charges, a user that is paused as `get_pause_s` says is charged at most LOOP_BURST_S +
    LOOP_SHARE * T + MAX_FRAME_CHARGE_S.
    """

    def __init__(self, own_user: int) -> None:
        self._own_user = own_user
        self._buckets: dict[int, LeakyBucket] = {}  # by user, of seconds
        self._most_buckets = _LEAST_BUCKETS  # with more of them, those that are empty are dropped

    def charge(self, user: int, cost_s: float, now_s: float) -> None:
        """Charges a user for a frame that was handled in `cost_s` seconds of processor time.

        A frame costs at most MAX_FRAME_CHARGE_S: if the host stops the daemon while it handles a frame, that is not the
        user's fault.
        """
        if user == self._own_user:
            return
        charge_s = min(max(0.0, cost_s), MAX_FRAME_CHARGE_S)
        self._buckets.setdefault(user, LeakyBucket(LOOP_SHARE, time_s=now_s)).add(charge_s, now_s)
        # Looking for empty buckets at every frame would cost every user by the number of users.
        if len(self._buckets) > self._most_buckets:
            self._buckets = {each: one for each, one in self._buckets.items() if one.compute_level(now_s) > 0}
            self._most_buckets = max(_LEAST_BUCKETS, 2 * len(self._buckets))

    def charge_and_get_pause_s(self, user: int, cost_s: float, now_s: float) -> float:
        """Charges a user, and returns for how many seconds its next frames have to stay unread."""
        self.charge(user, cost_s, now_s)
        return self.get_pause_s(user, now_s)

    def get_pause_s(self, user: int, now_s: float) -> float:
        """Returns for how many seconds the user's frames have to stay unread; 0 if it is within its share."""
        bucket = self._buckets.get(user)
        return 0.0 if bucket is None else max(0.0, bucket.compute_level(now_s) - LOOP_BURST_S) / LOOP_SHARE
