"""A leaky bucket: how much of something was taken lately, beside what may be taken in the long run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamd.limits import MAX_FRAME_CHARGE_S


@dataclass(slots=True)
class LeakyBucket:
    """What was added drains at `rate` a second. `level` is what was in it at `time_s`, of a monotonic clock."""

    rate: float
    level: float = 0.0
    time_s: float = 0.0

    def compute_level(self, now_s: float) -> float:
        """Returns what is in the bucket."""
        return max(0.0, self.level - self.rate * max(0.0, now_s - self.time_s))

    def add(self, amount: float, now_s: float) -> None:
        """Adds an amount, of at least 0."""
        self.level, self.time_s = self.compute_level(now_s) + amount, now_s


# --- Time by user: each user other than the daemon's own takes at most a share of a thread's time.
#
# What is asked of the event loop cannot be refused before it was read, so the pause comes after it: while a user is
# over its share, its frames stay unread in the kernel, and its own trainers wait.

_LEAST_BUCKETS: Final = 64  # before it is worth looking for empty ones


class TimeShares:
    """Time of one thread by user, as leaky buckets: a burst of `burst_s`, then the part `share` of the time.

    `own_user` is the daemon's own user, which is trusted and never paused. Times are of a monotonic clock, in seconds.

    Over any time T between two charges, a user that is paused as `get_pause_s` says is charged at most `burst_s` +
    `share` * T + `most_charge_s`, which bounds each charge: if the host stops the daemon while it works for a user,
    that is not the user's fault.
    """

    def __init__(self, own_user: int, share: float, burst_s: float, most_charge_s: float = MAX_FRAME_CHARGE_S) -> None:
        self._own_user = own_user
        self._share, self._burst_s, self._most_charge_s = share, burst_s, most_charge_s
        self._buckets: dict[int, LeakyBucket] = {}  # by user, of seconds
        self._most_buckets = _LEAST_BUCKETS  # with more of them, those that are empty are dropped

    def charge(self, user: int, cost_s: float, now_s: float) -> float:
        """Charges a user for `cost_s` seconds of processor time; returns its pause, as `get_pause_s` does."""
        if user == self._own_user:
            return 0.0
        charge_s = min(max(0.0, cost_s), self._most_charge_s)
        self._buckets.setdefault(user, LeakyBucket(self._share, time_s=now_s)).add(charge_s, now_s)
        # Looking for empty buckets at every charge would cost every user by the number of users.
        if len(self._buckets) > self._most_buckets:
            self._buckets = {each: one for each, one in self._buckets.items() if one.compute_level(now_s) > 0}
            self._most_buckets = max(_LEAST_BUCKETS, 2 * len(self._buckets))
        return self.get_pause_s(user, now_s)

    def get_pause_s(self, user: int, now_s: float) -> float:
        """Returns for how many seconds the user's requests have to wait; 0 if it is within its share."""
        bucket = self._buckets.get(user)
        return 0.0 if bucket is None else max(0.0, bucket.compute_level(now_s) - self._burst_s) / self._share
