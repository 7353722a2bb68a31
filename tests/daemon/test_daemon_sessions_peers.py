"""The daemon's book of who is connected."""

from __future__ import annotations

from typing import cast

from streamd.daemon.sessions import Connection, Connections
from streamd.daemon.streams.served_stream import ServedStream


def peer(session: int, identity: bytes) -> Connection:
    return Connection(identity, session, cast("ServedStream", None), "shared", 0, 1)


def test_a_peer_is_found_by_session_and_by_identity() -> None:
    peers = Connections()
    one, two = peer(1, b"a"), peer(2, b"b")
    peers.add_connection(one)
    peers.add_connection(two)
    assert (peers.find_by_session(1), peers.find_by_identity(b"b"), len(peers)) == (one, two, 2)
    assert (peers.find_by_session(3), peers.find_by_identity(b"c")) == (None, None)


def test_a_removed_peer_is_found_no_more_and_removed_only_once() -> None:
    peers = Connections()
    one = peer(1, b"a")
    peers.add_connection(one)
    assert peers.remove_session(1) is one
    assert peers.remove_session(1) is None
    assert (peers.find_by_session(1), peers.find_by_identity(b"a"), len(peers)) == (None, None, 0)


def test_peers_may_be_removed_while_all_are_walked() -> None:
    peers = Connections()
    for number in range(3):
        peers.add_connection(peer(number, bytes([number])))
    for each in peers.list_connections():
        peers.remove_session(each.session)
    assert len(peers) == 0
