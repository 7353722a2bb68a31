"""What the frames of one gate cost the users behind it, with questions weighed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streamd.limits import QUESTION_WEIGHT

_LEAST_S: Final = 1e-9  # of a frame for which the clock did not move


@dataclass(slots=True)
class FrameCharges:
    """Divides the time of one turn of a link among the users whose frames were handled in it.

    A turn takes longer than its frames: each user bears a part of it, by the time that its own frames took. `owner`
    bears a turn without frames, if there is only one user behind the gate.
    """

    owner: int | None = None
    _times_s: dict[int, float] = field(default_factory=dict)  # by user
    _weighted_s: dict[int, float] = field(default_factory=dict)

    def add_frame(self, user: int, took_s: float, *, is_question: bool) -> None:
        """Notes a frame of a user. A question costs more than its time."""
        took_s = max(took_s, _LEAST_S)
        self._times_s[user] = self._times_s.get(user, 0.0) + took_s
        weight = QUESTION_WEIGHT if is_question else 1.0
        self._weighted_s[user] = self._weighted_s.get(user, 0.0) + weight * took_s

    def take_charges(self, took_s: float) -> dict[int, float]:
        """Returns what to charge each user for a turn that took this long, in seconds, and begins the next turn."""
        if not self._times_s:
            return {} if self.owner is None else {self.owner: took_s}
        whole_s = sum(self._times_s.values())
        charges = {user: took_s * weighted_s / whole_s for user, weighted_s in self._weighted_s.items()}
        self._times_s, self._weighted_s = {}, {}
        return charges
