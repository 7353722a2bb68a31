"""The daemon's book of who is connected."""

from __future__ import annotations

from typing import cast

from streamd.daemon.sessions import Peer, Peers
from streamd.daemon.streams.served_stream import ServedStream


def peer(session: int, identity: bytes) -> Peer:
    return Peer(identity, session, cast("ServedStream", None), "shared", 0, 1)


def test_a_peer_is_found_by_session_and_by_identity() -> None:
    peers = Peers()
    one, two = peer(1, b"a"), peer(2, b"b")
    peers.add(one)
    peers.add(two)
    assert (peers.of(1), peers.speaking(b"b"), len(peers)) == (one, two, 2)
    assert (peers.of(3), peers.speaking(b"c")) == (None, None)


def test_a_removed_peer_is_found_no_more_and_removed_only_once() -> None:
    peers = Peers()
    one = peer(1, b"a")
    peers.add(one)
    assert peers.remove(1) is one
    assert peers.remove(1) is None
    assert (peers.of(1), peers.speaking(b"a"), len(peers)) == (None, None, 0)


def test_peers_may_be_removed_while_all_are_walked() -> None:
    peers = Peers()
    for number in range(3):
        peers.add(peer(number, bytes([number])))
    for each in peers.all():
        peers.remove(each.session)
    assert len(peers) == 0
