"""A client's sockets."""

from __future__ import annotations

import tempfile

import zmq

from streamd.client.sockets import has_socket_input, open_dealer_socket


def test_a_socket_has_input_once_something_has_come_and_none_when_it_was_read() -> None:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router, dealer = context.socket(zmq.ROUTER), None
        try:
            router.bind(f"ipc://{folder}/s")
            dealer = open_dealer_socket(context, f"ipc://{folder}/s")
            assert not has_socket_input(dealer)
            dealer.send(b"hello")
            who, _ = router.recv_multipart()
            router.send_multipart([who, b"there"])
            assert dealer.poll(5000)
            assert has_socket_input(dealer)
            assert dealer.recv() == b"there"
            assert not has_socket_input(dealer)
        finally:
            context.destroy(linger=0)
