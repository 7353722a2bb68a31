"""Frames of keys that the daemon has paused: they wait here in their order, within bounds. Pure: time is an argument.

All keys share one socket, and libzmq cannot leave the frames of one of them in the kernel.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from streamd.limits import KEY_WAITING_BYTES, KEY_WAITING_FRAMES


@dataclass(slots=True)
class _PausedKey:
    """A key whose frames wait until `until_s`: from which client each came, and what it says."""

    until_s: float
    frames: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    nbytes: int = 0


class HeldFrames:
    """The frames of paused keys. A key is named by its number, and a client by its routing id."""

    def __init__(self) -> None:
        self._keys: dict[int, _PausedKey] = {}

    def pause_key(self, user: int, until_s: float) -> None:
        """Holds the frames of a key until then. Frames that wait already wait as long."""
        self._keys.setdefault(user, _PausedKey(until_s)).until_s = until_s

    def is_paused(self, user: int) -> bool:
        """Whether the next frame of a key has to wait."""
        return user in self._keys

    def hold_frame(self, user: int, identity: bytes, frame: bytes) -> bool:
        """Keeps a frame of a paused key. False if the key has too many waiting: this one is not kept."""
        key = self._keys[user]
        if len(key.frames) >= KEY_WAITING_FRAMES or key.nbytes + len(frame) > KEY_WAITING_BYTES:
            return False
        key.frames.append((identity, frame))
        key.nbytes += len(frame)
        return True

    def drop_frames(self, user: int, identity: bytes) -> None:
        """Drops what waits of a client that is gone."""
        key = self._keys.get(user)
        if key is not None:
            key.frames = deque(each for each in key.frames if each[0] != identity)
            key.nbytes = sum(len(frame) for _, frame in key.frames)

    def take_due_frames(self, now_s: float) -> list[tuple[bytes, bytes]]:
        """Ends the pauses that are over; returns the frames of these keys, with their clients, in order."""
        due = [user for user, key in self._keys.items() if key.until_s <= now_s]
        return [each for user in due for each in self._keys.pop(user).frames]

    def find_next_end_s(self) -> float | None:
        """Returns when the next pause is over; None if no key is paused."""
        return min((key.until_s for key in self._keys.values()), default=None)
