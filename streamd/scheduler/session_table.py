"""The sessions, by number and by stream.

One user may have a quarter of all sessions. What happens to one batch must not cost a look at each of them, so it is
asked of the sessions of its stream alone.
"""

from __future__ import annotations

from collections.abc import Collection

from streamd.scheduler.session import ScheduledSession


class SessionTable(dict[int, ScheduledSession]):
    """The sessions by number, in the order in which they came. Changed by `add_session` and `remove_session` alone."""

    def __init__(self) -> None:
        super().__init__()
        self._by_stream: dict[str, dict[int, ScheduledSession]] = {}

    @property
    def stream_count(self) -> int:
        """The number of streams that have a session."""
        return len(self._by_stream)

    def list_of_stream(self, stream: str) -> Collection[ScheduledSession]:
        """Returns the sessions of a stream, in the order in which they came."""
        return self._by_stream[stream].values() if stream in self._by_stream else ()

    def add_session(self, session: ScheduledSession) -> None:
        """Adds a session, whose number is new."""
        self[session.id] = session
        self._by_stream.setdefault(session.shape.name, {})[session.id] = session

    def remove_session(self, number: int) -> ScheduledSession | None:
        """Removes a session and returns it; None if there is none of this number."""
        session = self.pop(number, None)
        if session is not None:
            name = session.shape.name
            del self._by_stream[name][number]
            if not self._by_stream[name]:
                del self._by_stream[name]
        return session
