"""The open connections of a gate for other hosts, by descriptor, and which of them makes room for another. Pure.

Anybody who reaches the address can open a connection. One that has not sent a frame yet, since it is in its handshake
or says nothing, makes room for a newer one when there are too many: the oldest of the host that has the most of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from streamd.limits import SILENT_CONNECTIONS


@dataclass(slots=True)
class OpenConnections:
    """Connections that were accepted and have not ended, with the routing id of each that has sent a frame."""

    most_silent: int = SILENT_CONNECTIONS
    _silent: dict[int, str] = field(default_factory=dict)  # by descriptor: the host at the other end; the oldest first
    _speaking: dict[int, bytes] = field(default_factory=dict)  # by descriptor: the routing id

    def add_connection(self, descriptor: int, host: str) -> None:
        """Adds a connection that was accepted."""
        self._speaking.pop(descriptor, None)
        self._silent[descriptor] = host

    def remove_connection(self, descriptor: int) -> bytes | None:
        """Removes a connection that has ended; returns its routing id if it has sent a frame."""
        self._silent.pop(descriptor, None)
        return self._speaking.pop(descriptor, None)

    def note_frame(self, descriptor: int, identity: bytes) -> bool:
        """Notes the first frame of a connection. False if there is no such connection any more."""
        if self._silent.pop(descriptor, None) is None:
            return False
        self._speaking[descriptor] = identity
        return True

    def take_superfluous(self) -> int | None:
        """Removes a silent connection that must make room, and returns its descriptor; None if there is room."""
        if len(self._silent) <= self.most_silent:
            return None
        [(crowd, _)] = Counter(self._silent.values()).most_common(1)
        descriptor = next(each for each, host in self._silent.items() if host == crowd)
        del self._silent[descriptor]
        return descriptor
