"""What the key of a client lets it ask and see. Pure: messages in, messages out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from streamd.ipc.key_files import ClientKey
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    ClientMessage,
    DaemonMessage,
    Refused,
    Stats,
    StatusNow,
    Streams,
    Subscribe,
)

_GROUP: Final = "stream."


def find_refusal(key: ClientKey, message: ClientMessage) -> Refused | None:
    """Returns why a key may not ask this; None if it may."""
    if isinstance(message, Subscribe | AskNames) and not key.may_read(message.stream):
        allowed = ", ".join(sorted(key.streams or ())) or "none"
        return Refused(
            "unknown",
            f"there is no stream {message.stream!r} for the key {key.name}, which may read: {allowed}; its file on "
            "the daemon's host says which",
        )
    if isinstance(message, AskMonitor) and key.streams is not None:
        return Refused("usage", f"the dashboard shows all streams, and the key {key.name} may not read them all")
    return None


def limit_answer(key: ClientKey, message: DaemonMessage) -> DaemonMessage:
    """Returns an answer of the daemon without the streams that a key may not read."""
    if key.streams is None:
        return message
    match message:
        case Streams(streams):
            return Streams({name: spec for name, spec in streams.items() if key.may_read(name)})
        case Stats(values):
            return Stats({group: each for group, each in values.items() if _may_see_group(key, group)})
        case StatusNow(status):
            shown = tuple(each for each in status.streams if key.may_read(each.name))
            sessions = tuple(each for each in status.sessions if key.may_read(each.stream))
            return StatusNow(replace(status, streams=shown, sessions=sessions))
        case _:
            return message


def _may_see_group(key: ClientKey, group: str) -> bool:
    return not group.startswith(_GROUP) or key.may_read(group.removeprefix(_GROUP))
