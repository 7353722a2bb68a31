"""The sockets of a client: their input, and whether a daemon listens."""

from __future__ import annotations

import socket
import tempfile

import zmq

from streamd.client.sockets import has_socket_input, is_socket_listening, open_dealer_socket


def test_a_socket_has_input_from_arrival_until_it_is_read() -> None:
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


def test_a_socket_whose_process_has_ended_does_not_listen_though_its_file_stays() -> None:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        path = f"{folder}/s"
        assert not is_socket_listening(f"ipc://{path}")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(0)
            assert [is_socket_listening(f"ipc://{path}") for _ in range(4)] == [True] * 4, "also with a full queue"
        assert not is_socket_listening(f"ipc://{path}")
