"""The daemon's book of who is connected: routing identity, session, and how each wants its pixels."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamd.bottleneck import Supplying
from streamd.messages import Transport
from streamd.served import ServedStream


@dataclass(slots=True)
class Peer:
    """A client with a session, or one that is just asking for it."""

    identity: bytes
    session: int
    stream: ServedStream
    transport: Transport
    rank: int
    world: int
    credit: int = 0
    receipts: int = 0  # told so far
    gone: bool = False
    supplying: Supplying = field(default_factory=Supplying)


class Peers:
    """Sessions by number and by routing identity."""

    def __init__(self) -> None:
        self._by_session: dict[int, Peer] = {}
        self._by_identity: dict[bytes, Peer] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def all(self) -> list[Peer]:
        """A copy, safe to remove from while walking."""
        return list(self._by_session.values())

    def add(self, peer: Peer) -> None:
        self._by_session[peer.session] = peer
        self._by_identity[peer.identity] = peer

    def of(self, session: int) -> Peer | None:
        return self._by_session.get(session)

    def speaking(self, identity: bytes) -> Peer | None:
        return self._by_identity.get(identity)

    def remove(self, session: int) -> Peer | None:
        peer = self._by_session.pop(session, None)
        if peer is not None:
            peer.gone = True
            self._by_identity.pop(peer.identity, None)
        return peer
