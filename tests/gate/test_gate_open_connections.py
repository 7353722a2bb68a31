"""Which connections are open, and which of the silent ones makes room."""

from __future__ import annotations

import os
from pathlib import Path

import zmq

from streamd.gate.network_router import ClientKeys, NetworkRouter, OpenConnections, Peer
from streamd.ipc.key_files import ClientKey


def test_a_connection_has_the_routing_id_of_its_first_frame() -> None:
    connections = OpenConnections()
    connections.add_connection(7, "10.0.0.1")
    assert connections.note_frame(7, b"me")
    assert connections.remove_connection(7) == b"me"
    assert connections.remove_connection(7) is None


def test_a_frame_of_a_connection_that_has_ended_is_noticed() -> None:
    connections = OpenConnections()
    connections.add_connection(7, "10.0.0.1")
    assert connections.remove_connection(7) is None
    assert not connections.note_frame(7, b"me")


def test_a_descriptor_used_again_is_another_connection() -> None:
    connections = OpenConnections()
    connections.add_connection(7, "10.0.0.1")
    connections.note_frame(7, b"me")
    connections.add_connection(7, "10.0.0.2")
    assert connections.remove_connection(7) is None


def test_the_oldest_silent_connection_of_the_host_with_the_most_makes_room() -> None:
    connections = OpenConnections(most_silent=4)
    for descriptor, host in enumerate(["honest", "flood", "flood", "flood"]):
        connections.add_connection(descriptor, host)
    assert connections.take_superfluous() is None
    connections.add_connection(4, "another")
    assert connections.take_superfluous() == 1
    assert connections.take_superfluous() is None


def test_connections_that_have_sent_a_frame_make_no_room() -> None:
    connections = OpenConnections(most_silent=1)
    for descriptor in range(5):
        connections.add_connection(descriptor, "host")
        assert connections.note_frame(descriptor, b"%d" % descriptor)
    connections.add_connection(5, "host")
    assert connections.take_superfluous() is None


async def test_a_connection_whose_descriptor_has_become_a_file_is_closed_without_it(tmp_path: Path) -> None:
    lost: list[Peer] = []
    with zmq.Context() as context:
        router = NetworkRouter(context, ClientKeys(tmp_path), lambda *_: None, lost.append)
        try:
            peer = Peer(b"me", ClientKey("me", "public"), 1, os.eventfd(0))
            router.close_connection(peer)
            assert lost == [peer]
            os.close(peer.descriptor)  # it is open still, and a copy would fail the test now
        finally:
            router.close()
